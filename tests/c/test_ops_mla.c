/* test_ops_mla.c - the operations over latents and index keys: every CPU body against plain
 * loops in double over the values as stored, and against itself: a row's bits do not depend
 * on the batch, on chunks, on threads, on how a context was cut.
 *
 * Tolerance of attention: as in test_ops_attn.c, with d = c + r. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "tests/c/ops.h"

enum { N_SLOT = 10, PITCH = 12, N_PAGE = N_SLOT * PITCH, N_PART = 3, CAP_DEC = 16 };

static const int32_t contexts[] = {1, 63, 64, 65, 255, 256, 257, 700, 700, 40};
static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

struct shape {
    int32_t h, c, r;
};
static const struct shape shapes[] = {{8, 128, 32}, {5, 64, 16}, {64, 128, 32}, {70, 64, 32},
                                      {16, 512, 64}};

struct pool {
    struct mc_kv kv;
    struct mc_slot slots[N_SLOT];
    int32_t table[N_SLOT * PITCH];
    float fixed[2];
    double top; /* bounds a stored value */
};

/* Value i of a token as stored. */
static double stored(const struct pool *p, int32_t slot, int32_t pos, int32_t i)
{
    const struct mc_kv *kv = &p->kv;
    const uint8_t *t = mc_mla_at(kv, mc_kv_page(kv, 1, slot, pos), pos);

    switch (kv->layout) {
    case MC_KV_F32:
        return ((const float *)t)[i];
    case MC_KV_BF16:
        return mc_f32_of_bf16(((const uint16_t *)t)[i]);
    case MC_KV_FP8_PLAIN:
        return (double)mc_f32_of_e4m3(t[i]) * p->fixed[1];
    default:
        if (i < kv->c)
            return (double)mc_f32_of_e4m3(t[i]) * ((const float *)(t + kv->c))[i / 128];
        return mc_f32_of_bf16(((const uint16_t *)(t + kv->c + (kv->c + 127) / 128 * 4))[i - kv->c]);
    }
}

/* Slot i holds contexts[i] tokens written by k's mla_prep; the rest is NaN bytes. */
static struct pool *pool_new(struct kern *k, const struct shape *s, uint16_t layout,
                             uint64_t *seed)
{
    struct pool *p = calloc(1, sizeof *p);
    int32_t d = s->c + s->r, i, j;
    float norm[512], inv[64], *x = malloc((size_t)(700 * d) * 4);

    p->kv = (struct mc_kv){.table = p->table, .pitch = PITCH, .n_page = N_PAGE,
                           .n_slot = N_SLOT, .c = s->c, .r = s->r, .n_layer = 2, .n_shard = 1,
                           .layout = layout, .k_scale = p->fixed};
    p->fixed[0] = 1;
    p->fixed[1] = 0.01f;
    p->kv.layer_stride = MC_PAGE * mc_mla_token_bytes(layout, s->c, s->r) + 64;
    p->kv.page_stride = 2 * p->kv.layer_stride + 128;
    p->kv.base = malloc((size_t)(N_PAGE * p->kv.page_stride));
    memset(p->kv.base, 0xff, (size_t)(N_PAGE * p->kv.page_stride));
    for (i = 0; i < N_SLOT * PITCH; i++)
        p->table[i] = (i * 7) % N_PAGE;
    for (i = 0; i < s->c; i++)
        norm[i] = 0.5f + 0.01f * (float)(kern_rand(seed) % 100);
    for (i = 0; i < s->r / 2; i++)
        inv[i] = powf(10000, -2.0f * (float)i / (float)s->r);
    for (i = 0; i < N_SLOT; i++) {
        struct kern_rows r = {0};

        for (j = 0; j < contexts[i] * d; j++)
            x[j] = kern_randn(seed);
        kern_seq(&r, i, 0, contexts[i], false);
        kern_run(k, mla_prep, {.rows = kern_view(&r), .kv = p->kv, .slots = p->slots,
                               .layer = 1, .kv_a = x, .kv_norm = norm, .eps = 1e-6f,
                               .rope = {inv, 1, (int16_t)s->r, 0, MC_ROPE_NEIGHBOURS}});
    }
    p->top = 8;
    free(x);
    return p;
}

static void pool_free(struct pool *p)
{
    free(p->kv.base);
    free(p);
}

static void run_attn(struct kern *k, const struct pool *p, const struct shape *s,
                     const struct kern_rows *r, const float *q, const int32_t *idx, int32_t topk,
                     int32_t first, float *out)
{
    int64_t parts = (int64_t)CAP_DEC * N_PART + KERN_T, i;
    float *o = malloc((size_t)(parts * s->h * s->c) * 4), *ml = malloc((size_t)(parts * s->h) * 8);

    memset(o, 0xff, (size_t)(parts * s->h * s->c) * 4);
    for (i = 0; i < parts * s->h * 2; i++)
        ml[i] = NAN;
    kern_run(k, mla_attn, {.rows = kern_view(r), .kv = p->kv, .slots = p->slots, .layer = 1,
                           .h = s->h, .n_part = N_PART, .cap_decode = CAP_DEC,
                           .scale = 1 / sqrtf((float)(s->c + s->r)), .q = q, .idx = idx,
                           .topk = topk, .first = first, .o = o, .ml = ml});
    kern_run(k, attn_merge, {.rows = kern_view(r), .h = s->h, .d = s->c, .n_part = N_PART,
                             .cap_decode = CAP_DEC, .o = o, .ml = ml, .out = out});
    free(o), free(ml);
}

static float *random_q(int32_t rows, const struct shape *s, uint64_t *seed)
{
    int64_t n = (int64_t)rows * s->h * (s->c + s->r), i;
    float *q = malloc((size_t)n * 4);

    for (i = 0; i < n; i++)
        q[i] = kern_randn(seed);
    return q;
}

/* Plain attention of one head over n positions (list NULL: the first n). */
static void plain(const double *vals, int32_t d, int32_t c, const float *q, const int32_t *list,
                  int32_t n, double *out)
{
    double score[1024], max = -1e300, sum = 0;
    int32_t i, j;

    for (j = 0; j < n; j++) {
        const double *v = vals + (int64_t)(list ? list[j] : j) * d;

        for (score[j] = 0, i = 0; i < d; i++)
            score[j] += v[i] * q[i];
        score[j] /= sqrtf((float)d);
        max = fmax(max, score[j]);
    }
    for (i = 0; i < c; i++)
        out[i] = 0;
    for (j = 0; j < n; j++) {
        double p = exp(score[j] - max);

        sum += p;
        for (i = 0; i < c; i++)
            out[i] += p * vals[(int64_t)(list ? list[j] : j) * d + i];
    }
    for (i = 0; i < c; i++)
        out[i] /= sum;
}

/* Rows of every slot's last token, then prefill rows; every third head is looked at. */
static void check_attn(struct kern *cpu, const struct shape *s, uint16_t layout, bool lists,
                       int32_t first, uint64_t *seed)
{
    enum { TOPK = 300 };
    struct pool *p = pool_new(cpu, s, layout, seed);
    int32_t d = s->c + s->r, cols = s->h * s->c, rows, t, i, j, head;
    struct kern_rows r = {0};
    float *q, *got;
    int32_t *idx;
    double *vals = malloc((size_t)(700 * d) * 8), want[512];
    double smax = 6 * sqrt(d), tol = ((2 * d + 8) * smax + 700 + 64) * 2 * OPS_U;

    for (i = 0; i < 8; i++)
        kern_seq(&r, i, contexts[i] - 1, 1, true);
    kern_seq(&r, 8, 689, 11, false);
    kern_seq(&r, 9, 0, 40, false);
    p->slots[3].bad = MC_BAD_PAGE;
    rows = r.live[MC_LIVE_ROWS];
    q = random_q(rows, s, seed);
    got = malloc((size_t)(rows * cols) * 4);
    idx = malloc((size_t)(rows * TOPK) * 4);
    for (t = 0; t < rows; t++) {
        int32_t n = 0, see = r.pos[t] + 1;

        for (j = 0; j < see && n < TOPK; j++)
            if (see <= TOPK || (int32_t)(kern_rand(seed) % (uint32_t)(see - j)) < TOPK - n)
                idx[t * TOPK + n++] = j;
        for (; n < TOPK; n++)
            idx[t * TOPK + n] = -1;
    }
    run_attn(cpu, p, s, &r, q, lists ? idx : NULL, TOPK, first, got);
    for (t = 0; t < rows; t++) {
        int32_t slot = r.slot[r.row_seq[t]], see = r.pos[t] + 1;

        if (t == 0 || r.row_seq[t] != r.row_seq[t - 1])
            for (j = 0; j < contexts[slot]; j++)
                for (i = 0; i < d; i++)
                    vals[j * d + i] = stored(p, slot, j, i);
        for (head = t % 3; head < s->h; head += 3) {
            if (lists)
                for (see = 0; see < TOPK && idx[t * TOPK + see] >= 0; see++)
                    ;
            plain(vals + (lists ? 0 : first * d), d, s->c, q + ((int64_t)t * s->h + head) * d,
                  lists ? idx + t * TOPK : NULL, lists ? see : see - first, want);
            for (i = 0; i < s->c; i++) {
                float x = got[t * cols + head * s->c + i];

                if (!(fabs(x - (slot == 3 || see <= first ? 0 : want[i])) <= tol * p->top))
                    fail_msg("%s h %d c %d kv %d list %d: row %d head %d col %d is %.9g, want "
                             "%.9g", cpu->b->what, s->h, s->c, layout, lists, t, head, i, x,
                             want[i]);
            }
        }
    }
    free(q), free(got), free(idx), free(vals);
    pool_free(p);
}

static void ops_mla_attn_agrees_with_plain_loops(void **state)
{
    struct kern cpu;
    uint64_t seed = 83;
    size_t i, j;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (j = 0; j < 4; j++) {
                check_attn(&cpu, &shapes[i], layouts[j], false, (int32_t)j % 2, &seed);
                check_attn(&cpu, &shapes[i], layouts[j], true, 0, &seed);
            }
}

/* 700 rows of a sequence: whole, in chunks of any size, as decode rows, on any threads. A list
 * of all positions gives what no list gives. */
static void ops_mla_attn_rows_do_not_depend_on_chunks(void **state)
{
    static const int32_t chunk[] = {700, 1, 7, 64, 257};
    const struct shape *s = &shapes[0];
    struct kern cpu;
    uint64_t seed = 89;
    int32_t c, t, n, threads, cols = s->h * s->c, qd = s->h * (s->c + s->r);
    float *q = random_q(700, s, &seed), *first = malloc((size_t)(700 * cols) * 4);
    float *got = malloc((size_t)(700 * cols) * 4);
    int32_t *all = malloc(700 * 700 * 4);

    (void)state;
    for (t = 0; t < 700; t++)
        for (c = 0; c < 700; c++)
            all[t * 700 + c] = c <= t ? c : -1;
    for (threads = 1; threads <= 3; threads += 2)
        ops_each_body (cpu, threads) {
            uint64_t again = 97;
            struct pool *p = pool_new(&cpu, s, layouts[threads], &again);

            for (c = 0; c < 6; c++) {
                for (t = 0; t < 700; t += n) {
                    struct kern_rows r = {0};

                    n = c == 5 ? 50 : 700 - t < chunk[c] ? 700 - t : chunk[c];
                    kern_seq(&r, 8, t, n, n == 1);
                    run_attn(&cpu, p, s, &r, q + t * qd, c == 5 ? all + t * 700 : NULL, 700,
                             0, got + t * cols);
                }
                if (c == 0)
                    memcpy(first, got, (size_t)(700 * cols) * 4);
                else if (memcmp(first, got, (size_t)(700 * cols) * 4) != 0)
                    fail_msg("%s: case %d gives other bits", cpu.b->what, c);
            }
            pool_free(p);
        }
    free(q), free(first), free(got), free(all);
}

/* ---- mla_q, mla_out --------------------------------------------------------------------- */

/* One matrix a head, packed one behind the other. */
static struct mc_ws stack_of(struct kern *cpu, const struct mc_disk *d, int32_t n)
{
    struct mc_ws s = {.n = n};
    struct mc_need need;
    const char *why = "";
    int32_t i;

    for (i = 0; i < n; i++) {
        struct mc_pack_p p = {.disk = d[i], .w = {.layout = cpu->b->run_of(cpu->b, d[i].fmt),
                                                  .dt = MC_F32, .n = d[i].n, .k = d[i].k}};

        assert_int_equal(cpu->b->op[MC_OP_pack]->need(&p, &need, &why), 0);
        if (i == 0) {
            s.w = p.w;
            s.q_step = (int64_t)need.q;
            s.scale_step = (int64_t)need.scale;
            s.w.q = malloc(need.q * (size_t)n);
            s.w.scale = malloc(need.scale * (size_t)n + 1);
        }
        p.w = mc_ws_at(&s, i);
        kern_run(cpu, pack, p);
    }
    return s;
}

/* Both absorptions against double; formats: f32, bf16, e4m3, q8_0. */
static void check_heads(struct kern *cpu, const struct ops_fmt *f, int32_t rows, uint64_t *seed)
{
    enum { H = 3, NOPE = 64, C = 96, R = 16, V = 32 };
    struct mc_disk uk[H], uv[H];
    struct mc_ws w_uk, w_uv;
    struct kern_rows r = {0};
    int32_t from = NOPE + R, to = C + R, t, i, j, head;
    float *q = malloc((size_t)(rows * H * to) * 4), *out = malloc((size_t)(rows * H * to) * 4);
    float *one = malloc((size_t)(H * to) * 4), inv[R / 2], row[128];
    struct mc_act act = ops_act(MC_A_F32, rows, H * V), alone = ops_act(MC_A_F32, 1, H * V);
    struct kern_rows single = {.live = {1}};
    struct mc_mla_q_p p = {.h = H, .nope = NOPE, .c = C, .q = q, .out = out};

    for (i = 0; i < H; i++) {
        uk[i] = ops_disk(f, C, NOPE, seed);
        uv[i] = ops_disk(f, V, C, seed);
    }
    w_uk = stack_of(cpu, uk, H);
    w_uv = stack_of(cpu, uv, H);
    for (i = 0; i < R / 2; i++)
        inv[i] = powf(100, -(float)i / R);
    for (i = 0; i < rows * H * to; i++) /* as latents too, below */
        q[i] = kern_randn(seed);
    kern_seq(&r, 0, 5, rows, false);
    p.rows = kern_view(&r);
    p.w_uk = w_uk;
    p.rope = (struct mc_rope){inv, 1.5f, R, NOPE, MC_ROPE_NEIGHBOURS};
    kern_run(cpu, mla_q, p);
    for (t = 0; t < rows; t++)
        for (head = 0; head < H; head++) {
            const float *x = q + (t * H + head) * from, *y = out + (t * H + head) * to;

            for (i = 0; i < C; i++) {
                double want = 0, size = 0;

                mc_disk_row(&uk[head], i, 0, NOPE, row);
                for (j = 0; j < NOPE; j++) {
                    want += (double)row[j] * x[j];
                    size += fabs((double)row[j] * x[j]);
                }
                /* quantised matrices read int16 rows: half a step of 4/32767 each */
                if (!(fabs(y[i] - want) <= size * ((NOPE + 8) * OPS_U +
                                                   (f->unit > 1 ? 1e-3 : 0))))
                    fail_msg("%s %s: q[%d,%d,%d] is %.9g, want %.9g", cpu->b->what, f->name, t,
                             head, i, y[i], want);
            }
            for (i = 0; i < R / 2; i++) {
                double a = x[NOPE + 2 * i], b = x[NOPE + 2 * i + 1];
                float angle = (float)(5 + t) * inv[i];
                double c = 1.5 * cosf(angle), sn = 1.5 * sinf(angle);

                assert_true(fabs(y[C + 2 * i] - (a * c - b * sn)) < 1e-5);
                assert_true(fabs(y[C + 2 * i + 1] - (b * c + a * sn)) < 1e-5);
            }
        }
    for (t = 0; t < rows; t += 7) { /* alone */
        struct kern_rows r1 = {0};

        kern_seq(&r1, 0, 5 + t, 1, true);
        p.rows = kern_view(&r1);
        p.q = q + t * H * from;
        p.out = one;
        kern_run(cpu, mla_q, p);
        assert_memory_equal(one, out + t * H * to, (size_t)(H * to) * 4);
    }
    kern_run(cpu, mla_out, {.rows = kern_view(&r), .h = H, .c = C, .v = V, .o_lat = q,
                            .w_uv = w_uv, .act = act});
    for (t = 0; t < rows; t += 5) {
        kern_run(cpu, mla_out, {.rows = kern_view(&single), .h = H, .c = C, .v = V,
                                .o_lat = q + t * H * C, .w_uv = w_uv, .act = alone});
        assert_memory_equal(alone.x, (float *)act.x + t * H * V, H * V * 4);
        for (head = 0; head < H; head++)
            for (i = 0; i < V; i++) {
                double want = 0, size = 0;

                mc_disk_row(&uv[head], i, 0, C, row);
                for (j = 0; j < C; j++) {
                    want += (double)row[j] * q[(t * H + head) * C + j];
                    size += fabs((double)row[j] * q[(t * H + head) * C + j]);
                }
                assert_true(fabs(((float *)act.x)[(t * H + head) * V + i] - want) <=
                            size * ((C + 8) * OPS_U + (f->unit > 1 ? 1e-3 : 0)));
            }
    }
    for (i = 0; i < H; i++)
        ops_disk_free(&uk[i]), ops_disk_free(&uv[i]);
    free(w_uk.w.q), free(w_uk.w.scale), free(w_uv.w.q), free(w_uv.w.scale);
    free(q), free(out), free(one);
    ops_act_free(&act), ops_act_free(&alone);
}

static void ops_mla_q_and_out_multiply_each_head(void **state)
{
    static const int32_t fmt[] = {0, 2, 3, 10}, rows[] = {1, 8, 100};
    struct kern cpu;
    uint64_t seed = 101;
    int32_t i, j;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 4; i++)
            for (j = 0; j < 3; j++)
                check_heads(&cpu, &ops_fmts[fmt[i]], rows[j] + (rows[j] == 1 ? 1 : 0), &seed);
}

/* ---- dsa -------------------------------------------------------------------------------- */

struct index_rig {
    struct mc_kv kv;
    struct mc_slot slots[2];
    int32_t table[64];
};

enum { HI = 5, ID = 32, LONG = 3500 };

/* A pool with one index and tokens [0, LONG) of slot 0, queries of their own rows. */
static struct index_rig *index_new(struct kern *k, uint16_t layout, void *qi, float *gates,
                                   uint64_t *seed)
{
    struct index_rig *g = calloc(1, sizeof *g);
    float norm[ID], bias[ID], inv[8], *q = malloc(1024 * HI * ID * 4), *key = malloc(1024 * ID * 4);
    float *gate = malloc(1024 * HI * 4);
    int32_t i, t, n;

    g->kv = (struct mc_kv){.table = g->table, .pitch = 64, .n_page = 64, .n_slot = 1,
                           .c = 64, .r = 16, .index_d = ID, .n_layer = 1, .n_index = 1,
                           .n_shard = 1, .layout = layout,
                           .index_stride = mc_index_bytes(layout, ID)};
    g->kv.layer_stride = g->kv.index_off = MC_PAGE * mc_mla_token_bytes(layout, 64, 16);
    g->kv.page_stride = g->kv.index_off + g->kv.index_stride;
    g->kv.base = malloc((size_t)(64 * g->kv.page_stride));
    memset(g->kv.base, 0xff, (size_t)(64 * g->kv.page_stride));
    for (i = 0; i < 64; i++)
        g->table[i] = 63 - i;
    for (i = 0; i < 8; i++)
        inv[i] = powf(100, -(float)i / 8);
    for (i = 0; i < ID; i++) {
        norm[i] = 1 + 0.1f * kern_randn(seed);
        bias[i] = 0.1f * kern_randn(seed);
    }
    for (t = 0; t < LONG; t += n) {
        struct kern_rows r = {0};

        n = LONG - t < 1000 ? LONG - t : 1000;
        for (i = 0; i < n * HI * ID; i++)
            q[i] = kern_randn(seed);
        for (i = 0; i < n * ID; i++) /* every fifth key is one of a few: ties */
            key[i] = (t + i / ID) % 5 == 0 ? (float)((i % ID) % 7 - 3) : kern_randn(seed);
        for (i = 0; i < n * HI; i++)
            gate[i] = kern_randn(seed);
        kern_seq(&r, 0, t, n, false);
        kern_run(k, dsa_prep,
                 {.rows = kern_view(&r), .kv = g->kv, .slots = g->slots, .hi = HI, .q = q,
                  .k = key, .gate = gate, .k_norm = norm, .k_bias = bias, .eps = 1e-6f,
                  .rope = {inv, 0, 16, 0, MC_ROPE_HALVES}, /* mul 0: equal keys tie */
                  .qi = (uint8_t *)qi + (int64_t)t * HI * ID * (layout == MC_KV_F32 ? 4 : 1),
                  .gates = gates + t * HI});
    }
    free(q), free(key), free(gate);
    return g;
}

static double score_of(const struct index_rig *g, const void *qi, const float *gates, int32_t t,
                       int32_t s)
{
    uint8_t *page = mc_index_page(&g->kv, 0, 0, s);
    bool f32 = g->kv.layout == MC_KV_F32;
    double sum = 0, dot;
    int32_t h, i;

    for (h = 0; h < HI; h++) {
        for (dot = 0, i = 0; i < ID; i++) {
            int32_t a = (t * HI + h) * ID + i, b = s % MC_PAGE * ID + i;

            dot += f32 ? (double)((const float *)qi)[a] * ((float *)page)[b]
                       : (double)mc_f32_of_e4m3(((const uint8_t *)qi)[a]) * mc_f32_of_e4m3(page[b]);
        }
        sum += gates[t * HI + h] * fmax(dot, 0);
    }
    return f32 ? sum : sum * *mc_index_scale(&g->kv, page, s);
}

static void run_topk(struct kern *k, const struct index_rig *g, const struct kern_rows *r,
                     const void *qi, const float *gates, int32_t t, int32_t topk, int32_t first,
                     int32_t cap, int32_t *idx)
{
    struct mc_dsa_topk_p p = {.rows = kern_view(r), .kv = g->kv, .slots = g->slots, .hi = HI,
                              .topk = topk, .first = first, .context = 4096,
                              .gates = gates + t * HI, .idx = idx,
                              .qi = (const uint8_t *)qi +
                                    (int64_t)t * HI * ID * (g->kv.layout == MC_KV_F32 ? 4 : 1)};
    struct mc_need need;
    const char *why = "";

    p.rows.cap = cap;
    assert_int_equal(k->b->op[MC_OP_dsa_topk]->need(&p, &need, &why), 0);
    p.scratch = malloc(need.scratch);
    kern_run(k, dsa_topk, p);
    free(p.scratch);
}

/* Rows [t0, t0+n) as prefill and each as a decode row: the same list, which no position
 * outside beats, or equals from below. */
static void check_topk(struct kern *k, const struct index_rig *g, const void *qi,
                       const float *gates, int32_t t0, int32_t n, int32_t topk, int32_t first)
{
    int32_t *idx = malloc((size_t)(n * topk) * 4), *one = malloc((size_t)topk * 4), t, i, s;
    struct kern_rows r = {0};

    kern_seq(&r, 0, t0, n, false);
    run_topk(k, g, &r, qi, gates, t0, topk, first, n, idx);
    for (t = t0; t < t0 + n; t += n > 8 ? 7 : 1) {
        int32_t *list = idx + (t - t0) * topk, n_all = t + 1 - first;
        struct kern_rows r1 = {0};
        double least = 1e300;
        bool in[LONG] = {false};

        kern_seq(&r1, 0, t, 1, true);
        run_topk(k, g, &r1, qi, gates, t, topk, first, 1, one);
        assert_memory_equal(one, list, (size_t)topk * 4);
        for (i = 0; i < topk; i++) {
            assert_true(i < n_all ? list[i] >= first && list[i] <= t : list[i] == -1);
            assert_true(i >= n_all || i == 0 || list[i] > list[i - 1]);
            if (i < n_all) {
                in[list[i]] = true;
                least = fmin(least, score_of(g, qi, gates, t, list[i]));
            }
        }
        for (s = first; s <= t && n_all > topk; s++)
            if (!in[s] && score_of(g, qi, gates, t, s) > least + 1e-5 * (1 + fabs(least)))
                fail_msg("%s: row %d topk %d passed over %d", k->b->what, t, topk, s);
    }
    free(idx), free(one);
}

static void ops_dsa_topk_finds_the_largest(void **state)
{
    struct kern cpu;
    uint64_t seed = 103;
    void *qi = malloc(LONG * HI * ID * 4);
    float *gates = malloc(LONG * HI * 4);
    int32_t i;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 2; i++) {
            struct index_rig *g = index_new(&cpu, i ? MC_KV_F32 : MC_KV_FP8_656, qi, gates, &seed);

            check_topk(&cpu, g, qi, gates, 0, 140, 64, 0);
            check_topk(&cpu, g, qi, gates, 0, 140, 64, 1);
            check_topk(&cpu, g, qi, gates, 3400, 100, 64, 1);
            check_topk(&cpu, g, qi, gates, 3490, 3, 2048, 0);
            check_topk(&cpu, g, qi, gates, 3499, 1, 1, 0);
            free(g->kv.base), free(g);
        }
    free(qi), free(gates);
}

/* All scores equal: the first topk positions; a bad sequence: none. */
static void ops_dsa_topk_ties_go_to_the_lowest_position(void **state)
{
    struct kern cpu;
    uint64_t seed = 107;
    void *qi = malloc(LONG * HI * ID * 4);
    float *gates = malloc(LONG * HI * 4);
    int32_t idx[100], i;

    (void)state;
    ops_each_body (cpu, 3) {
        struct index_rig *g = index_new(&cpu, MC_KV_BF16, qi, gates, &seed);
        struct kern_rows r = {0};

        kern_seq(&r, 0, 3400, 1, true);
        memset(gates + 3400 * HI, 0, HI * 4);
        run_topk(&cpu, g, &r, qi, gates, 3400, 100, 0, 1, idx);
        for (i = 0; i < 100; i++)
            assert_int_equal(idx[i], i);
        g->slots[0].bad = MC_BAD_PAGE;
        run_topk(&cpu, g, &r, qi, gates, 3400, 100, 0, 1, idx);
        for (i = 0; i < 100; i++)
            assert_int_equal(idx[i], -1);
        free(g->kv.base), free(g);
    }
    free(qi), free(gates);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_mla_attn_agrees_with_plain_loops),
    cmocka_unit_test(ops_mla_attn_rows_do_not_depend_on_chunks),
    cmocka_unit_test(ops_mla_q_and_out_multiply_each_head),
    cmocka_unit_test(ops_dsa_topk_finds_the_largest),
    cmocka_unit_test(ops_dsa_topk_ties_go_to_the_lowest_position),
};

MC_TEST_MAIN(tests)

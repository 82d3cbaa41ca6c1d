/* test_ops_latent.c - what writes and reads latents and index keys, every body of the CPU
 * backend against the oracle; and which operations have a body at all.
 *
 * Where the arithmetic is the same element by element the bits must be: casts, scales,
 * rope, gates. A norm's sum is exact for inputs of +-1 and eps 0, so then pages are
 * compared byte by byte; for others a stored value may fall one step to the other side.
 */
#include "tests/c/test.h"

#include "tests/c/latent.h"
#include "tests/c/ops.h"

static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

/* ---- which bodies there are -------------------------------------------------------- */

/* Needed by no pass on one host: collectives, and what is reserved. */
static bool may_miss(const char *name)
{
    static const char *const names[] = {"mla_expand", "dsa_merge", "all_gather",
                                        "all_to_all", "verify",    "pool",
                                        "lora",       "tensor",    "tap"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static int list_missing(const struct mc_backend *b)
{
    static const char *const names[] = {
#define MC_OP(name) #name,
        MC_OPS(MC_OP)
#undef MC_OP
    };
    int i, lacks = 0;

    print_message("%s (%s): no body for", b->name, b->what);
    for (i = 0; i < MC_N_OP; i++) {
        if (b->op[i]) {
            assert_string_equal(b->op[i]->name, names[i]);
            assert_true(b->op[i]->need && b->op[i]->run);
            continue;
        }
        print_message(" %s%s", names[i], may_miss(names[i]) ? "" : " (models need it)");
        lacks += !may_miss(names[i]);
    }
    print_message("\n");
    return lacks;
}

static void ops_every_backend_says_what_it_lacks(void **state)
{
    struct kern k = kern_ref(1, -1);
    int lacks = list_missing(k.b);

    (void)state;
    kern_close(&k);
    ops_each_body (k, 1)
        lacks += list_missing(k.b);
    assert_int_equal(lacks, 0);
}

/* ---- mla_prep ---------------------------------------------------------------------- */

enum { Q = 96, ROWS = 75 };

/* Inputs and outputs of one step: rows of three slots, one of them bad. */
struct prep {
    struct latent_pool *p;
    struct kern_rows rows;
    float *q_a, *kv_a, w[512], w_q[Q], inv[32], *norm;
    struct mc_act act;
};

static struct prep *prep_new(uint16_t layout, int32_t c, int32_t r, bool exact,
                             uint64_t *seed)
{
    struct prep *x = calloc(1, sizeof *x);
    int32_t i;

    x->p = latent_new(layout, c, r, 0, 0x5a);
    x->p->slots[4].bad = MC_BAD_PAGE;
    kern_seq(&x->rows, 3, 700, 1, true);
    kern_seq(&x->rows, 2, 60, 70, false);
    kern_seq(&x->rows, 4, 0, 4, false);
    x->kv_a = latent_randoms((size_t)(ROWS * (c + r)), 3, seed);
    x->q_a = latent_randoms(ROWS * Q, 3, seed);
    for (i = 0; exact && i < ROWS * (c + r); i++)
        if (i % (c + r) < c)
            x->kv_a[i] = copysignf(1, x->kv_a[i]);
    for (i = 0; exact && i < ROWS * Q; i++)
        x->q_a[i] = copysignf(1, x->q_a[i]);
    for (i = 0; i < c; i++)
        x->w[i] = kern_randn(seed) * (kern_rand(seed) % 30 ? 1 : 200);
    for (i = 0; i < Q; i++)
        x->w_q[i] = kern_randn(seed);
    latent_freqs(x->inv, r);
    x->norm = calloc(ROWS * Q, 4);
    x->act = ops_act(MC_A_I16, ROWS, Q);
    return x;
}

static void prep_free(struct prep *x)
{
    latent_free(x->p);
    free(x->q_a), free(x->kv_a), free(x->norm);
    ops_act_free(&x->act);
    free(x);
}

/* Rows [t0, t0+n) of the step as a step of its own, into kv. */
static void run_prep(struct kern *k, struct prep *x, const struct mc_kv *kv, int32_t t0,
                     int32_t n, float eps, uint8_t pair, bool in16)
{
    int32_t c = kv->c, r = kv->r, t;
    struct kern_rows rows = x->rows;
    struct mc_act act = x->act;

    rows.live[MC_LIVE_ROWS] = n;
    for (t = 0; t < n; t++) {
        rows.pos[t] = x->rows.pos[t0 + t];
        rows.row_seq[t] = x->rows.row_seq[t0 + t];
    }
    act.x = in16 ? (int16_t *)act.x + t0 * Q : NULL;
    act.s += t0 * Q / 32;
    act.bf = (float *)act.bf + t0 * Q / 32;
    kern_run(k, mla_prep,
             {.rows = kern_view(&rows), .kv = *kv, .slots = x->p->slots, .layer = 1,
              .q_lora = Q, .q_a = x->q_a + t0 * Q, .kv_a = x->kv_a + t0 * (c + r),
              .q_norm = x->w_q, .kv_norm = x->w, .eps = eps,
              .rope = {x->inv, 1.25f, (int16_t)r, 0, pair}, .act = act,
              .norm_out = x->norm + t0 * Q});
}

/* The same step by the oracle and a body, into two pools that began alike. */
static void check_prep(struct kern *cpu, struct kern *ref, uint16_t layout, int32_t c,
                       int32_t r, int how, uint64_t *seed)
{
    bool exact = how & 1;
    struct prep *x = prep_new(layout, c, r, exact, seed);
    float scale[] = {7, 0.04f}, want[ROWS * Q];
    struct mc_kv kv = x->p->kv;
    uint8_t *oracle = x->p->kv.base, *own = malloc(x->p->bytes);
    double a[512 + 64], b[512 + 64];
    int32_t t, i;

    memcpy(own, oracle, x->p->bytes);
    kv.k_scale = x->p->kv.k_scale = how & 2 ? scale : NULL;
    run_prep(ref, x, &kv, 0, ROWS, exact ? 0 : 1e-6f, how >> 2, false);
    memcpy(want, x->norm, sizeof want);
    memset(x->norm, 0, sizeof want);
    kv.base = own;
    run_prep(cpu, x, &kv, 0, ROWS, exact ? 0 : 1e-6f, how >> 2, true);
    for (i = 0; i < ROWS * Q; i++) {
        float step = x->act.s[i / 32];

        assert_true(fabs((double)x->norm[i] - want[i]) <=
                    (exact ? 0 : (Q / 2.0 + 8) * OPS_U * fabsf(want[i])));
        assert_true(fabs((double)ops_act_at(&x->act, i / Q, i % Q) - x->norm[i]) <=
                    0.51 * step + 4 * OPS_U * fabsf(want[i]));
    }
    if (exact && memcmp(own, oracle, x->p->bytes) != 0)
        fail_msg("%s: kv %d c %d r %d: other bytes than the oracle's", cpu->b->what,
                 layout, c, r);
    for (t = 0; t < ROWS - 4; t++) {
        latent_read(x->p, 1, t ? 2 : 3, x->rows.pos[t], a);
        x->p->kv.base = own;
        latent_read(x->p, 1, t ? 2 : 3, x->rows.pos[t], b);
        x->p->kv.base = oracle;
        for (i = 0; i < c + r; i++) { /* one step of e4m3, whose scale may double */
            double tol = layout == MC_KV_F32 ? 4e-6 + (c + 8) * OPS_U * fabs(a[i])
                         : layout == MC_KV_BF16
                             ? 0x1p-7 * fabs(a[i]) + 1e-6
                             : 0x1.1p-3 * fabs(a[i]) + 0x1p-8 * (kv.k_scale ? 0.04 : 32);

            if (!(fabs(a[i] - b[i]) <= tol))
                fail_msg("%s kv %d c %d: row %d value %d is %.9g, want %.9g",
                         cpu->b->what, layout, c, t, i, b[i], a[i]);
        }
    }
    /* each row alone: the same bytes, and the same query's latent */
    memcpy(want, x->norm, sizeof want);
    memset(oracle, 0x5a, x->p->bytes);
    kv.base = oracle;
    for (t = 0; t < ROWS; t++)
        run_prep(cpu, x, &kv, t, 1, exact ? 0 : 1e-6f, how >> 2, false);
    assert_memory_equal(oracle, own, x->p->bytes);
    assert_memory_equal(x->norm, want, sizeof want);
    free(own);
    prep_free(x);
}

static void ops_mla_prep_writes_the_oracles_pages(void **state)
{
    static const int32_t shape[][2] = {{512, 64}, {128, 32}, {64, 16}};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 137;
    int how;
    size_t i, j;

    (void)state;
    ops_each_body(cpu, 2) for (i = 0; i < 4; i++) for (j = 0; j < 3;
                                                       j++) for (how = 0; how < 8; how++)
        check_prep(&cpu, &ref, layouts[i], shape[j][0], shape[j][1], how, &seed);
    kern_close(&ref);
}

/* ---- dsa_prep ---------------------------------------------------------------------- */

enum { HI = 5, D = 64, TURN = 32 };

struct index_prep {
    struct latent_pool *p;
    struct kern_rows rows;
    float *q, *k, *gate, w[D], b[D], inv[TURN / 2];
};

static void run_index(struct kern *k, const struct index_prep *x, const struct mc_kv *kv,
                      int32_t t0, int32_t n, float eps, uint8_t pair, void *qi,
                      float *gates)
{
    struct kern_rows rows = x->rows;
    int32_t t;

    rows.live[MC_LIVE_ROWS] = n;
    for (t = 0; t < n; t++) {
        rows.pos[t] = x->rows.pos[t0 + t];
        rows.row_seq[t] = x->rows.row_seq[t0 + t];
    }
    kern_run(k, dsa_prep,
             {.rows = kern_view(&rows),
              .kv = *kv,
              .slots = x->p->slots,
              .index = 1,
              .hi = HI,
              .q = x->q + t0 * HI * D,
              .k = x->k + t0 * D,
              .gate = x->gate + t0 * HI,
              .k_norm = x->w,
              .k_bias = x->b,
              .eps = eps,
              .rope = {x->inv, 1, TURN, 0, pair},
              .qi = (uint8_t *)qi + t0 * HI * D * (kv->layout == MC_KV_F32 ? 4 : 1),
              .gates = gates + t0 * HI});
}

/* Queries and gates to the bit always; keys to the bit where their norm is exact. */
static void check_index(struct kern *cpu, struct kern *ref, uint16_t layout, bool exact,
                        uint8_t pair, uint64_t *seed)
{
    struct index_prep x = {.p = latent_new(layout, 64, 16, D, 0x5a)};
    struct mc_kv kv = x.p->kv;
    size_t each = layout == MC_KV_F32 ? 4 : 1, bytes = ROWS * HI * D * each;
    uint8_t *oracle = x.p->kv.base, *own = malloc(x.p->bytes);
    void *qi[2] = {malloc(bytes), malloc(bytes)};
    float gates[2][ROWS * HI], eps = exact ? 0 : 1e-6f;
    double a[D], b[D];
    int32_t t, i;

    x.p->slots[4].bad = MC_BAD_PAGE;
    kern_seq(&x.rows, 3, 700, 1, true);
    kern_seq(&x.rows, 2, 60, 70, false);
    kern_seq(&x.rows, 4, 0, 4, false);
    x.q = latent_randoms(ROWS * HI * D, 2, seed);
    x.k = latent_randoms(ROWS * D, 2, seed);
    x.gate = latent_randoms(ROWS * HI, 1, seed);
    for (i = 0; exact && i < ROWS * D; i++)
        x.k[i] = i % 2 ? -1 : 1; /* mean 0, variance 1 */
    for (i = 0; i < D; i++) {
        x.q[HI * D + i] *= 1e-6f; /* a head below the least scale */
        x.w[i] = kern_randn(seed);
        x.b[i] = kern_randn(seed);
    }
    latent_freqs(x.inv, TURN);
    memcpy(own, oracle, x.p->bytes);
    run_index(ref, &x, &kv, 0, ROWS, eps, pair, qi[0], gates[0]);
    kv.base = own;
    run_index(cpu, &x, &kv, 0, ROWS, eps, pair, qi[1], gates[1]);
    assert_memory_equal(qi[0], qi[1], bytes);
    assert_memory_equal(gates[0], gates[1], sizeof gates[0]);
    if (exact)
        assert_memory_equal(own, oracle, x.p->bytes);
    for (t = 0; t < ROWS - 4; t++) {
        latent_read_index(x.p, 1, t ? 2 : 3, x.rows.pos[t], a);
        x.p->kv.base = own;
        latent_read_index(x.p, 1, t ? 2 : 3, x.rows.pos[t], b);
        x.p->kv.base = oracle;
        for (i = 0; i < D; i++)
            assert_true(fabs(a[i] - b[i]) <=
                        (layout == MC_KV_F32 ? 4e-6 : 0x1.1p-3 * fabs(a[i]) + 1e-4));
    }
    memset(oracle, 0x5a, x.p->bytes); /* each row alone */
    kv.base = oracle;
    for (t = 0; t < ROWS; t++)
        run_index(cpu, &x, &kv, t, 1, eps, pair, qi[0], gates[0]);
    assert_memory_equal(oracle, own, x.p->bytes);
    assert_memory_equal(qi[0], qi[1], bytes);
    assert_memory_equal(gates[0], gates[1], sizeof gates[0]);
    free(qi[0]), free(qi[1]), free(own);
    free(x.q), free(x.k), free(x.gate);
    latent_free(x.p);
}

static void ops_dsa_prep_writes_the_oracles_keys(void **state)
{
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 139;
    size_t i;
    int how;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 4; i++)
            for (how = 0; how < 4; how++)
                check_index(&cpu, &ref, layouts[i], how & 1, (uint8_t)(how >> 1), &seed);
    kern_close(&ref);
}

/* ---- dsa_topk ---------------------------------------------------------------------- */

enum { KEYS = LAT_PITCH * MC_PAGE };

/* Small whole numbers, so that every sum is exact and many scores tie. */
static void put_keys(struct latent_pool *p, uint64_t *seed)
{
    const struct mc_kv *kv = &p->kv;
    int32_t s, i;

    for (s = 0; s < KEYS; s++) {
        uint8_t *page = kv->base + p->table[LAT_PITCH + s / 64] * kv->page_stride +
                        kv->index_off + kv->index_stride;
        float scale = (float)(1 + kern_rand(seed) % 2), x;

        for (i = 0; i < D; i++) {
            x = (float)(int32_t)(kern_rand(seed) % 5) - 2;
            if (kv->layout == MC_KV_F32)
                memcpy(page + (s % 64 * D + i) * 4, &x, 4);
            else
                page[s % 64 * D + i] = latent_to_e4m3(x);
        }
        if (kv->layout != MC_KV_F32)
            memcpy(page + 64 * D + s % 64 * 4, &scale, 4);
    }
}

static void run_topk(struct kern *k, const struct latent_pool *p,
                     const struct kern_rows *r, int32_t t0, int32_t topk, int32_t first,
                     const void *qi, const float *gates, int32_t *idx)
{
    struct mc_dsa_topk_p m = {
        .rows = kern_view(r), .kv = p->kv, .slots = p->slots, .index = 1, .hi = HI,
        .topk = topk, .context = KEYS, .first = first, .gates = gates + t0 * HI,
        .qi = (const uint8_t *)qi + t0 * HI * D * (p->kv.layout == MC_KV_F32 ? 4 : 1),
        .idx = idx + t0 * topk};
    struct mc_need need;
    const char *why = "";

    assert_int_equal(k->b->op[MC_OP_dsa_topk]->need(&m, &need, &why), 0);
    m.scratch = malloc(need.scratch + 1);
    kern_run(k, dsa_topk, m);
    free(m.scratch);
}

static void check_topk(struct kern *cpu, struct kern *ref, uint16_t layout, int32_t topk,
                       int32_t first, uint64_t *seed)
{
    static const int32_t at[] = {831, 64, 63, 600};
    struct latent_pool *p = latent_new(layout, 64, 16, D, 0xff);
    struct kern_rows r = {0};
    uint8_t q8[64 * HI * D];
    float q[64 * HI * D], gates[64 * HI];
    const void *qi = layout == MC_KV_F32 ? (const void *)q : q8;
    int32_t *want = malloc((size_t)(64 * topk) * 4),
            *got = malloc((size_t)(64 * topk) * 4);
    int32_t t, i, rows;

    put_keys(p, seed);
    for (i = 0; i < 64 * HI * D; i++) {
        q[i] = (float)(int32_t)(kern_rand(seed) % 3) - 1;
        q8[i] = latent_to_e4m3(q[i]);
    }
    for (i = 0; i < 64 * HI; i++)
        gates[i] = (float)(int32_t)(kern_rand(seed) % 5) - 2;
    for (i = 0; i < 4; i++)
        kern_seq(&r, 1, at[i], 1, true);
    kern_seq(&r, 3, 300, 2, false); /* bad */
    kern_seq(&r, 1, 790, 37, false);
    p->slots[3].bad = MC_BAD_PAGE;
    rows = r.live[MC_LIVE_ROWS];
    run_topk(ref, p, &r, 0, topk, first, qi, gates, want);
    run_topk(cpu, p, &r, 0, topk, first, qi, gates, got);
    for (t = 0; t < rows; t++)
        for (i = 0; i < topk; i++)
            if (got[t * topk + i] != want[t * topk + i])
                fail_msg("%s kv %d topk %d row %d: place %d has %d, want %d",
                         cpu->b->what, layout, topk, t, i, got[t * topk + i],
                         want[t * topk + i]);
    for (t = 0; t < rows; t++) {
        struct kern_rows solo = {0};

        kern_seq(&solo, r.slot[r.row_seq[t]], r.pos[t], 1, t % 2);
        run_topk(cpu, p, &solo, t, topk, first, qi, gates, got);
    }
    assert_memory_equal(got, want, (size_t)(rows * topk) * 4);
    free(want), free(got);
    latent_free(p);
}

static void ops_dsa_topk_takes_the_oracles_positions(void **state)
{
    static const int32_t topk[] = {1, 7, 64, 512, 1024};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 149;
    size_t i, j;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 4; i++)
            for (j = 0; j < 5; j++)
                check_topk(&cpu, &ref, layouts[i], topk[j], (int32_t)(i + j) % 2, &seed);
    kern_close(&ref);
}

/* ---- mtp_in ------------------------------------------------------------------------ */

static void check_mtp(struct kern *cpu, struct kern *ref, int32_t h, int32_t rows,
                      uint64_t *seed)
{
    size_t n = (size_t)(rows * h);
    float *emb = latent_randoms(n, 1, seed), *hid = latent_randoms(n, 5, seed);
    float *we = latent_randoms((size_t)h, 1, seed),
          *wh = latent_randoms((size_t)h, 1, seed);
    struct mc_act want = ops_act(MC_A_F32, rows, 2 * h),
                  got = ops_act(MC_A_F32, rows, 2 * h);
    struct mc_act i16 = ops_act(MC_A_I16, rows, 2 * h),
                  same = ops_act(MC_A_I16, rows, 2 * h);
    struct mc_mtp_in_p p = {.n_live = &rows,
                            .cap = rows,
                            .h = h,
                            .emb = emb,
                            .hidden = hid,
                            .enorm = we,
                            .hnorm = wh,
                            .eps = 1e-5f,
                            .act = want};
    float *x = want.x, *y = got.x, *one;
    int32_t i, t, single = 1;

    kern_run(ref, mtp_in, p);
    p.act = got;
    kern_run(cpu, mtp_in, p);
    for (i = 0; i < rows * 2 * h; i++)
        if (!(fabs((double)x[i] - y[i]) <= (h / 2.0 + 8) * OPS_U * fabsf(x[i])))
            fail_msg("%s mtp_in h %d: %.9g, want %.9g", cpu->b->what, h, y[i], x[i]);
    p.act = i16; /* its own norm, rounded as quant does */
    kern_run(cpu, mtp_in, p);
    kern_run(ref, quant, {.n_live = &rows, .cap = rows, .x = y, .act = same});
    assert_memory_equal(i16.x, same.x, n * 4);
    assert_memory_equal(i16.s, same.s, n * 2 / 32 * 4);
    assert_memory_equal(i16.bf, same.bf, n * 2 / 32 * 4);
    one = malloc((size_t)h * 8);
    for (t = 0; t < rows; t++) {
        p.n_live = &single;
        p.emb = emb + t * h;
        p.hidden = hid + t * h;
        p.act = (struct mc_act){.x = one, .k = 2 * h, .layout = MC_A_F32};
        kern_run(cpu, mtp_in, p);
        assert_memory_equal(one, y + t * 2 * h, (size_t)h * 8);
    }
    free(emb), free(hid), free(we), free(wh), free(one);
    ops_act_free(&want), ops_act_free(&got), ops_act_free(&i16), ops_act_free(&same);
}

static void ops_mtp_in_norms_as_the_oracle(void **state)
{
    static const int32_t h[] = {32, 96, 512, 4096}, rows[] = {1, 3, 9, 5};
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 151;
    size_t i;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 4; i++)
            check_mtp(&cpu, &ref, h[i], rows[i], &seed);
    kern_close(&ref);
}

/* ---- mla_attn with lists ----------------------------------------------------------- */

enum { H = 6, LAT = 128, KEY = 32, WIDE = LAT + KEY, TOPK = 300, DEC = 4 };

/* Rows of r (their queries and lists from row t0 on) into out [T][H*LAT]; parts begin as
 * NaNs. n_part is that of topk. */
static void run_lists(struct kern *k, const struct latent_pool *p,
                      const struct kern_rows *r, int32_t t0, const float *q,
                      const int32_t *idx, float *out)
{
    size_t parts = (size_t)(DEC * 2 + r->live[MC_LIVE_ROWS]) * H;
    float *o = malloc(parts * LAT * 4), *ml = malloc(parts * 8);

    memset(o, 0xff, parts * LAT * 4);
    memset(ml, 0xff, parts * 8);
    kern_run(k, mla_attn,
             {.rows = kern_view(r), .kv = p->kv, .slots = p->slots, .layer = 1, .h = H,
              .n_part = 2, .cap_decode = DEC, .scale = 0.1f, .q = q + t0 * H * WIDE,
              .idx = idx + t0 * TOPK, .topk = TOPK, .o = o, .ml = ml});
    kern_run(k, attn_merge,
             {.rows = kern_view(r),
              .h = H,
              .d = LAT,
              .n_part = 2,
              .cap_decode = DEC,
              .o = o,
              .ml = ml,
              .out = out + t0 * H * LAT});
    free(o), free(ml);
}

/* Some of the positions up to pos, rising: one in `of` or so. */
static void some_positions(int32_t *list, int32_t pos, uint32_t of, uint64_t *seed)
{
    int32_t n = 0, i;

    for (i = 0; i <= pos && n < TOPK; i++)
        if (kern_rand(seed) % of == 0)
            list[n++] = i;
    for (; n < TOPK; n++)
        list[n] = -1;
}

/* As the oracle, and the same bits alone, as decode or as prefill row. Tolerance as in
 * test_ops_attn.c: scores of 160 terms that sum to 60 at most, times 0.1. */
static void check_lists(struct kern *cpu, struct kern *ref, uint16_t layout,
                        uint64_t *seed)
{
    static const uint32_t of[] = {1, 2, 3, 50, 1000};
    struct latent_pool *p = latent_new(layout, LAT, KEY, 0, 0xff);
    struct kern_rows r = {0};
    int32_t rows, t, i;
    float *q, *want, *got;
    int32_t *idx;

    latent_fill(ref, p, 1, 1, 800, seed);
    p->slots[4].bad = MC_BAD_PAGE;
    kern_seq(&r, 1, 799, 1, true);
    kern_seq(&r, 1, 0, 1, true);
    kern_seq(&r, 4, 600, 1, true);
    kern_seq(&r, 1, 280, 41, false);
    rows = r.live[MC_LIVE_ROWS];
    q = latent_randoms((size_t)(rows * H * WIDE), 1, seed);
    want = malloc((size_t)(rows * H * LAT) * 4);
    got = malloc((size_t)(rows * H * LAT) * 4);
    idx = malloc((size_t)(rows * TOPK) * 4);
    for (t = 0; t < rows; t++)
        some_positions(idx + t * TOPK, r.pos[t], of[t % 5], seed);
    run_lists(ref, p, &r, 0, q, idx, want);
    run_lists(cpu, p, &r, 0, q, idx, got);
    for (i = 0; i < rows * H * LAT; i++)
        if (!(fabs((double)got[i] - want[i]) <= 2e-5))
            fail_msg("%s kv %d: row %d value %d is %.9g, want %.9g", cpu->b->what, layout,
                     i / (H * LAT), i % (H * LAT), got[i], want[i]);
    for (t = 0; t < rows; t++) {
        struct kern_rows solo = {0};

        kern_seq(&solo, r.slot[r.row_seq[t]], r.pos[t], 1, t % 2);
        run_lists(cpu, p, &solo, t, q, idx, want);
    }
    assert_memory_equal(want, got, (size_t)(rows * H * LAT) * 4);
    free(q), free(want), free(got), free(idx);
    latent_free(p);
}

static void ops_mla_attn_sees_the_oracles_lists(void **state)
{
    struct kern cpu, ref = kern_ref(1, -1);
    uint64_t seed = 157;
    size_t i;

    (void)state;
    ops_each_body (cpu, 2)
        for (i = 0; i < 4; i++)
            check_lists(&cpu, &ref, layouts[i], &seed);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(ops_every_backend_says_what_it_lacks),
    cmocka_unit_test(ops_mla_prep_writes_the_oracles_pages),
    cmocka_unit_test(ops_dsa_prep_writes_the_oracles_keys),
    cmocka_unit_test(ops_dsa_topk_takes_the_oracles_positions),
    cmocka_unit_test(ops_mtp_in_norms_as_the_oracle),
    cmocka_unit_test(ops_mla_attn_sees_the_oracles_lists),
};

MC_TEST_MAIN(tests)

/* test_cuda_step.c - pages, slots and sampling on emulated CUDA, against the host's
 * bodies on the same data.
 *
 * What moves bytes must leave the same bytes. Log-sum-exps are the same weights in
 * doubles summed in another order: an ulp of f32. Draws are by integer weights of 2^-44:
 * the same token, unless the draw falls within 1e-8 of a boundary, which these seeds do
 * not. */
#include "tests/c/test.h"

#include "tests/c/ops.h"

static struct kern cuda_open(void)
{
    struct mc_backend_opts o = {.ref_act = -1};
    const char *why = "";
    struct mc_backend *b = mc_cuda_open(&o, &why);

    return kern_open(b, why);
}

/* ---- pages ------------------------------------------------------------------------- */

enum { PAGES = 7, SLOTS = 4, PITCH = 3, VOCAB = 300 };

static struct mc_kv pool(uint8_t *base, int32_t *table, uint32_t *want, uint32_t *tag)
{
    struct mc_kv kv = {.base = base, .table = table, .want_tag = want, .tag = tag,
                       .pitch = PITCH, .n_page = PAGES, .n_slot = SLOTS, .hk = 1, .d = 32,
                       .n_layer = 1, .n_shard = 1, .layout = MC_KV_BF16};

    kv.layer_stride = mc_kv_layer_bytes(MC_KV_BF16, 1, 32);
    kv.page_stride = kv.layer_stride + 16;
    return kv;
}

static void cuda_pages_are_cleared_copied_and_checked(void **state)
{
    struct kern cu = cuda_open();
    uint32_t tag[PAGES] = {0}, want[SLOTS * PITCH] = {0}, list[2][2] = {{5, 77}, {1, 9}};
    int32_t table[SLOTS * PITCH] = {0}, n_list = 2, pages[2] = {1, 6};
    struct mc_kv kv = pool(NULL, table, want, tag);
    size_t n = (size_t)kv.page_stride;
    uint8_t *base = aligned_alloc(16, PAGES * n), *buf = aligned_alloc(16, 2 * n);
    struct kern_rows r = {0};
    struct mc_slot slots[SLOTS] = {0};

    (void)state;
    kv.base = base;
    for (size_t i = 0; i < PAGES * n; i++)
        base[i] = (uint8_t)(i / n * 16 + i % 13);
    kern_run(&cu, page_copy,
             {.kv = kv, .pages = pages, .n = 2, .buf = buf, .to_buf = true});
    assert_memory_equal(buf, base + n, n);
    assert_memory_equal(buf + n, base + 6 * n, n);
    kern_run(&cu, page_init,
             {.kv = kv, .list = &list[0][0], .n_list = &n_list, .cap = 3});
    for (size_t i = 0; i < PAGES * n; i++)
        assert_int_equal(base[i], i / n == 5 || i / n == 1 ? 0 : i / n * 16 + i % 13);
    assert_int_equal(tag[5], 77);
    assert_int_equal(tag[1], 9);
    kern_run(&cu, page_copy, {.kv = kv, .pages = pages, .n = 2, .buf = buf});
    assert_memory_equal(base + n, buf, n);
    /* slot 0 owns its pages, slot 1 has one with another's tag, slot 2 a hole past its
     * end */
    table[0] = 5, want[0] = 77, table[1] = 1, want[1] = 9;
    table[PITCH] = 5, want[PITCH] = 77, table[PITCH + 1] = 1, want[PITCH + 1] = 8;
    table[2 * PITCH] = 1, want[2 * PITCH] = 9, table[2 * PITCH + 1] = -1;
    table[3 * PITCH] = -1;
    kern_seq(&r, 0, 0, 128, false);
    kern_seq(&r, 1, 0, 65, false);
    kern_seq(&r, 2, 0, 64, false);
    kern_seq(&r, 3, 0, 1, false);
    kern_run(&cu, page_check, {.rows = kern_view(&r), .kv = kv, .slots = slots});
    for (int i = 0; i < SLOTS; i++)
        assert_int_equal(slots[i].bad, i % 2 ? MC_BAD_PAGE : 0);
    free(base), free(buf);
    kern_close(&cu);
}

/* A broken list stops the stream with a code instead of writing somewhere. */
static void cuda_broken_lists_are_faults(void **state)
{
    struct kern cu = cuda_open();
    uint32_t tag[PAGES] = {0}, want[SLOTS * PITCH] = {0}, list[2] = {PAGES, 1};
    int32_t table[SLOTS * PITCH] = {0}, n = 1;
    struct mc_page_init_p p = {.list = list, .n_list = &n, .cap = 1};

    (void)state;
    p.kv = pool(NULL, table, want, tag);
    assert_int_equal(mc_k_page_init(cu.b, cu.s, &p), 0);
    assert_int_equal(cu.b->wait(cu.s, cu.b->mark(cu.s)), MC_K_EINTERNAL);
    kern_close(&cu);
}

/* ---- slots ------------------------------------------------------------------------- */

struct device { /* what table_apply and commit change */
    int32_t table[SLOTS * PITCH];
    uint32_t want[SLOTS * PITCH], tag[PAGES];
    struct mc_slot slots[SLOTS];
    uint16_t counts[SLOTS * VOCAB];
    struct mc_bias bias[SLOTS * MC_MAX_BIAS];
    int32_t rows[8];
    struct mc_out ring[SLOTS];
};

static void apply(struct kern *k, struct device *d, const struct mc_delta *delta,
                  int32_t n, const struct mc_slot *in, const int32_t *rows)
{
    kern_run(k, table_apply,
             {.kv = pool(NULL, d->table, d->want, d->tag),
              .slots = d->slots,
              .counts = d->counts,
              .bias = d->bias,
              .vocab = VOCAB,
              .rows_from = rows,
              .rows_to = d->rows,
              .rows_bytes = 32,
              .delta = delta,
              .n_delta = n,
              .slots_in = in});
}

static void cuda_deltas_are_applied_in_order(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    struct device *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    struct mc_slot in[2] = {{.tok = 5,
                             .pos = 9,
                             .samp = {.rep = 2, .flags = MC_SAMP_PENALTY}},
                            {.tok = 7, .pos = 1, .samp = {.rep = 1}}};
    int32_t rows[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct mc_delta d[200];
    uint64_t seed = 5;

    (void)state;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 200; i++) {
            d[i] = (struct mc_delta){.what = (int32_t)(kern_rand(&seed) % 12),
                                     .slot = (int32_t)(kern_rand(&seed) % SLOTS),
                                     .at = (int32_t)(kern_rand(&seed) % PITCH),
                                     .tag = kern_rand(&seed),
                                     .value = (int32_t)(kern_rand(&seed) % PAGES)};
            if (d[i].what > MC_DELTA_TOK) /* the most frequent */
                d[i].what = d[i].what % 2 ? MC_DELTA_GEN : MC_DELTA_SEEN;
            if (d[i].what == MC_DELTA_SLOT)
                d[i].value %= 2;
        }
        apply(&ref, a, d, 200, in, rows);
        apply(&cu, b, d, 200, in, rows);
        assert_memory_equal(a, b, sizeof *a);
    }
    free(a), free(b);
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_commit_moves_slots(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    struct device *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    struct mc_out out[SLOTS];
    struct kern_rows r = {0};
    int32_t target[SLOTS] = {-1, -1, 12, -1};
    struct mc_rows rows;

    (void)state;
    memset(out, 0, sizeof out);
    for (int32_t i = 0; i < SLOTS; i++) {
        kern_seq(&r, i, 4, 1, true);
        out[i].slot = SLOTS - 1 - i;
        out[i].tok = i == 3 ? -1 : 10 + i;
        out[i].bad = i == 3 ? MC_BAD_LOGITS : 0;
        out[i].pos = 5 + i;
        out[i].cand_p[63] = (float)i;
        a->slots[i].samp.flags = MC_SAMP_PENALTY;
        a->counts[i * VOCAB + 10] = MC_COUNT_OUT;
    }
    memcpy(b, a, sizeof *a);
    rows = kern_view(&r);
    rows.target = target;
    kern_run(&ref, commit,
             {.rows = rows,
              .out = out,
              .slots = a->slots,
              .counts = a->counts,
              .vocab = VOCAB,
              .ring = a->ring});
    kern_run(&cu, commit,
             {.rows = rows,
              .out = out,
              .slots = b->slots,
              .counts = b->counts,
              .vocab = VOCAB,
              .ring = b->ring});
    assert_memory_equal(a, b, sizeof *a);
    free(a), free(b);
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_gathers_sampled_rows(void **state)
{
    struct kern cu = cuda_open();
    uint16_t in[5 * 72], out[5 * 72] = {0};
    struct kern_rows r = {0};

    (void)state;
    for (int i = 0; i < 5 * 72; i++)
        in[i] = (uint16_t)i;
    kern_seq(&r, 0, 9, 1, true);
    kern_seq(&r, 1, 0, 4, false);
    struct mc_rows rows = kern_view(&r);
    rows.cap_out = 5;
    kern_run(&cu, gather_rows, {.rows = rows, .norm = in, .h = 72, .out = out});
    assert_memory_equal(out, in, 144);
    assert_memory_equal(out + 72, in + 4 * 72, 144);
    assert_int_equal(out[144], 0);
    kern_close(&cu);
}

/* ---- logits ------------------------------------------------------------------------ */

#ifdef MC_SANITIZE
enum { ROUNDS = 2 }; /* 512 fibers a row are slow there */
#else
enum { ROUNDS = 12 };
#endif
enum { R = 6, V = 1000, REAL = 990 };

struct sampling {
    struct kern_rows r;
    struct mc_rows rows;
    float logits[R * V], raw[R * V], stat[R * 4], scratch[R * 64];
    uint16_t counts[R * V];
    struct mc_bias bias[R * MC_MAX_BIAS];
    uint32_t masks[2 * 32];
    int32_t eos[3], target[R];
    struct mc_slot slots[R];
    struct mc_out out[R];
};

static void fill(struct sampling *s, uint64_t *seed)
{
    memset(s, 0, sizeof *s);
    for (int32_t i = 0; i < R; i++)
        kern_seq(&s->r, i, (int32_t)(kern_rand(seed) % 500), 1, true);
    for (int32_t i = 0; i < R * V; i++) {
        s->logits[i] = 3 * kern_randn(seed);
        if (kern_rand(seed) % 5 == 0) /* ties */
            s->logits[i] = (float)(int32_t)s->logits[i];
        s->counts[i] = kern_rand(seed) % 9 ? 0
                                           : (uint16_t)(kern_rand(seed) % 3 |
                                                        (kern_rand(seed) % 2) << 15);
    }
    for (int32_t i = 0; i < 64; i++)
        s->masks[i] = kern_rand(seed) & kern_rand(seed) &
                      (i % 32 == 31 ? 0xff : ~0u); /* < V */
    for (int32_t i = 0; i < 3; i++)
        s->eos[i] = (int32_t)(kern_rand(seed) % V);
    for (int32_t i = 0; i < R; i++) {
        struct mc_samp *m = &s->slots[i].samp;

        s->target[i] = kern_rand(seed) % 8 ? -1 : 17;
        *m = (struct mc_samp){.temperature = (float)(kern_rand(seed) % 5) / 3,
                              .top_p = 1,
                              .rep = 1,
                              .seed_lo = kern_rand(seed),
                              .seed_hi = kern_rand(seed)};
        if (kern_rand(seed) % 2)
            m->top_p = 0.05f + (float)(kern_rand(seed) % 100) / 100 * 0.9f;
        if (kern_rand(seed) % 3 == 0)
            m->top_k = (int32_t)(kern_rand(seed) % 70);
        if (kern_rand(seed) % 3 == 0)
            m->min_p = (float)(kern_rand(seed) % 100) / 300;
        if (kern_rand(seed) % 2) {
            m->flags |= MC_SAMP_PENALTY;
            m->rep = 1.3f, m->presence = 0.5f, m->frequency = 0.25f;
        }
        m->flags |= kern_rand(seed) % 2 ? MC_SAMP_TOP | MC_SAMP_CANDS : 0;
        m->n_bias = (int32_t)(kern_rand(seed) % 4);
        for (int32_t j = 0; j < m->n_bias; j++)
            s->bias[i * MC_MAX_BIAS + j] =
                (struct mc_bias){(int32_t)(kern_rand(seed) % V), (float)j - 1};
        m->n_ban = (int32_t)(kern_rand(seed) % 3);
        m->ban[1] = 1;
        m->no_eos_until = (int32_t)(kern_rand(seed) % 2);
    }
    s->slots[R - 1].bad = kern_rand(seed) % 4 == 0;
    if (kern_rand(seed) % 3 == 0)
        s->logits[V + 5] = kern_rand(seed) % 2 ? NAN : INFINITY;
}

static void run_sampling(struct kern *k, struct sampling *s)
{
    s->rows = kern_view(&s->r);
    s->rows.cap_out = R;
    s->rows.target = s->target;
    kern_run(k, chain,
             {.rows = s->rows,
              .logits = s->logits,
              .raw = s->raw,
              .vocab = V,
              .n_real = REAL,
              .pitch = V,
              .slots = s->slots,
              .counts = s->counts,
              .bias = s->bias,
              .masks = s->masks,
              .eos = s->eos,
              .n_eos = 3,
              .stat = s->stat});
    kern_run(k, sample, {.rows = s->rows, .logits = s->logits, .raw = s->raw, .vocab = V,
                         .n_real = REAL, .pitch = V, .slots = s->slots, .stat = s->stat,
                         .out = s->out, .scratch = s->scratch});
}

static bool near(float a, float b)
{
    return (isnan(a) && isnan(b)) || a == b || fabsf(a - b) <= 4e-7f * (1 + fabsf(b));
}

static void same_out(const struct mc_out *a, const struct mc_out *b, int round)
{
    if (a->tok != b->tok || a->bad != b->bad || a->slot != b->slot || a->pos != b->pos)
        fail_msg("round %d: token %d bad %u, want %d bad %u", round, a->tok, a->bad,
                 b->tok, b->bad);
    assert_true(near(a->logprob, b->logprob) && near(a->raw_lse, b->raw_lse));
    assert_true(near(a->lse, b->lse) && fabsf(a->rest - b->rest) < 1e-5f);
    assert_int_equal(a->n_top, b->n_top);
    assert_int_equal(a->n_cand, b->n_cand);
    assert_memory_equal(a->top_id, b->top_id, sizeof a->top_id);
    assert_memory_equal(a->cand_id, b->cand_id, sizeof a->cand_id);
    for (int i = 0; i < a->n_top; i++)
        assert_true(near(a->top_logprob[i], b->top_logprob[i]));
    for (int i = 0; i < a->n_cand; i++)
        assert_true(near(a->cand_p[i], b->cand_p[i]) &&
                    a->cand_logit[i] == b->cand_logit[i]);
}

static void cuda_samples_what_the_host_samples(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    struct sampling *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    uint64_t seed = 71;

    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        fill(a, &seed);
        memcpy(b, a, sizeof *a);
        run_sampling(&ref, a);
        run_sampling(&cu, b);
        for (int32_t r = 0; r < R; r++) {
            for (int32_t i = 0; isfinite(a->stat[r * 4 + 2]) && i < V; i++)
                if (mc_bits_of_f32(a->logits[r * V + i]) !=
                    mc_bits_of_f32(b->logits[r * V + i]))
                    fail_msg("round %d row %d: logit %d is %.9g, want %.9g", round, r, i,
                             b->logits[r * V + i], a->logits[r * V + i]);
            for (int i = 0; i < 4; i++)
                if (!near(b->stat[r * 4 + i], a->stat[r * 4 + i]))
                    fail_msg("round %d row %d: stat[%d] is %.9g, want %.9g", round, r, i,
                             b->stat[r * 4 + i], a->stat[r * 4 + i]);
            same_out(&b->out[r], &a->out[r], round);
        }
    }
    free(a), free(b);
    kern_close(&cu);
    kern_close(&ref);
}

static void cuda_nll_of_targets(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    float x[3 * V], nll[2][3], lse[2][3];
    int32_t target[3] = {3, -1, REAL - 1}, n = 3;
    uint64_t seed = 73;

    (void)state;
    for (int i = 0; i < 3 * V; i++)
        x[i] = 4 * kern_randn(&seed);
    for (int i = 0; i < 2; i++)
        kern_run(i ? &cu : &ref, nll,
                 {.n_live = &n,
                  .cap = 3,
                  .vocab = V,
                  .n_real = REAL,
                  .pitch = V,
                  .logits = x,
                  .target = target,
                  .nll = nll[i],
                  .lse = lse[i]});
    for (int i = 0; i < 3; i++)
        assert_true(near(nll[1][i], nll[0][i]) && near(lse[1][i], lse[0][i]));
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_pages_are_cleared_copied_and_checked),
    cmocka_unit_test(cuda_broken_lists_are_faults),
    cmocka_unit_test(cuda_deltas_are_applied_in_order),
    cmocka_unit_test(cuda_commit_moves_slots),
    cmocka_unit_test(cuda_gathers_sampled_rows),
    cmocka_unit_test(cuda_samples_what_the_host_samples),
    cmocka_unit_test(cuda_nll_of_targets),
};

MC_TEST_MAIN(tests)

/* test_cuda_dsa.c - the indexer's operations, and MTP's input, on emulated CUDA against the
 * oracle. What is chosen must be the same to the position: scores are of small whole
 * numbers, exact in any order of sums, and many of them tie. */
#include "tests/c/test.h"

#include "kernels/host/kv.h"
#include "tests/c/cuda_help.h"
#include "tests/c/latent.h"

/* ---- the indexer ------------------------------------------------------------------- */

enum { INDEX = 1, ID = 64 };

static void cuda_dsa_prep_agrees_with_the_oracle(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 79;

    (void)state;
    for (uint8_t pair = 0; pair < 2; pair++) {
        struct latent_pool *p = latent_new(MC_KV_BF16, 128, 32, ID, 0x5a);
        uint8_t *pages = malloc(p->bytes), *base = p->kv.base, qi[2][12 * 5 * ID];
        struct kern_rows r = {0};
        float *qf, *kf, *gf, *w, *b, inv[16], gates[2][12 * 5];
        uint16_t *q = randoms(12 * 5 * ID, &qf, &seed), *k = randoms(12 * ID, &kf, &seed),
                 *g = randoms(12 * 5, &gf, &seed);
        int32_t off = 0;
        struct mc_dsa_prep_p m = {.kv = p->kv, .slots = p->slots, .index = INDEX, .hi = 5,
                                  .eps = 1e-6f, .rope = {inv, 1, 32, 0, pair}};

        free(randoms(ID, &w, &seed)), free(randoms(ID, &b, &seed));
        latent_freqs(inv, 32);
        kern_seq(&r, 3, 513, 1, true);
        kern_seq(&r, 2, 60, 8, false);
        kern_seq(&r, 4, 0, 3, false);
        p->slots[4].bad = MC_BAD_PAGE;
        m.rows = kern_view(&r);
        m.rows.cap = 13;
        m.k_norm = w, m.k_bias = b;
        memcpy(pages, base, p->bytes);
        m.q = qf, m.k = kf, m.gate = gf, m.qi = qi[0], m.gates = gates[0];
        kern_run(&ref, dsa_prep, m);
        m.kv.base = pages;
        m.q = q, m.k = k, m.gate = g, m.qi = qi[1], m.gates = gates[1];
        kern_run(&cu, dsa_prep, m);
        for (int32_t i = 0; i < 12 * 5; i++)
            assert_true(fabsf(gates[0][i] - gates[1][i]) <= 1e-5f * fabsf(gates[0][i]));
        for (int32_t i = 0; i < 12 * 5 * ID; i++) {
            float x = mc_f32_of_e4m3(qi[0][i]), y = mc_f32_of_e4m3(qi[1][i]);

            assert_true(fabsf(x - y) <= fabsf(x) / 7 + 0x1p-9f);
            off += x != y;
        }
        assert_true(off <= 12 * 5 * ID / 100);
        off = 0;
        for (size_t i = 0; i < p->bytes; i++)
            off += pages[i] != base[i];
        assert_true(off <= 9 * (4 + ID / 20)); /* the last bits of scales; the odd code */
        free(q), free(qf), free(k), free(kf), free(g), free(gf), free(w), free(b),
            free(pages);
        latent_free(p);
    }
    kern_close(&cu);
    kern_close(&ref);
}

/* Small whole numbers: every score is exact, and many are equal. */
static void fill_index(struct latent_pool *p, uint64_t *seed)
{
    for (int32_t slot = 0; slot < LAT_SLOT; slot++)
        for (int32_t pos = 0; pos < LAT_PITCH * MC_PAGE; pos++) {
            uint8_t *page = mc_index_page(&p->kv, INDEX, slot, pos),
                    *k = mc_index_key(&p->kv, page, pos);

            for (int32_t i = 0; i < ID; i++)
                k[i] = mc_e4m3_of_f32((float)(kern_rand(seed) % 5) - 2);
            *mc_index_scale(&p->kv, page, pos) = pos % 97 == 5 ? NAN : pos % 2 ? 1 : 0.5f;
        }
}

static void check_topk(struct kern *cu, struct kern *ref, int32_t hi, int32_t topk,
                       int32_t first, int32_t cap, uint64_t *seed)
{
    struct latent_pool *p = latent_new(MC_KV_FP8_656, 128, 32, ID, 0);
    struct kern_rows r = {0};
    int32_t rows, *idx[2];
    uint8_t *qi;
    float *gates;
    struct mc_dsa_topk_p m = {.kv = p->kv,
                              .slots = p->slots,
                              .index = INDEX,
                              .hi = hi,
                              .topk = topk,
                              .first = first,
                              .context = LAT_PITCH * MC_PAGE};
    struct mc_need need;
    const char *why;

    fill_index(p, seed);
    kern_seq(&r, 0, 831, 1, true);
    kern_seq(&r, 1, topk - 1 + first, 1, true);
    kern_seq(&r, 2, topk + first, 1, true);
    kern_seq(&r, 3, 600, 1, true);
    kern_seq(&r, 4, 254, 3, false);
    kern_seq(&r, 5, 700, 1, false);
    p->slots[5].bad = MC_BAD_PAGE;
    rows = r.live[MC_LIVE_ROWS];
    qi = malloc((size_t)(rows * hi * ID));
    gates = malloc((size_t)(rows * hi) * 4);
    for (int32_t i = 0; i < rows * hi * ID; i++)
        qi[i] = mc_e4m3_of_f32((float)(kern_rand(seed) % 3) - 1);
    for (int32_t i = 0; i < rows * hi; i++)
        gates[i] = (float)(kern_rand(seed) % 5) * 0.5f - 0.5f;
    m.rows = kern_view(&r);
    m.rows.cap = cap;
    m.qi = qi, m.gates = gates;
    for (int i = 0; i < 2; i++) {
        struct kern *k = i ? cu : ref;

        m.idx = idx[i] = malloc((size_t)(rows * topk) * 4);
        if (k->b->op[MC_OP_dsa_topk]->need(&m, memset(&need, 0, sizeof need), &why) != 0)
            fail_msg("dsa_topk: %s", why);
        m.scratch = malloc(need.scratch + 1);
        kern_run(k, dsa_topk, m);
        free(m.scratch);
    }
    for (int32_t i = 0; i < rows * topk; i++)
        if (idx[0][i] != idx[1][i])
            fail_msg("hi %d topk %d first %d cap %d row %d: entry %d is %d, want %d", hi,
                     topk, first, cap, i / topk, i % topk, idx[1][i], idx[0][i]);
    free(idx[0]), free(idx[1]), free(qi), free(gates);
    latent_free(p);
}

static void cuda_dsa_topk_picks_as_the_oracle(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 97;

    (void)state;
    check_topk(&cu, &ref, 4, 64, 0, 9, &seed);
    check_topk(&cu, &ref, 20, 64, 1, 80, &seed); /* a block a row */
    check_topk(&cu, &ref, 32, 37, 1, 9, &seed);
    check_topk(&cu, &ref, 1, 200, 0, 12, &seed);
    kern_close(&cu);
    kern_close(&ref);
}

/* ---- mtp_in ------------------------------------------------------------------------ */

static void cuda_mtp_in_norms_and_concatenates(void **state)
{
    struct kern cu = cuda_open(), ref = kern_ref(1, -1);
    uint64_t seed = 37;

    (void)state;
    for (int32_t h = 64; h <= 1104; h += 208) {
        int32_t rows = 3;
        float *ef, *hf, *we, *wh;
        uint16_t *e = randoms(rows * h, &ef, &seed), *x = randoms(rows * h, &hf, &seed);
        struct mc_act want = ops_act(MC_A_F32, rows, 2 * h),
                      got = ops_act(MC_A_BF16, rows, 2 * h);
        struct mc_mtp_in_p p = {.n_live = &rows,
                                .cap = rows,
                                .h = h,
                                .emb = ef,
                                .hidden = hf,
                                .eps = 1e-5f,
                                .act = want};

        free(randoms(h, &we, &seed)), free(randoms(h, &wh, &seed));
        p.enorm = we, p.hnorm = wh;
        kern_run(&ref, mtp_in, p);
        p.cap = 4, p.emb = e, p.hidden = x, p.act = got;
        kern_run(&cu, mtp_in, p);
        for (int32_t i = 0; i < rows * 2 * h; i++) {
            float y = ((float *)want.x)[i];

            assert_true(fabsf(as_f32(got.x, i) - y) <=
                        (BF + (float)h * OPS_U) * fabsf(y));
        }
        free(e), free(ef), free(x), free(hf), free(we), free(wh);
        ops_act_free(&want), ops_act_free(&got);
    }
    kern_close(&cu);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_dsa_prep_agrees_with_the_oracle),
    cmocka_unit_test(cuda_dsa_topk_picks_as_the_oracle),
    cmocka_unit_test(cuda_mtp_in_norms_and_concatenates),
};

MC_TEST_MAIN(tests)

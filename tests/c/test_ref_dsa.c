/* test_ref_dsa.c - the reference's indexer against its definition in double, and whole
 * pages of latents and indexes. */
#include "tests/c/test.h"

#include "tests/c/latent.h"

static const uint16_t layouts[] = {MC_KV_F32, MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};

enum { C = 64, R = 8, HI = 5, D = 48, TURN = 16 }; /* the first TURN dims are rotated */

/* ---- dsa_prep ---------------------------------------------------------------------- */

struct prep {
    struct latent_pool *p;
    struct kern_rows rows;
    float *q, *k, *gate, inv[TURN / 2], w[D], b[D];
    float qi[80 * HI * D], gates[80 * HI];
};

/* 76 rows: one deep in slot 3, 70 over pages of slot 2, 5 of a bad slot. */
static struct prep *prep_new(uint16_t layout, uint64_t *seed)
{
    struct prep *x = calloc(1, sizeof *x);
    int32_t i;

    x->p = latent_new(layout, C, R, D, 0x5a);
    x->p->slots[4].bad = MC_BAD_PAGE;
    kern_seq(&x->rows, 3, 513, 1, true);
    kern_seq(&x->rows, 2, 0, 70, false);
    kern_seq(&x->rows, 4, 0, 5, false);
    x->q = latent_randoms(76 * HI * D, 2, seed);
    x->k = latent_randoms(76 * D, 3, seed);
    x->gate = latent_randoms(76 * HI, 1, seed);
    for (i = 0; i < D; i++) {
        x->w[i] = kern_randn(seed);
        x->b[i] = kern_randn(seed);
    }
    latent_freqs(x->inv, TURN);
    return x;
}

static void prep_free(struct prep *x)
{
    latent_free(x->p);
    free(x->q), free(x->k), free(x->gate);
    free(x);
}

static struct mc_dsa_prep_p prep_params(struct prep *x, uint8_t pair)
{
    return (struct mc_dsa_prep_p){
        .rows = kern_view(&x->rows), .kv = x->p->kv, .slots = x->p->slots, .index = 1,
        .hi = HI, .q = x->q, .k = x->k, .gate = x->gate, .k_norm = x->w, .k_bias = x->b,
        .eps = 1e-6f, .rope = {x->inv, 1, TURN, 0, pair}, .qi = x->qi, .gates = x->gates};
}

/* Stored values against x [D] under `scale`: half a step, and 4e-6 that f32 may be off.
 */
static void check_rounded(const double *got, const double *x, bool f32, double scale)
{
    double top = 0;
    int32_t i;

    for (i = 0; i < D; i++)
        top = fmax(top, fabs(x[i]));
    if (!f32)
        assert_true(fabs(scale * 448 - fmax(top, 1e-4)) <= 1e-5 * fmax(top, 1e-4));
    for (i = 0; i < D; i++) {
        double tol = 4e-6 + (f32 ? 0 : 1.01 * fmax(0x1p-4 * fabs(x[i]), 0x1p-10 * scale));

        if (!(fabs(got[i] - x[i]) <= tol))
            fail_msg("value %d is %.9g, want %.9g +- %.3g", i, got[i], x[i], tol);
    }
}

static void check_key(struct prep *x, int32_t t, int32_t slot, const struct mc_rope *rope)
{
    const struct mc_kv *kv = &x->p->kv;
    int32_t pos = x->rows.pos[t], i;
    double want[D], got[D], mean = 0, var = 0;
    const uint8_t *scale = kv->base +
                           x->p->table[slot * LAT_PITCH + pos / 64] * kv->page_stride +
                           kv->index_off + kv->index_stride + 64 * D + 4 * (pos % 64);

    for (i = 0; i < D; i++)
        mean += x->k[t * D + i] / (double)D;
    for (i = 0; i < D; i++)
        var += (x->k[t * D + i] - mean) * (x->k[t * D + i] - mean) / D;
    for (i = 0; i < D; i++)
        want[i] = (x->k[t * D + i] - mean) / sqrt(var + 1e-6) * x->w[i] + x->b[i];
    latent_rope(want, rope, pos);
    latent_read_index(x->p, 1, slot, pos, got);
    check_rounded(got, want, kv->layout == MC_KV_F32, latent_f32(scale));
}

/* Undoes the write of a key and its scale in index 1. */
static void wipe_key(struct prep *x, int32_t slot, int32_t pos)
{
    const struct mc_kv *kv = &x->p->kv;
    uint8_t *page = kv->base +
                    x->p->table[slot * LAT_PITCH + pos / 64] * kv->page_stride +
                    kv->index_off + kv->index_stride;
    int32_t each = kv->layout == MC_KV_F32 ? 4 * D : D;

    memset(page + pos % 64 * each, 0x5a, (size_t)each);
    if (each == D)
        memset(page + 64 * D + 4 * (pos % 64), 0x5a, 4);
}

static void dsa_prep_norms_rotates_and_writes_keys(void **state)
{
    uint64_t seed = 107;
    size_t i;
    int32_t t, pair;

    (void)state;
    for (i = 0; i < 4; i++)
        for (pair = 0; pair < 2; pair++) {
            struct kern k = kern_ref(2, -1);
            struct prep *x = prep_new(layouts[i], &seed);
            struct latent_pool *same = latent_new(layouts[i], C, R, D, 0x5a);
            struct mc_dsa_prep_p p = prep_params(x, (uint8_t)pair);

            kern_run(&k, dsa_prep, p);
            for (t = 0; t < 71; t++)
                check_key(x, t, t ? 2 : 3, &p.rope);
            for (t = 0; t < 71; t++)
                wipe_key(x, t ? 2 : 3, x->rows.pos[t]);
            assert_memory_equal(x->p->kv.base, same->kv.base, same->bytes);
            latent_free(same);
            prep_free(x);
            kern_close(&k);
        }
}

/* Query and gate of head h of row t; the gate carries the query's scale. */
static void check_query(struct prep *x, int32_t t, int32_t h, const struct mc_rope *rope)
{
    int32_t at = t * HI + h, i;
    double want[D], got[D], gate = x->gate[at] / sqrt(HI) / sqrt(D), scale = 1;
    bool f32 = x->p->kv.layout == MC_KV_F32;

    for (i = 0; i < D; i++)
        want[i] = x->q[at * D + i];
    latent_rope(want, rope, x->rows.pos[t]);
    if (!f32)
        scale = x->gates[at] / gate;
    else
        assert_float_equal(x->gates[at], gate, 1e-6 * fabs(gate));
    for (i = 0; i < D; i++)
        got[i] = f32 ? x->qi[at * D + i]
                     : latent_e4m3(((uint8_t *)x->qi)[at * D + i]) * scale;
    check_rounded(got, want, f32, scale);
    if (f32 || x->rows.pos[t] != 0)
        return;
    for (scale = 1e-4f, i = 0; i < D; i++) /* not rotated: to the bit */
        scale = fmax(scale, fabs(want[i]));
    scale = (float)scale / 448;
    for (i = 0; i < D; i++)
        assert_int_equal(((uint8_t *)x->qi)[at * D + i],
                         latent_to_e4m3((float)want[i] / (float)scale));
}

static void dsa_prep_leaves_queries_and_gates(void **state)
{
    uint64_t seed = 109;
    size_t i;
    int32_t t, h, pair;

    (void)state;
    for (i = 0; i < 4; i++)
        for (pair = 0; pair < 2; pair++) {
            struct kern k = kern_ref(2, -1);
            struct prep *x = prep_new(layouts[i], &seed);
            struct mc_dsa_prep_p p = prep_params(x, (uint8_t)pair);

            for (h = 0; h < D; h++)
                x->q[HI * D + h] *= 1e-6f; /* row 1, head 0: below the least scale */
            kern_run(&k, dsa_prep, p);
            for (t = 0; t < 76; t++)
                for (h = 0; h < HI; h++)
                    check_query(x, t, h, &p.rope);
            prep_free(x);
            kern_close(&k);
        }
}

static void dsa_prep_refuses_what_the_pool_lacks(void **state)
{
    struct kern k = kern_ref(1, -1);
    uint64_t seed = 111;
    struct prep *x = prep_new(MC_KV_BF16, &seed);
    struct mc_dsa_prep_p p = prep_params(x, 0);

    (void)state;
    assert_null(kern_refuses(&k, dsa_prep, p));
    p.index = 2;
    assert_non_null(kern_refuses(&k, dsa_prep, p));
    p.index = 1;
    p.rope.off = 8;
    assert_non_null(kern_refuses(&k, dsa_prep, p));
    p.rope.off = 0;
    p.kv.index_stride -= 128;
    assert_non_null(kern_refuses(&k, dsa_prep, p));
    p.kv.index_stride += 128;
    p.kv.index_off -= 128;
    assert_non_null(kern_refuses(&k, dsa_prep, p));
    prep_free(x);
    kern_close(&k);
}

/* ---- dsa_topk ---------------------------------------------------------------------- */

enum { BLOCKS = 90 }; /* of a long context; they repeat the pages of slot 1 */

struct topk {
    struct kern k;
    struct latent_pool *p;
    int32_t table[LAT_SLOT * BLOCKS];
    float *qi, gates[64 * HI];
    uint64_t seed;
};

/* Keys of slot 1, queries and gates of as many rows, by dsa_prep. */
static void topk_fill(struct topk *x)
{
    struct prep *from = prep_new(x->p->kv.layout, &x->seed);
    struct mc_dsa_prep_p p = prep_params(from, 0);
    float *q = latent_randoms(KERN_T * HI * D, 1, &x->seed);
    float *k = latent_randoms(KERN_T * D, 1, &x->seed), *gates = malloc(KERN_T * HI * 4);
    struct kern_rows rows = {0};

    kern_seq(&rows, 1, 0, LAT_PITCH * MC_PAGE, false);
    p.rows = kern_view(&rows);
    p.kv = x->p->kv;
    p.slots = x->p->slots;
    p.q = q;
    p.k = k;
    p.gate = q;
    p.qi = x->qi;
    p.gates = gates;
    kern_run(&x->k, dsa_prep, p);
    memcpy(x->gates, gates, sizeof x->gates);
    free(q), free(k), free(gates);
    prep_free(from);
}

/* Slot 1: 5760 positions over 13 pages of 832 keys; queries and gates of 64 rows. */
static struct topk *topk_new(uint16_t layout, uint64_t seed)
{
    struct topk *x = calloc(1, sizeof *x);
    int32_t i;

    x->seed = seed;
    x->k = kern_ref(2, -1);
    x->p = latent_new(layout, C, R, D, 0xff);
    x->qi = calloc(KERN_T * HI * D, 4);
    topk_fill(x);
    for (i = 0; i < LAT_SLOT * BLOCKS; i++)
        x->table[i] = x->p->table[i / BLOCKS * LAT_PITCH + i % BLOCKS % LAT_PITCH];
    x->p->kv.table = x->table;
    x->p->kv.pitch = BLOCKS;
    return x;
}

static void topk_free(struct topk *x)
{
    latent_free(x->p);
    free(x->qi);
    kern_close(&x->k);
    free(x);
}

static void run_topk(struct topk *x, struct kern_rows *rows, int32_t topk, int32_t *idx)
{
    kern_run(&x->k, dsa_topk,
             {.rows = kern_view(rows), .kv = x->p->kv, .slots = x->p->slots, .index = 1,
              .hi = HI, .topk = topk, .context = BLOCKS * MC_PAGE, .qi = x->qi,
              .gates = x->gates, .idx = idx});
}

/* The scores of row t for the 832 keys; what they may be off. */
static double scores(const struct topk *x, int32_t t, double *score)
{
    bool f32 = x->p->kv.layout == MC_KV_F32;
    double key[D], size = 0;
    int32_t s, h, i;

    for (s = 0; s < LAT_PITCH * MC_PAGE; s++) {
        latent_read_index(x->p, 1, 1, s, key);
        for (score[s] = 0, h = 0; h < HI; h++) {
            int32_t at = (t * HI + h) * D;
            double dot = 0, top = 0;

            for (i = 0; i < D; i++) {
                double q = f32 ? x->qi[at + i] : latent_e4m3(((uint8_t *)x->qi)[at + i]);

                dot += q * key[i];
                top += fabs(q * key[i]);
            }
            score[s] += x->gates[t * HI + h] * (dot > 0 ? dot : 0);
            size = fmax(size, top * fabs(x->gates[t * HI + h]));
        }
    }
    return size * HI * (D + HI + 2) * 0x1p-24;
}

/* Rising, in range, n of them, -1 behind; none left out that is clearly better than one
 * that is in; of equal keys (832 positions apart) the first. */
static void check_set(const struct topk *x, int32_t t, int32_t pos, int32_t topk,
                      const int32_t *idx)
{
    enum { KEYS = LAT_PITCH * MC_PAGE };
    double score[KEYS], tol = scores(x, t, score), worst = INFINITY;
    bool in[BLOCKS * MC_PAGE] = {false};
    int32_t n = pos + 1 < topk ? pos + 1 : topk, i;

    for (i = 0; i < topk; i++)
        if (i < n)
            assert_true(idx[i] > (i ? idx[i - 1] : -1) && idx[i] <= pos);
        else
            assert_int_equal(idx[i], -1);
    for (i = 0; i < n; i++) {
        in[idx[i]] = true;
        worst = fmin(worst, score[idx[i] % KEYS]);
    }
    for (i = 0; i <= pos; i++) {
        if (!in[i] && score[i % KEYS] > worst + 2 * tol)
            fail_msg("pos %d topk %d: %d has %.9g, one that is in %.9g", pos, topk, i,
                     score[i % KEYS], worst);
        assert_true(in[i] || i + KEYS > pos || !in[i + KEYS]);
    }
}

static void dsa_topk_takes_the_best(void **state)
{
    static const int32_t pos[] = {0,  1,   30,  31,  32,   63,  64,
                                  65, 500, 831, 832, 3000, 5759};
    static const int32_t topk[] = {1, 2, 32, 64, 512, 1000};
    size_t i, j, s;

    (void)state;
    for (i = 0; i < 4; i++) {
        struct topk *x = topk_new(layouts[i], 113 + i);
        struct kern_rows rows = {0};
        int32_t *idx = malloc(13 * 1000 * sizeof *idx), *one = malloc(1000 * sizeof *one);

        for (s = 0; s < 13; s++)
            kern_seq(&rows, 1, pos[s], 1, s < 5);
        for (j = 0; j < 6; j++) {
            struct kern_rows solo = {0};

            memset(idx, 0x55, 13 * 1000 * sizeof *idx);
            run_topk(x, &rows, topk[j], idx);
            for (s = 0; s < 13; s++)
                check_set(x, (int32_t)s, pos[s], topk[j], idx + s * (size_t)topk[j]);
            kern_seq(&solo, 1, pos[0], 1, false); /* row 0 alone */
            run_topk(x, &solo, topk[j], one);
            assert_memory_equal(one, idx, (size_t)topk[j] * 4);
        }
        free(idx), free(one);
        topk_free(x);
    }
}

/* Scores of 0, of -0 (a negative gate) and equal ones: the lowest positions. */
static void dsa_topk_gives_ties_to_the_lowest_position(void **state)
{
    struct topk *x = topk_new(MC_KV_F32, 127);
    struct kern_rows rows = {0};
    int32_t idx[3 * 40], i, j;

    (void)state;
    kern_seq(&rows, 1, 700, 1, true);
    kern_seq(&rows, 1, 5000, 2, false);
    for (i = 0; i < 3 * HI; i++)
        x->gates[i] = i < HI ? 0 : i < 2 * HI ? -1 : 1;
    for (i = 0; i < 3 * HI * D; i++)
        x->qi[i] = i < 2 * HI * D ? 0 : x->qi[i];
    run_topk(x, &rows, 40, idx);
    for (i = 0; i < 2; i++)
        for (j = 0; j < 40; j++)
            assert_int_equal(idx[i * 40 + j], j);
    check_set(x, 2, 5001, 40, idx + 80); /* keys repeat: the first of each that is in */
    topk_free(x);
}

static void dsa_topk_of_a_bad_sequence_is_empty(void **state)
{
    struct topk *x = topk_new(MC_KV_BF16, 131);
    struct kern_rows rows = {0};
    int32_t idx[3 * 8], i;

    (void)state;
    x->p->slots[2].bad = MC_BAD_PAGE;
    kern_seq(&rows, 2, 300, 1, true);
    kern_seq(&rows, 1, 4, 1, true);
    kern_seq(&rows, 2, 2, 1, false);
    run_topk(x, &rows, 8, idx);
    for (i = 0; i < 24; i++)
        assert_int_equal(idx[i], i >= 8 && i < 13 ? i - 8 : -1);
    topk_free(x);
}

/* ---- pages ------------------------------------------------------------------------- */

/* A page with its latents and indexes: cleared, moved, checked as a whole. */
static void dsa_pages_move_with_their_indexes(void **state)
{
    struct kern k = kern_ref(2, -1);
    struct latent_pool *p = latent_new(MC_KV_FP8_656, C, R, D, 0);
    const struct mc_kv *kv = &p->kv;
    size_t each = (size_t)kv->page_stride, i;
    uint8_t *buf = malloc(2 * each);
    int32_t out[] = {40, 3}, in[] = {7, 8}, one = 1;
    uint32_t list[] = {40, 0xabcd};
    struct kern_rows rows = {0};
    struct mc_slot *slots = p->slots;

    (void)state;
    for (i = 0; i < p->bytes; i++)
        kv->base[i] = (uint8_t)(i * 2654435761u >> 13);
    kern_run(&k, page_copy,
             {.kv = *kv, .pages = out, .n = 2, .buf = buf, .to_buf = true});
    kern_run(&k, page_copy, {.kv = *kv, .pages = in, .n = 2, .buf = buf});
    assert_memory_equal(kv->base + 7 * each, kv->base + 40 * each, each);
    assert_memory_equal(kv->base + 8 * each, kv->base + 3 * each, each);
    kern_run(&k, page_init, {.kv = *kv, .list = list, .n_list = &one, .cap = 1});
    for (i = 0; i < each; i++)
        assert_int_equal(kv->base[40 * each + i], 0);
    assert_true(kv->base[41 * each + 1] != 0 && kv->base[40 * each - 2] != 0);
    assert_int_equal(p->tag[40], 0xabcd);

    kern_seq(&rows, 1, 100, 1, true); /* two pages of slot 1, three of slot 2 */
    kern_seq(&rows, 2, 129, 1, true);
    p->want[2 * LAT_PITCH + 2] = 9;
    p->want[LAT_PITCH + 2] = 9; /* beyond its context */
    kern_run(&k, page_check, {.rows = kern_view(&rows), .kv = *kv, .slots = slots});
    assert_true(slots[1].bad == 0 && slots[2].bad == MC_BAD_PAGE);
    assert_non_null(
        kern_refuses(&k, page_init, {.kv = {.c = C, .r = R, .layout = MC_KV_FP8}}));
    latent_free(p);
    free(buf);
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(dsa_prep_norms_rotates_and_writes_keys),
    cmocka_unit_test(dsa_prep_leaves_queries_and_gates),
    cmocka_unit_test(dsa_prep_refuses_what_the_pool_lacks),
    cmocka_unit_test(dsa_topk_takes_the_best),
    cmocka_unit_test(dsa_topk_gives_ties_to_the_lowest_position),
    cmocka_unit_test(dsa_topk_of_a_bad_sequence_is_empty),
    cmocka_unit_test(dsa_pages_move_with_their_indexes),
};

MC_TEST_MAIN(tests)

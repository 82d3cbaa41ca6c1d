/* test_verify.c - drafts stand as far as the model would have drawn them itself. */
#include "tests/c/test.h"

#include "tests/c/kern.h"

enum { V = 97, MOST = 5 };

/* A sequence of 1 + n_draft sampled rows at position `pos`. */
static void draft(struct kern_rows *r, int32_t slot, int32_t pos, const int32_t *ids,
                  int32_t n)
{
    int32_t t = r->live[MC_LIVE_ROWS];

    kern_seq(r, slot, pos, 1 + n, false);
    r->live[MC_LIVE_OUT]--;
    for (int32_t i = 0; i <= n; i++) {
        r->out_row[r->live[MC_LIVE_OUT]++] = t + i;
        if (i > 0)
            r->tok[t + i] = ids[i - 1];
    }
}

static void verify(struct kern *k, const struct kern_rows *r, const struct mc_out *out,
                   int32_t *accepted, int32_t *next)
{
    kern_run(k, verify, {kern_view(r), out, accepted, next});
}

static void verify_stops_at_the_first_wrong_draft(void **state)
{
    static const int32_t ids[] = {7, 8, 9};
    struct kern k = kern_ref(1, -1);
    struct kern_rows r = {0};
    struct mc_out out[KERN_T] = {0};
    int32_t accepted[KERN_S], next[KERN_S];
    const int32_t drawn[] = {4,  7, 8, 9, 5,  7, 3, 9, 6,  1,  7, -1, 9, 5,  -1, 8, 9, 5};

    (void)state;
    draft(&r, 0, 10, NULL, 0);
    draft(&r, 3, 20, ids, 3); /* all stand */
    draft(&r, 1, 30, ids, 3); /* the second is wrong: the third is right by chance */
    kern_seq(&r, 2, 40, 2, false); /* the last row of a prompt */
    draft(&r, 5, 50, ids, 3); /* bad logits behind the first */
    draft(&r, 4, 60, ids, 3); /* bad from the start */
    for (size_t i = 0; i < sizeof drawn / sizeof *drawn; i++)
        out[i].tok = drawn[i];
    verify(&k, &r, out, accepted, next);
    assert_memory_equal(accepted, ((int32_t[]){0, 3, 1, 0, 1, 0}), 6 * sizeof *accepted);
    assert_memory_equal(next, ((int32_t[]){4, 5, 3, 1, -1, -1}), 6 * sizeof *next);
    kern_close(&k);
}

static void verify_of_no_rows_has_no_tokens(void **state)
{
    struct kern k = kern_ref(1, -1);
    struct kern_rows r = {0};
    struct mc_out out[1] = {{.tok = 3}};
    int32_t accepted[2] = {9, 9}, next[2] = {9, 9};

    (void)state;
    kern_seq(&r, 0, 0, 4, false); /* a chunk that ends inside a prompt */
    r.live[MC_LIVE_OUT] = 0;
    verify(&k, &r, out, accepted, next);
    assert_int_equal(accepted[0], 0);
    assert_int_equal(next[0], -1);
    assert_int_equal(next[1], 9);
    assert_non_null(kern_refuses(&k, verify, {kern_view(&r), NULL, accepted, next}));
    kern_close(&k);
}

/* What a step draws behind each of 1 + n rows, the first at position pos. */
static void draw(struct kern *k, const float *logits, const struct mc_slot *slots,
                 int32_t pos, const int32_t *ids, int32_t n, struct mc_out *out,
                 struct kern_rows *r)
{
    float copy[(MOST + 1) * V], stat[(MOST + 1) * 4];
    uint16_t counts[V] = {0};
    struct mc_bias bias[MC_MAX_BIAS];
    float scratch[64];

    *r = (struct kern_rows){0};
    draft(r, 0, pos, ids, n);
    memcpy(copy, logits, (size_t)(n + 1) * V * sizeof *copy);
    kern_run(k, chain, {.rows = kern_view(r), .logits = copy, .raw = copy, .vocab = V,
                        .n_real = V, .pitch = V, .slots = slots, .counts = counts,
                        .bias = bias, .stat = stat});
    kern_run(k, sample, {.rows = kern_view(r), .logits = copy, .raw = copy, .vocab = V,
                         .n_real = V, .pitch = V, .slots = slots, .stat = stat, .out = out,
                         .scratch = scratch});
}

static void verify_gives_the_tokens_of_a_run_without_drafts(void **state)
{
    struct kern k = kern_ref(1, -1);
    uint64_t seed = 5;

    (void)state;
    for (int32_t trial = 0; trial < 200; trial++) {
        struct mc_slot slot = {.samp = {.temperature = trial % 2 ? 1 : 0, .top_p = 1, .rep = 1,
                                        .seed_lo = (uint32_t)trial}};
        int32_t right = trial % (MOST + 1), ids[MOST + 1], drafts[MOST];
        int32_t accepted[KERN_S], next[KERN_S];
        float logits[(MOST + 1) * V];
        struct mc_out out[KERN_T];
        struct kern_rows r;

        for (int32_t i = 0; i < (MOST + 1) * V; i++)
            logits[i] = 2 * kern_randn(&seed);
        for (int32_t i = 0; i <= MOST; i++) {
            draw(&k, logits + i * V, &slot, 40 + i, NULL, 0, out, &r);
            ids[i] = out[0].tok;
        }
        memcpy(drafts, ids, sizeof drafts);
        if (right < MOST)
            drafts[right] = (ids[right] + 1) % V;
        draw(&k, logits, &slot, 40, drafts, MOST, out, &r);
        verify(&k, &r, out, accepted, next);
        assert_int_equal(accepted[0], right);
        assert_int_equal(next[0], ids[right]);
    }
    kern_close(&k);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(verify_stops_at_the_first_wrong_draft),
    cmocka_unit_test(verify_of_no_rows_has_no_tokens),
    cmocka_unit_test(verify_gives_the_tokens_of_a_run_without_drafts),
};
MC_TEST_MAIN(tests)

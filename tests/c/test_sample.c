/* test_sample.c - chain, sample, nll: the order of processing, exact draws, bad rows. */
#include "tests/c/test.h"

#include "tests/c/kern.h"

/* One sampled row a slot. */
struct fix {
    struct kern k;
    int32_t n, vocab, n_real, pitch;
    struct kern_rows r;
    struct mc_slot slots[KERN_S];
    struct mc_bias *bias;
    uint16_t *counts;
    uint32_t *masks; /* two sets */
    int32_t eos[2];
    float *logits, *raw, stat[KERN_S * 4];
    struct mc_out out[KERN_S], ring[KERN_S];
    void *scratch;
};

static const struct mc_samp PLAIN = {.temperature = 1, .top_p = 1, .rep = 1};
static const struct mc_samp GREEDY = {.temperature = 0, .top_p = 1, .rep = 1};

static struct fix *fix_new(int32_t n, int32_t n_real, int32_t vocab)
{
    struct fix *f = calloc(1, sizeof *f);
    int32_t i;

    f->k = kern_ref(2, -1);
    f->n = n;
    f->n_real = n_real;
    f->vocab = vocab;
    f->pitch = vocab + 3;
    f->bias = calloc((size_t)n * MC_MAX_BIAS, sizeof *f->bias);
    f->counts = calloc((size_t)(n * vocab), sizeof *f->counts);
    f->masks = calloc((size_t)(2 * ((vocab + 31) / 32)), sizeof *f->masks);
    f->logits = calloc((size_t)(n * f->pitch), sizeof *f->logits);
    f->raw = calloc((size_t)(n * f->pitch), sizeof *f->raw);
    f->eos[0] = f->eos[1] = -1;
    for (i = 0; i < n; i++) {
        kern_seq(&f->r, i, 10 * i + 4, 1, true);
        f->slots[i].samp = PLAIN;
    }
    return f;
}

static void fix_free(struct fix *f)
{
    kern_close(&f->k);
    free(f->bias);
    free(f->counts);
    free(f->masks);
    free(f->logits);
    free(f->raw);
    free(f->scratch);
    free(f);
}

static float *row(struct fix *f, int32_t r)
{
    return f->logits + r * f->pitch;
}

static void chain(struct fix *f)
{
    kern_run(&f->k, chain,
             {kern_view(&f->r), f->logits, f->raw, f->vocab, f->n_real, f->pitch, f->slots,
              f->counts, f->bias, f->masks, f->eos, 2, f->stat, {0}});
}

static void sample(struct fix *f)
{
    struct mc_sample_p p = {kern_view(&f->r), f->logits, f->raw, f->vocab, f->n_real,
                            f->pitch, f->slots, f->stat, f->out, NULL, {0}};
    struct mc_need need = {0};
    const char *why;

    p.rows.cap_out = f->n;
    f->k.b->op[MC_OP_sample]->need(&p, &need, &why);
    if (!f->scratch)
        f->scratch = malloc(need.scratch);
    p.scratch = f->scratch;
    kern_run(&f->k, sample, p);
}

static void fill(struct fix *f, float size, uint64_t seed)
{
    int32_t r, i;

    for (r = 0; r < f->n; r++)
        for (i = 0; i < f->vocab; i++)
            row(f, r)[i] = size * kern_randn(&seed);
}

/* ---- chain ------------------------------------------------------------------------- */

static void chain_takes_raw_first_and_masks_padding(void **state)
{
    struct fix *f = fix_new(1, 4, 6);
    static const float x[] = {1, 2, 3, -1, 100, NAN};
    double lse = log(exp(1) + exp(2) + exp(3) + exp(-1));

    (void)state;
    memcpy(row(f, 0), x, sizeof x);
    chain(f);
    assert_memory_equal(f->raw, x, 16);
    assert_memory_equal(row(f, 0), x, 16); /* temperature 1: nothing else changes */
    assert_true(row(f, 0)[4] == -INFINITY && row(f, 0)[5] == -INFINITY);
    assert_true(f->stat[0] == 3 && f->stat[2] == 3);
    assert_float_equal(f->stat[1], lse, 1e-6);
    assert_float_equal(f->stat[3], lse, 1e-6);
    fix_free(f);
}

static void chain_order_is_bias_bans_penalties_temperature(void **state)
{
    struct fix *f = fix_new(2, 8, 8);
    struct mc_samp *s = &f->slots[1].samp;
    static const float x[] = {1, 2, 3, 4, -5, 6, 7, 8};
    float *y = row(f, 1);
    double lse;
    int i;

    (void)state;
    memcpy(row(f, 0), x, sizeof x);
    memcpy(y, x, sizeof x);
    *s = (struct mc_samp){.temperature = 0.5f, .top_p = 1, .rep = 2, .presence = 0.25f,
                          .frequency = 0.5f, .flags = MC_SAMP_PENALTY, .n_bias = 2,
                          .n_ban = 1, .ban = {1}, .no_eos_until = 5};
    f->bias[MC_MAX_BIAS] = (struct mc_bias){0, 10};
    f->bias[MC_MAX_BIAS + 1] = (struct mc_bias){7, -20};
    f->masks[1] = 1 << 6; /* set 1 */
    f->eos[0] = 5;
    f->slots[1].n_gen = 4;
    f->counts[8 + 0] = 3;          /* generated three times */
    f->counts[8 + 1] = 0x8000;     /* in the prompt only */
    f->counts[8 + 4] = 0x8000 | 1; /* both; negative */
    f->counts[8 + 5] = 1;          /* masked already */
    chain(f);
    assert_memory_equal(row(f, 0), x, sizeof x); /* another row's wishes */
    assert_memory_equal(f->raw + f->pitch, x, sizeof x);
    assert_true(y[0] == (11 / 2.0f - 0.25f - 1.5f) / 0.5f);
    assert_true(y[1] == 1 / 0.5f);
    assert_true(y[2] == 6 && y[3] == 8);
    assert_true(y[4] == (-10 - 0.75f) / 0.5f);
    assert_true(y[5] == -INFINITY && y[6] == -INFINITY);
    assert_true(y[7] == -24);
    assert_true(f->stat[4] == 8 && f->stat[6] == 8);
    for (lse = 0, i = 0; i < 8; i++)
        lse += exp(y[i]);
    assert_float_equal(f->stat[5], log(lse), 1e-6);

    memcpy(y, x, sizeof x); /* enough generated: eos is free */
    f->slots[1].n_gen = 5;
    f->counts[8 + 5] = 0;
    chain(f);
    assert_true(y[5] == 12);
    s->temperature = 0; /* greedy: no division */
    memcpy(y, x, sizeof x);
    chain(f);
    assert_true(y[5] == 6);
    fix_free(f);
}

static void chain_penalises_each_counted_id(void **state)
{
    struct fix *f = fix_new(1, 39, 43);
    int32_t i, j;

    (void)state;
    f->slots[0].samp.flags = MC_SAMP_PENALTY;
    f->slots[0].samp.presence = 2;
    for (i = 0; i < 39; i++) {
        memset(row(f, 0), 0, 39 * sizeof(float));
        f->counts[i] = 1;
        chain(f);
        for (j = 0; j < 39; j++)
            assert_true(row(f, 0)[j] == (i == j ? -2 : 0));
        f->counts[i] = 0;
    }
    fix_free(f);
}

static void chain_and_sample_mark_bad_rows(void **state)
{
    struct fix *f = fix_new(6, 100, 100);
    int32_t r;

    (void)state;
    fill(f, 1, 3);
    row(f, 0)[57] = NAN;
    row(f, 1)[99] = INFINITY;
    for (r = 0; r < 100; r++)
        row(f, 2)[r] = -INFINITY;
    f->slots[3].samp.n_ban = 1; /* all banned */
    memset(f->masks, 0xFF, 12);
    f->masks[3] = 0xF;
    f->slots[4].bad = MC_BAD_PAGE;
    for (r = 0; r < 6; r++)
        f->slots[r].samp.flags = MC_SAMP_TOP | MC_SAMP_CANDS;
    chain(f);
    assert_true(isnan(f->stat[0]) && isnan(f->stat[4]));
    sample(f);
    for (r = 0; r < 5; r++) {
        assert_int_equal(f->out[r].slot, r);
        assert_int_equal(f->out[r].tok, -1);
        assert_int_equal(f->out[r].bad, r == 4 ? MC_BAD_PAGE : MC_BAD_LOGITS);
        assert_int_equal(f->out[r].n_top + f->out[r].n_cand, 0);
    }
    assert_true(f->out[5].tok >= 0 && f->out[5].bad == 0);
    assert_int_equal(f->out[5].pos, 55);
    fix_free(f);
}

static void nll_is_lse_minus_target(void **state)
{
    struct kern k = kern_ref(1, -1);
    float x[] = {1, 2, 3, 99, 0, 0, 0, 99, 5, NAN, 5, 99}, nll[3], lse[3];
    int32_t live = 3, target[] = {1, -1, 0};

    (void)state;
    kern_run(&k, nll, {&live, 3, 4, 3, 4, x, target, nll, lse});
    assert_float_equal(lse[0], log(exp(1) + exp(2) + exp(3)), 1e-6);
    assert_float_equal(nll[0], log(exp(1) + exp(2) + exp(3)) - 2, 1e-6);
    assert_true(nll[1] == 0 && lse[1] == 0);
    assert_true(isnan(nll[2]));
    kern_close(&k);
}

/* ---- greedy ------------------------------------------------------------------------ */

static void sample_greedy_takes_the_lowest_id_on_ties(void **state)
{
    struct fix *f = fix_new(2, 5000, 5000);

    (void)state;
    f->slots[0].samp = f->slots[1].samp = GREEDY;
    fill(f, 1, 5);
    row(f, 0)[4321] = row(f, 0)[77] = 9;
    row(f, 1)[4999] = 9;
    chain(f);
    sample(f);
    assert_int_equal(f->out[0].tok, 77);
    assert_int_equal(f->out[1].tok, 4999);
    assert_float_equal(f->out[1].logprob, 9 - f->stat[7], 1e-6);
    assert_float_equal(f->out[1].raw_lse, f->stat[7], 1e-6);
    fix_free(f);
}

/* Tiny temperatures and nuclei are greedy, and so is top_k 1. */
static void sample_tiny_values_are_greedy(void **state)
{
    static const float temperature[] = {1e-3f, 1e-5f, 1e-30f, 1e-45f, 0};
    static const float top_p[] = {1e-9f, 1e-4f, 0};
    struct fix *f = fix_new(10, 2000, 2000);
    int32_t r;

    (void)state;
    for (r = 0; r < 5; r++)
        f->slots[r].samp.temperature = temperature[r];
    for (r = 5; r < 8; r++)
        f->slots[r].samp.top_p = top_p[r - 5];
    f->slots[8].samp.top_k = 1;
    f->slots[9].samp.min_p = 1;
    fill(f, 30, 11);
    for (r = 1; r < 10; r++)
        memcpy(row(f, r), row(f, 0), 2000 * sizeof(float));
    chain(f);
    sample(f);
    for (r = 0; r < 10; r++)
        assert_int_equal(f->out[r].tok, f->out[4].tok);
    fix_free(f);
}

/* What the front should have refused: a token or a bad row, never anything else. */
static void sample_survives_senseless_settings(void **state)
{
    static const float odd[] = {-INFINITY, -1, 0, 1e-40f, 1.5f, INFINITY, NAN};
    struct fix *f = fix_new(1, 3000, 3000);
    struct mc_samp *s = &f->slots[0].samp;
    int a, b, c, k;

    (void)state;
    for (a = 0; a < 7; a++)
        for (b = 0; b < 7; b++)
            for (c = 0; c < 7; c++)
                for (k = 0; k < 2; k++) {
                    *s = PLAIN;
                    s->temperature = odd[a];
                    s->top_p = odd[b];
                    s->min_p = odd[c];
                    s->top_k = k * 5;
                    fill(f, 1, 19);
                    row(f, 0)[7] = -INFINITY;
                    chain(f);
                    sample(f);
                    assert_in_range(f->out[0].tok + 1, 0, 3000);
                    assert_int_equal(f->out[0].tok < 0, f->out[0].bad != 0);
                }
    fix_free(f);
}

/* Many bans and a greedy row among random ones: as when it is alone. */
static void sample_greedy_row_ignores_its_batch(void **state)
{
    struct fix *f = fix_new(8, 1000, 1000), *g = fix_new(1, 1000, 1000);
    int32_t i;

    (void)state;
    f->slots[3].samp = g->slots[0].samp = GREEDY;
    f->slots[3].samp.n_bias = g->slots[0].samp.n_bias = 500;
    for (i = 0; i < 500; i++)
        f->bias[3 * MC_MAX_BIAS + i] = g->bias[i] = (struct mc_bias){2 * i, -100};
    fill(f, 3, 17);
    memcpy(row(g, 0), row(f, 3), 1000 * sizeof(float));
    chain(f);
    chain(g);
    sample(f);
    sample(g);
    assert_int_equal(f->out[3].tok, g->out[0].tok);
    assert_int_equal(g->out[0].tok % 2, 1);
    assert_memory_equal(&f->out[3].logprob, &g->out[0].logprob, sizeof(float));
    fix_free(f);
    fix_free(g);
}

/* ---- draws ------------------------------------------------------------------------- */

static void sample_top_k_off_values_are_one_thing(void **state)
{
    static const int32_t top_k[] = {0, -1, 3000, 3001, 2147483647};
    struct fix *f = fix_new(5, 3000, 3000);
    int32_t r, i;

    (void)state;
    fill(f, 1, 23);
    for (r = 0; r < 5; r++) {
        memcpy(row(f, r), row(f, 0), 3000 * sizeof(float));
        f->slots[r].samp.top_k = top_k[r];
        f->r.pos[r] = 100;
    }
    chain(f);
    for (i = 0; i < 50; i++) {
        for (r = 0; r < 5; r++)
            f->slots[r].samp.seed_lo = (uint32_t)i;
        sample(f);
        for (r = 1; r < 5; r++)
            assert_int_equal(f->out[r].tok, f->out[0].tok);
    }
    fix_free(f);
}

/* The set that may be drawn from and its probabilities, by a full sort in double. */
static void expect(struct fix *f, int32_t r, double *p)
{
    const struct mc_samp *s = &f->slots[r].samp;
    const float *x = row(f, r);
    int32_t n = f->n_real, *order = malloc((size_t)n * sizeof *order), i, j, m = n;
    double sum = 0, part = 0;

    for (i = 0; i < n; i++) {
        for (j = i; j > 0 && x[order[j - 1]] < x[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    if (s->top_k > 0 && s->top_k < n)
        m = s->top_k;
    for (i = 0; i < n; i++)
        p[i] = exp((double)x[i] - x[order[0]]);
    for (i = 0; i < m; i++)
        sum += p[order[i]];
    for (i = 0; i < m && part < s->top_p * sum; i++)
        part += p[order[i]];
    m = s->top_p < 1 ? i : m;
    while (m > 1 && p[order[m - 1]] < s->min_p)
        m--;
    for (i = m; i < n; i++)
        p[order[i]] = 0;
    for (sum = 0, i = 0; i < n; i++)
        sum += p[i];
    for (i = 0; i < n; i++)
        p[i] /= sum;
    free(order);
}

/* Draws of one setting against the expected distribution: no impossible id, and chi-square
 * over cells of at least 20 expected. Seeds are fixed, so a pass stays a pass; the bound is
 * 5 standard deviations of chi-square. */
static void check_draws(int32_t n, float size, struct mc_samp samp)
{
    struct fix *f = fix_new(16, n, n + 5);
    double *p = malloc((size_t)n * sizeof *p), chi = 0, e = 0, bound;
    int32_t *hits = calloc((size_t)n, sizeof *hits), r, i, cells = 0, got = 0;
    int32_t draws = n < 1000 ? 3200 : 960;

    fill(f, size, (uint64_t)n + 1);
    for (r = 0; r < 16; r++) {
        memcpy(row(f, r), row(f, 0), (size_t)n * sizeof(float));
        f->slots[r].samp = samp;
    }
    chain(f);
    expect(f, 0, p);
    for (i = 0; i < draws; i += 16) {
        for (r = 0; r < 16; r++) {
            f->slots[r].samp.seed_lo = (uint32_t)(i + r);
            f->slots[r].samp.seed_hi = (uint32_t)n;
        }
        sample(f);
        for (r = 0; r < 16; r++) {
            if (!(p[f->out[r].tok] > 0))
                fail_msg("n %d drew id %d, which is cut off", n, f->out[r].tok);
            hits[f->out[r].tok]++;
        }
    }
    for (i = 0; i < n; i++) { /* neighbours share a cell until 20 are expected */
        e += p[i] * draws;
        got += hits[i];
        if (e >= 20 || (i == n - 1 && e > 0)) {
            chi += (got - e) * (got - e) / e;
            e = got = 0;
            cells++;
        }
    }
    bound = cells - 1 + 5 * sqrt(2.0 * cells) + 5;
    if (chi > bound)
        fail_msg("n %d top_k %d top_p %g min_p %g: chi-square %g over %d cells", n,
                 samp.top_k, (double)samp.top_p, (double)samp.min_p, chi, cells);
    free(p);
    free(hits);
    fix_free(f);
}

static void sample_draws_follow_the_distribution(void **state)
{
    static const struct mc_samp t[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 1},
        {.temperature = 1, .top_p = 1, .top_k = 40},
        {.temperature = 1, .top_p = 0.9f, .top_k = 40},
        {.temperature = 1, .top_p = 0.9f, .top_k = 300, .min_p = 0.05f},
        {.temperature = 1, .top_p = 0.5f},
        {.temperature = 1, .top_p = 0.95f},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f},
        {.temperature = 1, .top_p = 0.9f, .min_p = 0.3f},
        {.temperature = 1, .top_p = 1, .top_k = 1500},
        {.temperature = 1, .top_p = 0.8f, .top_k = 1500},
        {.temperature = 3, .top_p = 0.999f, .min_p = 0.001f},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof t / sizeof t[0]; i++) {
        check_draws(7, 1, t[i]);
        check_draws(130, 2, t[i]);
        check_draws(2500, 1, t[i]); /* wide: a nucleus beyond the first list */
        check_draws(2500, 4, t[i]); /* peaked */
    }
}

/* Nothing but ties: ids decide, and the pool of candidates overflows. */
static void sample_cuts_ties_by_id(void **state)
{
    struct fix *f = fix_new(3, 20000, 20000);
    int32_t i, r, max[3] = {0};

    (void)state;
    f->slots[0].samp.top_k = 100;
    f->slots[1].samp.top_k = 5000;
    f->slots[2].samp.top_p = 0.5f;
    chain(f);
    for (i = 0; i < 500; i++) {
        for (r = 0; r < 3; r++)
            f->slots[r].samp.seed_hi = (uint32_t)i;
        sample(f);
        for (r = 0; r < 3; r++)
            max[r] = f->out[r].tok > max[r] ? f->out[r].tok : max[r];
    }
    assert_int_equal(max[0], 99);
    assert_in_range(max[1], 4900, 4999);
    assert_in_range(max[2], 9800, 9999);
    fix_free(f);
}

static void sample_draw_is_a_function_of_seed_and_position(void **state)
{
    struct fix *f = fix_new(4, 3000, 3000), *g = fix_new(1, 3000, 3000);
    int32_t r, i, same = 0;

    (void)state;
    fill(f, 1, 31);
    for (r = 0; r < 4; r++)
        memcpy(row(f, r), row(f, 0), 3000 * sizeof(float));
    memcpy(row(g, 0), row(f, 0), 3000 * sizeof(float));
    chain(f);
    chain(g);
    for (i = 0; i < 100; i++) {
        for (r = 0; r < 4; r++) {
            f->r.pos[r] = r == 1 ? i + 1000 : i;
            f->slots[r].samp.seed_lo = r == 2 ? 8 : 7;
            f->slots[r].samp.seed_hi = r == 3 ? 1 : 0;
        }
        g->r.pos[0] = i;
        g->slots[0].samp.seed_lo = 7;
        sample(f);
        sample(g);
        assert_int_equal(f->out[0].tok, g->out[0].tok);
        same += f->out[0].tok == f->out[1].tok;
        same += f->out[0].tok == f->out[2].tok;
        same += f->out[0].tok == f->out[3].tok;
    }
    assert_in_range(same, 0, 5);
    fix_free(f);
    fix_free(g);
}

/* ---- what the host sees ------------------------------------------------------------ */

static void sample_lists_candidates_and_top_logprobs(void **state)
{
    struct fix *f = fix_new(3, 400, 410);
    const struct mc_out *o = f->out;
    double rest = 1;
    int32_t i, j;

    (void)state;
    fill(f, 2, 41);
    f->slots[0].samp.flags = MC_SAMP_CANDS | MC_SAMP_TOP;
    f->slots[0].samp.temperature = 0.5f;
    f->slots[0].samp.n_bias = 1;
    f->bias[0] = (struct mc_bias){3, 50}; /* the best processed, not the best raw */
    row(f, 0)[20] = row(f, 0)[300] = 15;  /* a tie */
    f->slots[1].samp.flags = MC_SAMP_CANDS | MC_SAMP_TOP;
    for (i = 5; i < 400; i++)
        row(f, 1)[i] = -INFINITY; /* only five are finite */
    chain(f);
    sample(f);
    assert_int_equal(o[0].n_top, MC_TOP);
    assert_int_equal(o[0].n_cand, MC_CANDS);
    assert_int_equal(o[0].cand_id[0], 3);
    assert_int_equal(o[0].cand_id[1], 20);
    assert_int_equal(o[0].cand_id[2], 300);
    assert_int_equal(o[0].top_id[0], 20);
    assert_int_equal(o[0].top_id[1], 300);
    assert_float_equal(o[0].cand_logit[1], 30, 0);
    assert_float_equal(o[0].top_logprob[0], 15 - o[0].raw_lse, 1e-6);
    for (i = 0; i < MC_CANDS; i++) {
        assert_float_equal(o[0].cand_p[i], exp(o[0].cand_logit[i] - (double)f->stat[1]),
                           1e-6);
        assert_true(i == 0 || o[0].cand_logit[i] <= o[0].cand_logit[i - 1]);
        rest -= o[0].cand_p[i];
    }
    assert_float_equal(o[0].rest, rest, 1e-6);
    assert_true(o[0].lse == f->stat[1]);
    for (i = 0; i < 400; i++) { /* nothing better was left out */
        for (j = 0; j < MC_CANDS && o[0].cand_id[j] != i; j++)
            ;
        assert_true(j < MC_CANDS || row(f, 0)[i] <= o[0].cand_logit[MC_CANDS - 1]);
    }
    assert_int_equal(o[1].n_top, 5);
    assert_int_equal(o[1].n_cand, 5);
    assert_float_equal(o[1].rest, 0, 1e-6);
    assert_int_equal(o[2].n_top + o[2].n_cand, 0); /* nobody asked */
    fix_free(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chain_takes_raw_first_and_masks_padding),
    cmocka_unit_test(chain_order_is_bias_bans_penalties_temperature),
    cmocka_unit_test(chain_penalises_each_counted_id),
    cmocka_unit_test(chain_and_sample_mark_bad_rows),
    cmocka_unit_test(nll_is_lse_minus_target),
    cmocka_unit_test(sample_greedy_takes_the_lowest_id_on_ties),
    cmocka_unit_test(sample_tiny_values_are_greedy),
    cmocka_unit_test(sample_survives_senseless_settings),
    cmocka_unit_test(sample_greedy_row_ignores_its_batch),
    cmocka_unit_test(sample_top_k_off_values_are_one_thing),
    cmocka_unit_test(sample_draws_follow_the_distribution),
    cmocka_unit_test(sample_cuts_ties_by_id),
    cmocka_unit_test(sample_draw_is_a_function_of_seed_and_position),
    cmocka_unit_test(sample_lists_candidates_and_top_logprobs),
};

MC_TEST_MAIN(tests)

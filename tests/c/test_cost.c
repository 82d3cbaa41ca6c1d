/* test_cost.c - what steps take, fitted: planted costs come back, noise and gaps do no harm. */
#include "tests/c/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/engine/cost.h"

static uint32_t seed = 1;

static uint32_t dice(uint32_t n)
{
    return (seed = seed * 1664525u + 1013904223u) / 65536 % n;
}

/* A step of some rows; us by the planted costs, off by up to `noise`. */
static struct mc_cost_step some_step(bool prompts, double noise)
{
    struct mc_cost_step s = {.n_decode = (int32_t)dice(32)};

    s.ktok_decode = (float)(s.n_decode * (100 + dice(2000))) * 1e-3f;
    if (prompts && dice(3) == 0) {
        s.n_prompt_row = 1 + (int32_t)dice(2);
        s.n_prompt_tok = 1 + (int32_t)dice(255);
        s.ktok_prompt = (float)(s.n_prompt_tok * dice(1000)) * 1e-3f;
    }
    s.us = 5000 + 300 * (float)s.n_decode + 20 * s.ktok_decode;
    if (s.n_prompt_tok)
        s.us += 1000 + 150 * (float)s.n_prompt_tok + 3 * s.ktok_prompt;
    s.us *= (float)(1 + noise * ((double)dice(2001) / 1000 - 1));
    return s;
}

static void near(double got, double want, double share)
{
    if (!(fabs(got - want) <= share * want))
        fail_msg("%g is not within %g of %g", got, share, want);
}

static void cost_planted_terms_come_back(void **st)
{
    struct mc_cost_step s[256];
    struct mc_cost d, p;

    (void)st;
    for (int i = 0; i < 256; i++)
        s[i] = some_step(true, 0);
    mc_cost_fit(s, 256, &d, &p);
    near((double)d.us_base, 5000, 0.001);
    near((double)d.us_row, 300, 0.001);
    near((double)d.us_ktok_kv, 20, 0.001);
    near((double)p.us_base, 1000, 0.01);
    near((double)p.us_tok, 150, 0.001);
    near((double)p.us_ktok_kv, 3, 0.01);
    assert_true((double)d.rel_err < 0.001 && d.us_tok == 0 && p.us_row == 0);
}

static void cost_noise_leaves_the_sum_right(void **st)
{
    struct mc_cost_step s[256];
    struct mc_cost d, p;
    double was = 0, would = 0;

    (void)st;
    for (int i = 0; i < 256; i++)
        s[i] = some_step(true, 0.5);
    mc_cost_fit(s, 256, &d, &p);
    for (int i = 0; i < 256; i++) {
        was += (double)s[i].us;
        would += mc_cost_us(&d, &p, &s[i]);
    }
    near(would, was, 0.02);
    near((double)d.us_row, 300, 0.3);
    assert_true((double)d.rel_err > 0.1 && (double)d.rel_err < 0.5);
}

static void cost_of_what_never_ran_is_zero_and_none_is_negative(void **st)
{
    struct mc_cost_step s[256];
    struct mc_cost d, p;

    (void)st;
    for (int i = 0; i < 256; i++)
        s[i] = some_step(false, 0);
    mc_cost_fit(s, 256, &d, &p);
    assert_true(p.us_tok == 0 && p.us_base == 0);
    near((double)d.us_base, 5000, 0.001);
    for (int i = 0; i < 256; i++) /* the more rows the sooner: nonsense, but not negative */
        s[i].us = 9000 - 100 * (float)s[i].n_decode;
    mc_cost_fit(s, 256, &d, &p);
    assert_true(d.us_base > 0 && d.us_row >= 0 && d.us_ktok_kv >= 0);
    for (int i = 0; i < 256; i++) /* all alike: terms can't be told apart */
        s[i] = (struct mc_cost_step){.us = 700, .n_decode = 4, .ktok_decode = 1};
    mc_cost_fit(s, 256, &d, &p);
    near(mc_cost_us(&d, &p, s), 700, 0.001);
    mc_cost_fit(s, MC_COST_LEAST - 1, &d, &p);
    assert_true(d.us_base == 0 && mc_cost_us(&d, &p, s) == 0);
}

static void cost_window_follows_what_is_new(void **st)
{
    static struct mc_cost_window w;
    struct mc_cost_step s = {.us = 100, .n_decode = 1};

    (void)st;
    for (int i = 0; i < 300; i++)
        mc_cost_add(&w, &s);
    near(mc_cost_us(&w.decode, &w.prefill, &s), 100, 0.001);
    s.us = 400;
    for (int i = 0; i < 300; i++)
        mc_cost_add(&w, &s);
    near(mc_cost_us(&w.decode, &w.prefill, &s), 400, 0.001);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cost_planted_terms_come_back),
    cmocka_unit_test(cost_noise_leaves_the_sum_right),
    cmocka_unit_test(cost_of_what_never_ran_is_zero_and_none_is_negative),
    cmocka_unit_test(cost_window_follows_what_is_new),
};
MC_TEST_MAIN(tests)

/* test_cuda_model.c - whole models through the CUDA kernels, emulated: the engine replays
 * the graphs that it recorded at boot, and its greedy tokens are those of the golden
 * files.
 *
 * Golden files are transformers in f32; here rows are bf16, whose noise on a logit is a
 * few hundredths. Where the golden gap between the best two tokens is below TIE the other
 * one is as right, and what follows it is another text: a stream is compared up to there,
 * and no stream may leave its golden where the gap is wider. */
#include "tests/c/engine_help.h"

#include <math.h>

#include "core/engine/engine_int.h"

#ifndef MC_BARE
#include "kernels/emu/emu.h"
#endif

static const double TIE = 0.15;

enum { PROMPTS = 3, CHUNK = 24 /* rows of a step: emulated blocks are slow */ };

/* Under a sanitizer these take many minutes; the operations run there one by one. */
static void slow(void)
{
#ifdef MC_SANITIZE
    print_message("a sanitizer build runs the operations only\n");
    skip();
#endif
}

/* What make check leaves to make check-emu. */
static bool is_long(void)
{
    return getenv("LONG") != NULL;
}

/* Kernels touch device and pinned memory only (the device's is out of the host's reach).
 */
static struct mc_engine *open_model(const char *model, const char *kv, int32_t ranks,
                                    int32_t chunk)
{
#ifndef MC_BARE
    emu_strict(emu_reaches);
#endif
    return engine_open(&(struct mc_engine_opts){.model = model,
                                                .backend = "cuda",
                                                .kv = kv,
                                                .ranks = ranks,
                                                .max_seqs = PROMPTS,
                                                .chunk = chunk,
                                                .max_context = 256},
                       NULL);
}

/* Prompts [from, from + n) of the golden file at once, so many tokens of each. */
static void check_ranks(const char *model, const char *kv, int32_t ranks, int from, int n,
                        int32_t tokens)
{
    struct mc_engine *e = open_model(model, kv, ranks, from < 3 ? CHUNK : 64);
    struct golden g[PROMPTS];
    struct got *got[PROMPTS];
    char path[200];
    int32_t same = 0;

    snprintf(path, sizeof path, "%s/golden/greedy.json", model);
    for (int i = 0; i < n; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        g[i] = golden_of(path, (size_t)(from + i));
        got[i] = got_new();
        r = ask_for(g[i].prompt, g[i].n_prompt, g[i].n_ids < tokens ? g[i].n_ids : tokens,
                    got[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < n; i++) {
        int32_t k = 0, have;

        got_wait(got[i], -1);
        have = got[i]->n;
        if (have != tokens && have != g[i].n_ids)
            fail_msg("%s kv %s ranks %d prompt %d: %d tokens, then '%s'", model, kv,
                     ranks, from + i, have, got[i]->end.err.text);
        while (k < have && got[i]->id[k] == g[i].ids[k])
            k++;
        if (k < have && g[i].gap[k] > TIE)
            fail_msg("%s kv %s ranks %d prompt %d: token %d is %d, want %d, whose gap is "
                     "%.3f", model, kv, ranks, from + i, k, got[i]->id[k], g[i].ids[k],
                     g[i].gap[k]);
        same += k;
    }
    print_message("%s kv %s ranks %d prompts %d-%d: %d of %d tokens before a tie\n",
                  model, kv, ranks, from, from + n - 1, same, n * tokens);
    assert_true(same >= n * tokens / 2);
    for (int i = 0; i < n; i++) {
        golden_free(&g[i]);
        got_free(got[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
}

static void check_some(const char *model, const char *kv, int from, int n, int32_t tokens)
{
    check_ranks(model, kv, 1, from, n, tokens);
}

static void check(const char *model, const char *kv)
{
    check_some(model, kv, 0, PROMPTS, is_long() ? 24 : 8);
}

static void check_long(const char *model, const char *kv)
{
    if (is_long()) {
        check(model, kv);
        check_some(model, kv, 3, 1, 12);
    }
}

static void cuda_model_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-llama", "bf16");
    check_long("tests/models/tiny-llama", "fp8");
}

static void cuda_model_runs_every_weight_format(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-llama-fp8", "fp8");
    check_long("tests/models/tiny-llama-w4a16", "bf16");
    check_long("tests/models/tiny-llama-nvfp4", "bf16");
}

/* Experts, routed on the device; heads of 48 values. */
static void cuda_model_of_experts_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-qwen3-moe", "bf16");
    check_long("tests/models/tiny-qwen3-moe", "fp8");
}

/* Latents in each layout, int4 experts beside a shared one. */
static void cuda_model_of_latents_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-kimi", "fp8-656");
    check_long("tests/models/tiny-kimi", "bf16");
    check_long("tests/models/tiny-kimi", "fp8-plain");
}

/* Positions chosen by an index of 64, e4m3 weights; prompt 3 has 130 tokens. */
static void cuda_model_of_chosen_positions_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check_some("tests/models/tiny-glm", "bf16", 3, 1, 4);
    check_long("tests/models/tiny-glm", "bf16");
    check_long("tests/models/tiny-glm", "fp8-656");
}

/* Two devices, each with its part of the heads, of the experts' width and of the vocabulary. */
static void cuda_model_on_two_ranks_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check_ranks("tests/models/tiny-llama", "bf16", 2, 0, 2, 4);
    if (!is_long())
        return;
    check_ranks("tests/models/tiny-llama-fp8", "fp8", 2, 0, PROMPTS, 24);
    check_ranks("tests/models/tiny-kimi", "fp8-656", 2, 0, PROMPTS, 24);
    check_ranks("tests/models/tiny-kimi", "bf16", 2, 0, PROMPTS, 24);
    check_ranks("tests/models/tiny-glm", "bf16", 2, 3, 1, 12);
    check_ranks("tests/models/tiny-glm", "fp8-656", 2, 0, PROMPTS, 24);
}

/* Greedy tokens of a prompt alone, and next to others that come and go. */
static void cuda_model_streams_do_not_depend_on_the_batch(void **state)
{
    struct mc_engine *e;
    int32_t ids[3][100];
    struct got *alone, *got[3];

    (void)state;
    slow();
    e = open_model("tests/models/tiny-llama", "bf16", 1, 70); /* of few rows, and of many */
    for (int i = 0; i < 3; i++)
        some_ids(ids[i], 100, 9 + (uint32_t)i);
    alone = run_one(e, ids[0], 70, 8);
    for (int i = 0; i < 3; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        got[i] = got_new();
        r = ask_for(ids[i], i == 0 ? 70 : 30 * i, 8, got[i]);
        r.salt[0] = (char)('a' + i); /* no page is shared */
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < 3; i++)
        got_wait(got[i], -1);
    same_tokens(alone, got[0]);
    for (int i = 0; i < alone->n; i++)
        assert_true(alone->logprob[i] == got[0]->logprob[i]);
    for (int i = 0; i < 3; i++)
        got_free(got[i]);
    got_free(alone);
    mc_engine_close(e);
}

/* ---- pages that move --------------------------------------------------------------- */

/* The built-in plan, but with its second and fourth token a row goes to host memory. */
static int plan_swaps(void *self, struct mc_step_view *v, struct mc_plan *p,
                      struct mc_err *err)
{
    int *swapped = self, rc = mc_policy_builtin.ops->plan(NULL, v, p, err);
    const struct mc_row *r = mc_view_row(v, 0);

    if (v->n_row == 1 && p->n == 1 && *swapped < 2 && mc_row_runs(r) &&
        r->n_gen >= 2 * *swapped + 2) {
        p->item[0].what = MC_SWAP;
        ++*swapped;
    }
    return rc;
}

static void cuda_model_pages_go_to_host_memory_and_back(void **state)
{
    static const struct mc_policy_ops ops = {.plan = plan_swaps};
    int swapped = 0;
    const struct mc_policy swaps = {&ops, &swapped};
    struct mc_engine *e;
    struct got *stayed, *moved;
    int32_t ids[70];

    (void)state;
    slow();
    some_ids(ids, 70, 5);
    e = open_model("tests/models/tiny-llama", "fp8", 1, 70);
    stayed = run_one(e, ids, 70, 6);
    mc_engine_close(e);
    e = open_model("tests/models/tiny-llama", "fp8", 1, 70);
    mc_engine_set_policy(e, &swaps);
    moved = run_one(e, ids, 70, 6);
    assert_true(mc_engine_counter(e, MC_C_swapped_total) == 2);
    same_tokens(stayed, moved);
    assert_idle(e);
    mc_engine_close(e);
    got_free(stayed), got_free(moved);
}

/* ---- rows that are looked at ------------------------------------------------------- */

enum { SEEN = 12, H = 256 };

/* Rows behind layer 3 of a prompt, whose rows behind layer 1 are moved by `steer` times
 * the vector of 1, -1, 1, ..; as f32. */
static void rows_behind(struct mc_engine *e, float steer, float *rows)
{
    struct mc_err err = {0};
    struct mc_account *a = mc_account_open(mc_engine_tensors(e, &err), 1 << 20);
    struct mc_capture c = {.layer = 3};
    struct mc_steer s = {.layer = 1, .scale = steer};
    struct got *g = got_new();
    int dt = e->model->be->row_dt;
    int32_t ids[SEEN];
    struct mc_request r;
    struct mc_handle h;

    some_ids(ids, SEEN, 3);
    assert_ok(mc_tensor_new_host(a, dt, 2, (int32_t[]){SEEN, H}, &c.to, &err), err);
    assert_ok(mc_tensor_new_host(a, dt, 1, (int32_t[]){H}, &s.add, &err), err);
    for (int32_t i = 0; i < H; i++)
        if (dt == MC_F32)
            ((float *)s.add.v.p)[i] = i % 2 ? -1 : 1;
        else
            ((uint16_t *)s.add.v.p)[i] = i % 2 ? 0xbf80 : 0x3f80;
    r = ask_for(ids, SEEN, 0, g);
    r.capture = &c, r.n_capture = 1;
    r.steer = &s, r.n_steer = 1;
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(g, -1);
    for (int32_t i = 0; i < SEEN * H; i++) {
        uint32_t wide = (uint32_t)((uint16_t *)c.to.v.p)[i] << 16;

        memcpy(&rows[i], dt == MC_F32 ? (char *)c.to.v.p + 4 * i : (char *)&wide, 4);
    }
    got_free(g);
    mc_tensor_drop(&c.to), mc_tensor_drop(&s.add);
    mc_account_close(a);
}

/* As the oracle has them, but for the noise of bf16 rows. */
static void cuda_model_rows_are_captured_and_steered(void **state)
{
    float got[SEEN * H], want[SEEN * H], most = 0, off = 0;
    struct mc_engine *e;

    (void)state;
    slow();
    for (int i = 0; i < 2; i++) {
        e = i ? open_model("tests/models/tiny-llama", "bf16", 1, SEEN)
              : engine_open(&(struct mc_engine_opts){.backend = "ref", .chunk = SEEN,
                                                     .max_seqs = 2, .max_context = 64},
                            NULL);
        rows_behind(e, 0.5f, i ? got : want);
        mc_engine_close(e);
    }
    for (int32_t i = 0; i < SEEN * H; i++) {
        most = fmaxf(most, fabsf(want[i]));
        off = fmaxf(off, fabsf(got[i] - want[i]));
    }
    if (!(off <= 0.03f * most))
        fail_msg("a captured value is %g off, of %g", off, most);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_model_gives_golden_tokens),
    cmocka_unit_test(cuda_model_runs_every_weight_format),
    cmocka_unit_test(cuda_model_of_experts_gives_golden_tokens),
    cmocka_unit_test(cuda_model_of_latents_gives_golden_tokens),
    cmocka_unit_test(cuda_model_of_chosen_positions_gives_golden_tokens),
    cmocka_unit_test(cuda_model_on_two_ranks_gives_golden_tokens),
    cmocka_unit_test(cuda_model_streams_do_not_depend_on_the_batch),
    cmocka_unit_test(cuda_model_pages_go_to_host_memory_and_back),
    cmocka_unit_test(cuda_model_rows_are_captured_and_steered),
};

MC_TEST_MAIN(tests)

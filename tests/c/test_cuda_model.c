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
static struct mc_engine *open_model(const char *model, const char *kv, int32_t chunk)
{
#ifndef MC_BARE
    emu_strict(emu_reaches);
#endif
    return engine_open(&(struct mc_engine_opts){.model = model,
                                                .backend = "cuda",
                                                .kv = kv,
                                                .max_seqs = PROMPTS,
                                                .chunk = chunk,
                                                .max_context = 256},
                       NULL);
}

/* Prompts [from, from + n) of the golden file at once, so many tokens of each. */
static void check_some(const char *model, const char *kv, int from, int n, int32_t tokens)
{
    struct mc_engine *e = open_model(model, kv, from < 3 ? CHUNK : 64);
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
        assert_true(have == tokens || have == g[i].n_ids);
        while (k < have && got[i]->id[k] == g[i].ids[k])
            k++;
        if (k < have && g[i].gap[k] > TIE)
            fail_msg("%s kv %s prompt %d: token %d is %d, want %d, whose gap is %.3f",
                     model, kv, from + i, k, got[i]->id[k], g[i].ids[k], g[i].gap[k]);
        same += k;
    }
    print_message("%s kv %s prompts %d-%d: %d of %d tokens before a tie\n", model, kv,
                  from, from + n - 1, same, n * tokens);
    assert_true(same >= n * tokens / 2);
    for (int i = 0; i < n; i++) {
        golden_free(&g[i]);
        got_free(got[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
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

/* Greedy tokens of a prompt alone, and next to others that come and go. */
static void cuda_model_streams_do_not_depend_on_the_batch(void **state)
{
    struct mc_engine *e;
    int32_t ids[3][100];
    struct got *alone, *got[3];

    (void)state;
    slow();
    e = open_model("tests/models/tiny-llama", "bf16", CHUNK);
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

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_model_gives_golden_tokens),
    cmocka_unit_test(cuda_model_runs_every_weight_format),
    cmocka_unit_test(cuda_model_of_experts_gives_golden_tokens),
    cmocka_unit_test(cuda_model_of_latents_gives_golden_tokens),
    cmocka_unit_test(cuda_model_of_chosen_positions_gives_golden_tokens),
    cmocka_unit_test(cuda_model_streams_do_not_depend_on_the_batch),
};

MC_TEST_MAIN(tests)

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

static const double TIE = 0.15;

enum {
    PROMPTS = 3,
    TOKENS = 12,
    CHUNK = 24 /* rows of a step: emulated blocks are slow */
};

/* Under a sanitizer these take many minutes; the operations run there one by one. */
static void slow(void)
{
#ifdef MC_SANITIZE
    print_message("a sanitizer build runs the operations only\n");
    skip();
#endif
}

static void check(const char *model, const char *kv)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.model = model,
                                                               .backend = "cuda",
                                                               .kv = kv,
                                                               .max_seqs = PROMPTS,
                                                               .chunk = CHUNK,
                                                               .max_context = 256},
                                      NULL);
    struct golden g[PROMPTS];
    struct got *got[PROMPTS];
    char path[200];
    int32_t same = 0;

    snprintf(path, sizeof path, "%s/golden/greedy.json", model);
    for (int i = 0; i < PROMPTS; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        g[i] = golden_of(path, (size_t)i);
        got[i] = got_new();
        r = ask_for(g[i].prompt, g[i].n_prompt, g[i].n_ids < TOKENS ? g[i].n_ids : TOKENS,
                    got[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    for (int i = 0; i < PROMPTS; i++) {
        int32_t k = 0, n;

        got_wait(got[i], -1);
        n = got[i]->n;
        assert_true(n == TOKENS || n == g[i].n_ids);
        while (k < n && got[i]->id[k] == g[i].ids[k])
            k++;
        if (k < n && g[i].gap[k] > TIE)
            fail_msg("%s kv %s prompt %d: token %d is %d, want %d, whose gap is %.3f",
                     model, kv, i, k, got[i]->id[k], g[i].ids[k], g[i].gap[k]);
        same += k;
    }
    print_message("%s kv %s: %d of %d tokens before a tie\n", model, kv, same,
                  PROMPTS * TOKENS);
    assert_true(same >= PROMPTS * TOKENS / 2);
    for (int i = 0; i < PROMPTS; i++) {
        golden_free(&g[i]);
        got_free(got[i]);
    }
    assert_idle(e);
    mc_engine_close(e);
}

static void cuda_model_gives_golden_tokens(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-llama", "bf16");
    check("tests/models/tiny-llama", "fp8");
}

static void cuda_model_runs_every_weight_format(void **state)
{
    (void)state;
    slow();
    check("tests/models/tiny-llama-fp8", "bf16");
    check("tests/models/tiny-llama-w4a16", "bf16");
    check("tests/models/tiny-llama-nvfp4", "bf16");
}

/* Greedy tokens of a prompt alone, and next to others that come and go. */
static void cuda_model_streams_do_not_depend_on_the_batch(void **state)
{
    const struct mc_engine_opts o = {.backend = "cuda", .kv = "bf16", .max_seqs = 3,
                                     .chunk = CHUNK, .max_context = 256};
    struct mc_engine *e;
    int32_t ids[3][100];
    struct got *alone, *got[3];

    (void)state;
    slow();
    e = engine_open(&o, NULL);
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
    cmocka_unit_test(cuda_model_streams_do_not_depend_on_the_batch),
};

MC_TEST_MAIN(tests)

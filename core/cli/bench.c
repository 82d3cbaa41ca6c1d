/* bench.c - `mascon bench [run|kv|weights|lua]`; run MODEL: speed of a model in the engine.
 *
 * Prefill of 512 tokens, decode of 64 alone and of 16 and 64 sequences at once, each with
 * the weight bytes that its steps read and the share of the memory roof that this machine
 * gave in the same run. The median of three. OWNS nothing after it returns. THREAD: main.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "core/cli/bench.h"
#include "core/cli/burst.h"
#include "core/cli/cli.h"
#include "core/cli/roof.h"
#include "core/mc.h"

enum { REPEAT = 3, PREFILL = 512, GEN = 64, MOST = 64 };

struct measured {
    double seconds, tokens_s, bytes_token;
};

/* n sequences of n_prompt tokens that generate n_gen each; no prompt is like another, so
 * that no prefix is found again. */
static int run_once(struct mc_engine *e, int n, int32_t n_prompt, int32_t n_gen,
                    struct measured *out, struct mc_err *err)
{
    static uint32_t seed = 1;
    const struct mc_burst b = {.n = n,
                               .n_prompt = n_prompt,
                               .n_gen = n_gen,
                               .seed = seed++};
    double bytes = mc_engine_counter(e, MC_C_weight_bytes_read_total);
    struct mc_burst_took took;
    int rc = mc_burst_run(e, &b, &took, err);

    if (rc < 0)
        return rc;
    out->seconds = n_gen > 1 ? took.decode : took.seconds;
    out->tokens_s = (n_gen > 1 ? (double)n * (n_gen - 1) : n_prompt) / out->seconds;
    out->bytes_token = (mc_engine_counter(e, MC_C_weight_bytes_read_total) - bytes) /
                       (n_gen > 1 ? (double)n * n_gen : n_prompt);
    return 0;
}

static int by_speed(const void *a, const void *b)
{
    double x = ((const struct measured *)a)->tokens_s,
           y = ((const struct measured *)b)->tokens_s;

    return x < y ? -1 : x > y;
}

struct bench {
    struct mc_engine *e;
    double roof; /* bytes a second */
    json_t *rows;
    bool json;
};

static int row(struct bench *b, const char *name, int n, int32_t n_prompt, int32_t n_gen,
               struct mc_err *err)
{
    struct measured m[REPEAT];
    double share;

    for (int i = 0; i < REPEAT; i++) {
        int rc = run_once(b->e, n, n_prompt, n_gen, &m[i], err);

        if (rc < 0)
            return rc;
    }
    qsort(m, REPEAT, sizeof *m, by_speed);
    share = m[REPEAT / 2].bytes_token * m[REPEAT / 2].tokens_s / b->roof;
    if (!b->json)
        printf(
            "  %-12s %9.1f tokens/s  %8.2f MB of weights a token  %5.1f %% of the roof\n",
            name, m[REPEAT / 2].tokens_s, m[REPEAT / 2].bytes_token / 1e6, 100 * share);
    fflush(stdout); /* a row takes its time: a pipe shows each as it is done */
    json_array_append_new(
        b->rows, json_pack("{s:s, s:f, s:s, s:f, s:f}", "name", name, "value",
                           m[REPEAT / 2].tokens_s, "unit", "tokens/s", "bytes_token",
                           m[REPEAT / 2].bytes_token, "roof_share", share));
    return 0;
}

static int run_rows(struct bench *b, struct mc_err *err)
{
    int rc = row(b, "prefill_512", 1, PREFILL, 1, err);

    if (rc == 0)
        rc = row(b, "decode_1", 1, 8, GEN, err);
    if (rc == 0)
        rc = row(b, "decode_16", 16, 8, GEN, err);
    if (rc == 0)
        rc = row(b, "decode_64", MOST, 8, GEN, err);
    return rc;
}

static int run(struct mc_engine *e, const struct mc_settings *s, bool json,
               struct mc_err *err)
{
    struct bench b = {.e = e, .roof = mc_roof((int)s->threads), .rows = json_array(),
                      .json = json};
    struct mc_engine_status st;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0, -1: not known */
    bool cached;
    int rc;

    mc_engine_status(e, &st);
    cached = cache > 0 && st.weight_bytes < (uint64_t)cache; /* past the roof, then */
    if (!json)
        printf("%s, kv %s, %.1f MB of weights%s; memory roof %.1f GB/s\n", st.backend,
               st.kv, (double)st.weight_bytes / 1e6,
               cached ? " (the last cache can hold them)" : "", b.roof / 1e9);
    fflush(stdout);
    rc = run_rows(&b, err);
    if (rc == 0 && json) {
        json_t *all = json_pack("{s:s, s:s, s:f, s:f, s:O}", "backend", st.backend, "kv",
                                st.kv, "weight_bytes", (double)st.weight_bytes,
                                "roof_bytes_s", b.roof, "rows", b.rows);

        json_dumpf(all, stdout, JSON_INDENT(2));
        printf("\n");
        json_decref(all);
    }
    json_decref(b.rows);
    return rc;
}

static int bench_run(int argc, char **argv, const struct mc_lua_half *lua)
{
    bool json = false;
    const struct mc_flag flags[] = {
        {"json", NULL, &json, "one JSON object instead of lines"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "bench",
                        .usage = "[run] MODEL [flags]",
                        .who = MC_FOR_BENCH,
                        .flags = flags,
                        .min = 1,
                        .max = 2,
                        .set = &set};
    struct mc_engine *e = NULL;
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0 && a.n_pos == 2 && strcmp(a.pos[0], "run") != 0) {
        fprintf(stderr, "mascon: bench: '%.40s' is none of: run, kv, weights, lua\n",
                a.pos[0]);
        rc = 2;
    }
    if (rc < 0 && a.n_pos == 1 && strcmp(a.pos[0], "run") == 0) {
        fprintf(stderr, "mascon: bench run: of which MODEL? usage: mascon bench %s\n",
                a.usage);
        rc = 2;
    }
    if (rc >= 0) {
        mc_settings_free(&set);
        return rc;
    }
    rc = mc_cli_engine(&set, a.pos[a.n_pos - 1], &e, &err);
    if (rc == 0)
        rc = mc_engine_start(e, &err);
    if (rc == 0)
        rc = run(e, &set, json, &err);
    if (rc < 0)
        rc = mc_cli_fail(&err);
    mc_engine_close(e);
    mc_settings_free(&set);
    return rc;
}

int mc_cmd_bench(int argc, char **argv, const struct mc_lua_half *lua)
{
    static const struct {
        const char *word;
        mc_cmd_fn run;
    } kinds[] = {{"kv", mc_bench_kv}, {"weights", mc_bench_weights}, {"lua", mc_bench_lua}};

    for (size_t i = 0; argc > 1 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[1], kinds[i].word) == 0)
            return kinds[i].run(argc - 1, argv + 1, lua);
    return bench_run(argc, argv, lua);
}

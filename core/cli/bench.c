/* bench.c - `mascon bench [run] MODEL`: speed of a model through the engine.
 *
 * Prefill of 512 tokens, decode of 64 alone and of 16 and 64 sequences at once, each with
 * the weight bytes that its steps read and the share of the memory roof that this machine
 * gave in the same run. The median of three. OWNS nothing after it returns. THREAD: main;
 * sinks are called on the engine's. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/cli/cli.h"
#include "core/cli/roof.h"
#include "core/mc.h"

enum { REPEAT = 3, PREFILL = 512, GEN = 64, MOST = 64 };

/* Counts sequences that have ended. */
struct finish_line {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    int n_ended, n_failed;
    double t_first, t_end; /* earliest first token; latest end */
};

static void on_token(void *ctx, const struct mc_token *t)
{
    (void)ctx, (void)t;
}

static void on_end(void *ctx, const struct mc_end *e)
{
    struct finish_line *f = ctx;

    pthread_mutex_lock(&f->lock);
    f->n_ended++;
    f->n_failed += e->finish != MC_FINISH_LENGTH;
    if (f->t_first == 0 || (e->usage.t_first > 0 && e->usage.t_first < f->t_first))
        f->t_first = e->usage.t_first;
    f->t_end = e->usage.t_end > f->t_end ? e->usage.t_end : f->t_end;
    pthread_cond_signal(&f->bell);
    pthread_mutex_unlock(&f->lock);
}

/* Ordinary ids that differ from call to call, so that no prefix is found again. */
static void fill_ids(int32_t *ids, int32_t n, int32_t vocab)
{
    static uint32_t seed = 1;

    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)vocab);
    }
}

struct measured {
    double seconds, tokens_s, bytes_token;
};

/* n sequences of n_prompt tokens that generate n_gen each. */
static int run_once(struct mc_engine *e, int n, int32_t n_prompt, int32_t n_gen,
                    struct measured *out, struct mc_err *err)
{
    struct finish_line f = {.lock = PTHREAD_MUTEX_INITIALIZER,
                            .bell = PTHREAD_COND_INITIALIZER};
    double bytes = mc_engine_counter(e, MC_C_weight_bytes_read_total), t0 = mc_now();
    int32_t ids[PREFILL], submitted = 0;
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        struct mc_request r = {.ids = ids,
                               .n_ids = n_prompt,
                               .limit = n_gen,
                               .n_top = -1,
                               .ignore_eos = true,
                               .want = {.top_p = 1,
                                        .repetition_penalty = 1,
                                        .ban = {-1, -1}},
                               .name = "bench",
                               .sink = {on_token, on_end, &f}};
        struct mc_handle h;

        fill_ids(ids, n_prompt, mc_tok_n(mc_engine_tok(e)));
        rc = mc_engine_submit(e, &r, &h, err);
        submitted += rc == 0;
    }
    pthread_mutex_lock(&f.lock);
    while (f.n_ended < submitted)
        pthread_cond_wait(&f.bell, &f.lock);
    pthread_mutex_unlock(&f.lock);
    if (rc == 0 && f.n_failed > 0)
        rc = mc_fail(err, MC_EINTERNAL, "%d of %d sequences failed", f.n_failed, n);
    if (rc < 0)
        return rc;
    out->seconds = n_gen > 1 ? f.t_end - f.t_first : f.t_end - t0;
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
    int rc;

    mc_engine_status(e, &st);
    if (!json)
        printf("%s, kv %s, %.1f MB of weights; memory roof %.1f GB/s\n", st.backend,
               st.kv, (double)st.weight_bytes / 1e6, b.roof / 1e9);
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

int mc_cmd_bench(int argc, char **argv, const struct mc_lua_half *lua)
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
        fprintf(stderr, "mascon: bench: '%.40s' is none of: run\n", a.pos[0]);
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

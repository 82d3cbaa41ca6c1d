/* compress.c - `mascon compress SRC DST --recipe NAME`: a smaller checkpoint from a
 * checkpoint.
 *
 * --explain takes no DST and prints the decision for each matrix. --calibrate FILE runs a
 * text through the source first, to know which columns matter. Progress goes to stderr,
 * the report to stdout. OWNS nothing afterwards. THREAD: main. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/compress/calibrate.h"
#include "core/compress/compress.h"
#include "core/model/load.h"
#include "core/weights/weights.h"

struct job {
    struct mc_ckpt *src;
    struct mc_recipe *recipe;
    struct mc_calib *calib; /* or NULL */
    json_t *seen;           /* rows by expert */
    bool json, tty;
    int jobs;
    uint64_t shard_bytes;
    double began, last;
    uint64_t first; /* bytes that earlier runs had written */
    bool counting;
};

static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

static void progress(void *ctx, uint64_t done, uint64_t all, int shard, int n_shard)
{
    struct job *j = ctx;
    double now = mc_now(), rate;

    if (!j->counting) {
        j->counting = true;
        j->first = done;
        j->began = now;
    }
    if (now - j->last < (j->tty ? 0.5 : 10) || now - j->began < 1)
        return;
    j->last = now;
    rate = (double)(done - j->first) / (now - j->began);
    fprintf(stderr, "%s%.2f of %.2f GiB, shard %d of %d, %.0f MB/s, %.0f s left%s",
            j->tty ? "\r" : "", gib(done), gib(all), shard, n_shard, rate / 1e6,
            rate > 0 ? (double)(all - done) / rate : 0, j->tty ? "   " : "\n");
}

static void explain(void *ctx, const struct mc_press_line *l)
{
    char to[16];

    mc_target_name(&l->to, to, sizeof to);
    if (((struct job *)ctx)->json)
        printf("{\"module\":\"%s\",\"rows\":%d,\"columns\":%d,\"role\":\"%s\",\"from\":"
               "\"%s\","
               "\"to\":\"%s\",\"rule\":%d,\"from_bytes\":%llu,\"to_bytes\":%llu}\n",
               l->module, l->n, l->k, mc_role_name(l->role), l->from, to, l->to.rule,
               (unsigned long long)l->from_bytes, (unsigned long long)l->to_bytes);
    else
        printf("%-60s [%d, %d]  %s -> %s%s\n", l->module, l->n, l->k, l->from, to,
               l->to.rule ? "" : l->role == MC_ROLE_OTHER ? "" : " (no rule)");
}

static void show_class(const struct mc_press_class *c, bool json)
{
    double bits = 8 * (double)c->to_bytes / (double)c->n_weight;
    double rel = c->loss.ref2 > 0 ? sqrt(c->loss.err2 / c->loss.ref2) : 0;
    double cosine = c->loss.ref2 > 0 && c->loss.got2 > 0
                        ? c->loss.dot / sqrt(c->loss.ref2 * c->loss.got2)
                        : 1;

    printf(
        json ? "{\"role\":\"%s\",\"from\":\"%s\",\"to\":\"%s\",\"matrices\":%lld,"
               "\"weights\":%lld,\"bits_weight\":%.4f,\"relative_error\":%.6f,"
               "\"cosine\":%.7f}\n"
             : "%-10s %-6s -> %-9s %7lld matrices %14lld weights %7.3f bits  error %.4f  "
               "cosine %.6f\n",
        mc_role_name(c->role), c->from, c->to, (long long)c->n_matrix,
        (long long)c->n_weight, bits, rel, cosine);
}

static void report(const struct mc_press_report *r, bool json)
{
    for (int i = 0; i < r->n_cls; i++)
        show_class(&r->cls[i], json);
    printf(json ? "{\"from_bytes\":%llu,\"to_bytes\":%llu,\"ratio\":%.4f,\"shards\":%d}\n"
                : "%llu bytes -> %llu bytes, %.3f of them, in %d file%s\n",
           (unsigned long long)r->from_bytes, (unsigned long long)r->to_bytes,
           (double)r->to_bytes / (double)r->from_bytes, r->n_shard,
           r->n_shard == 1 ? "" : "s");
}

static int open_job(struct job *j, const char *src, const char *recipe,
                    const struct mc_lua_half *lua, struct mc_err *err)
{
    json_t *table = NULL;
    int rc = lua->recipe(recipe, &table, err);

    if (rc == 0)
        rc = mc_recipe_read(table, &j->recipe, err);
    json_decref(table);
    if (rc < 0)
        return rc;
    return mc_ckpt_open(src, &j->src, err);
}

/* ---- calibration ------------------------------------------------------------------- */

static void note_seen(void *ctx, const char *module, int64_t rows, int64_t lent)
{
    int n = (int)(strstr(module, ".down_proj") - module);

    if (rows == 0)
        fprintf(stderr,
                "the text sent no row to %.*s: %lld rows of its layer went through it "
                "instead\n",
                n, module, (long long)lent);
    json_object_setn_new(((struct job *)ctx)->seen, module, (size_t)n,
                         json_integer(rows));
}

static void show_seen(struct job *j)
{
    struct mc_calib_seen s;

    j->seen = json_object();
    mc_calib_seen(j->calib, &s, note_seen, j);
    if (j->json)
        printf("{\"calibrated_tokens\":%d,\"experts\":%d,\"unseen\":%d,"
               "\"lent\":%d,\"least_rows\":%lld,\"mean_rows\":%.1f,\"most_rows\":%lld}\n",
               s.n_token, s.n_expert, s.n_unseen, s.n_lent, (long long)s.least, s.mean,
               (long long)s.most);
    else if (s.n_expert > 0)
        printf(
            "calibrated on %d tokens: %d experts saw %lld to %lld rows, %.1f on average; "
            "%d saw none; %d with few were lent their layer's\n",
            s.n_token, s.n_expert, (long long)s.least, (long long)s.most, s.mean,
            s.n_unseen, s.n_lent);
    else
        printf("calibrated on %d tokens\n", s.n_token);
}

static int calibrate(struct job *j, const char *src, const char *text, int32_t n_token,
                     struct mc_err *err)
{
    const struct mc_backend_opts bo = {.threads = j->jobs, .ref_act = -1};
    struct mc_ranks ranks = {0};
    struct mc_tok *tok = NULL;
    int rc = mc_ranks_open(&ranks, "cpu", &bo, 1, err);

    if (rc == 0)
        rc = mc_ranks_load(&ranks, src, &tok, err);
    if (rc == 0)
        rc = mc_calib_run(&ranks, tok, text, n_token, &j->calib, err);
    mc_ranks_close(&ranks);
    mc_tok_close(tok);
    if (rc == 0)
        show_seen(j);
    return rc;
}

static const float *importance(void *ctx, const char *module, int32_t columns)
{
    struct job *j = ctx;

    return mc_calib_importance(j->calib, module, columns);
}

/* ---- the job ----------------------------------------------------------------------- */

static int run(struct job *j, const char *dst, const char *recipe, struct mc_err *err)
{
    struct mc_press p = {.src = j->src, .recipe = j->recipe, .recipe_name = recipe,
                         .jobs = j->jobs, .shard_bytes = j->shard_bytes,
                         .importance = j->calib ? importance : NULL,
                         .calibration = j->seen,
                         .progress = progress, .ctx = j};
    struct mc_press_report r;
    int rc;

    j->tty = isatty(STDERR_FILENO);
    rc = dst ? mc_press_run(&p, dst, &r, err) : mc_press_explain(&p, explain, j, &r, err);
    if (j->tty && j->last > 0)
        fprintf(stderr, "\n");
    if (rc == 0)
        report(&r, j->json);
    return rc;
}

/* A number from lo to hi, times unit. */
static int number(const char *flag, const char *text, double lo, double hi, double unit,
                  double *out, struct mc_err *err)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= lo && v <= hi))
        return mc_fail_param(err, MC_EARG, flag,
                             "--%s %.40s is not a number from %g to %g", flag, text, lo,
                             hi);
    *out = v * unit;
    return 0;
}

int mc_cmd_compress(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *recipe = "int4-g128-experts", *jobs = "0", *shard = "5";
    const char *text = NULL, *tokens = "16384";
    double n_jobs = 0, bytes = 0, n_token = 0;
    bool only = false;
    struct job j = {0};
    const struct mc_flag flags[] = {
        {"recipe", "NAME|FILE.lua", &recipe,
         "what becomes of each matrix [int4-g128-experts]"},
        {"calibrate", "FILE", &text, "a text that shows which columns matter"},
        {"calibrate-tokens", "N", &tokens, "of it, at most [16384]"},
        {"jobs", "N", &jobs, "threads [one a core]"},
        {"shard-size", "GB", &shard, "of each file of weights [5]"},
        {"explain", NULL, &only, "no DST: print the decision for each matrix"},
        {"json", NULL, &j.json, "one JSON object a line"},
        {0},
    };
    struct mc_args a = {.word = "compress", .usage = "SRC DST --recipe NAME [flags]",
                        .flags = flags, .min = 1, .max = 2};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    rc = number("jobs", jobs, 0, 256, 1, &n_jobs, &err);
    if (rc == 0)
        rc = number("shard-size", shard, 0.001, 1e6, 1e9, &bytes, &err);
    if (rc == 0)
        rc = number("calibrate-tokens", tokens, 512, 1 << 30, 1, &n_token, &err);
    j.jobs = (int)n_jobs;
    j.shard_bytes = (uint64_t)bytes;
    if (rc == 0 && only == (a.n_pos == 2))
        rc = mc_fail(&err, MC_EARG, only ? "--explain writes nothing: leave DST out"
                                         : "name DST, or give --explain");
    if (rc == 0)
        rc = open_job(&j, a.pos[0], recipe, lua, &err);
    if (rc == 0 && text && !only)
        rc = calibrate(&j, a.pos[0], text, (int32_t)n_token, &err);
    if (rc == 0)
        rc = run(&j, only ? NULL : a.pos[1], recipe, &err);
    mc_calib_free(j.calib);
    json_decref(j.seen);
    mc_recipe_free(j.recipe);
    mc_ckpt_close(j.src);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}

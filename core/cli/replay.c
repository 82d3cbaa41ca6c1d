/* replay.c - `mascon replay FILE --policy P`: recorded arrivals under another scheduler.
 *
 * The step's cost is fitted to the recording's own steps, and each simulated step misses it as
 * a recorded one of its kind about that time did. Prints what the recorded server did beside
 * what the policy would have done; exit status 3 when a request starves under
 * it, so that a script sees it before it is live. OWNS nothing after it returns. THREAD:
 * main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/base/sample.h"
#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/engine/sim.h"

enum { STARVES = 3 };

/* One side, in the units that are printed. */
struct side {
    double ttft[4], gap[4]; /* ms: mean, p50, p90, p99 */
    double tokens_s, seconds;
    int32_t requests, tokens, starved, preempted;
};

/* Mean and percentiles of seconds, as milliseconds; sorts v. */
static void shares(float *v, int32_t n, double out[4])
{
    static const double at[] = {0.5, 0.9, 0.99};
    double sum = 0;

    memset(out, 0, 4 * sizeof *out);
    if (n == 0)
        return;
    mc_sort_floats(v, n);
    for (int32_t i = 0; i < n; i++)
        sum += (double)v[i];
    out[0] = sum / n * 1e3;
    for (int k = 0; k < 3; k++)
        out[k + 1] = (double)v[(int32_t)(at[k] * (n - 1))] * 1e3;
}

struct times {
    double arrive, first, last;
    int32_t n_gen;
};

/* What is told of requests, from either side; i: which. False: it is left out. */
typedef bool (*times_fn)(const void *ctx, int32_t i, struct times *t);

static int measure(times_fn fn, const void *ctx, int32_t n, float *gap, int32_t n_gap,
                   struct side *out)
{
    float *ttft = malloc((size_t)(n ? n : 1) * sizeof *ttft);
    double begin = 0, end = 0;
    struct times t;

    if (!ttft)
        return MC_ENOMEM;
    for (int32_t i = 0; i < n; i++) {
        if (!fn(ctx, i, &t) || t.first == 0)
            continue;
        if (out->requests == 0 || t.arrive < begin)
            begin = t.arrive;
        end = t.last > end ? t.last : end;
        ttft[out->requests++] = (float)(t.first - t.arrive);
        out->tokens += t.n_gen;
    }
    shares(ttft, out->requests, out->ttft);
    shares(gap, n_gap, out->gap);
    out->seconds = end - begin;
    out->tokens_s = out->seconds > 0 ? out->tokens / out->seconds : 0;
    free(ttft);
    return 0;
}

static bool recorded(const void *ctx, int32_t i, struct times *t)
{
    const struct mc_rec_req *q = &((const struct mc_recording *)ctx)->req[i];

    *t = (struct times){q->in.t, q->t_first, q->t_last, q->n_gen};
    return true;
}

struct both {
    const struct mc_recording *rec;
    const struct mc_sim *sim;
};

static bool simulated(const void *ctx, int32_t i, struct times *t)
{
    const struct both *b = ctx;
    const struct mc_sim_req *q = &b->sim->req[i];

    *t = (struct times){b->rec->req[i].in.t, q->t_first, q->t_last, q->n_gen};
    return !q->skipped;
}

/* ---- showing ----------------------------------------------------------------------- */

static json_t *json_of(const struct side *s)
{
    return json_pack(
        "{s:i, s:i, s:f, s:f, s:{s:f, s:f, s:f, s:f}, s:{s:f, s:f, s:f, s:f}, "
        "s:i, s:i}",
        "requests", s->requests, "tokens", s->tokens, "seconds", s->seconds, "tokens_s",
        s->tokens_s, "ttft_ms", "mean", s->ttft[0], "p50", s->ttft[1], "p90", s->ttft[2],
        "p99", s->ttft[3], "inter_token_ms", "mean", s->gap[0], "p50", s->gap[1], "p90",
        s->gap[2], "p99", s->gap[3], "preempted", s->preempted, "starved", s->starved);
}

static json_t *order_of(const struct both *b)
{
    json_t *ends = json_array();

    for (int32_t i = 0; i < b->rec->n_req; i++)
        json_array_append_new(ends, json_real(b->sim->req[i].t_end));
    return ends;
}

static void show_json(const struct side *a, const struct side *b, const char *policy,
                      const struct mc_sim_opts *o, const struct both *both)
{
    const struct mc_sim *sim = both->sim;
    json_t *out = json_pack(
        "{s:o, s:o, s:s, s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}, s:i, s:i, s:f, s:b, s:o}",
        "recorded", json_of(a), "replayed", json_of(b), "policy", policy, "cost", "us_base",
        (double)o->decode.us_base, "us_row", (double)o->decode.us_row, "us_ktok_kv",
        (double)o->decode.us_ktok_kv, "prompt_us_base", (double)o->prefill.us_base,
        "prompt_us_tok", (double)o->prefill.us_tok, "prompt_us_ktok_kv",
        (double)o->prefill.us_ktok_kv, "rel_err", (double)o->decode.rel_err, "host_us",
        o->host_us, "failed_plans", sim->failed, "trimmed", sim->trimmed, "idle_s",
        sim->idle_s, "stuck", sim->stuck, "ends", order_of(both));

    if (sim->failed)
        json_object_set_new(out, "error", json_string(sim->err.text));
    mc_cli_show(out, true);
    json_decref(out);
}

static void line(const char *name, double a, double b)
{
    printf("%-22s %12.2f %12.2f %+8.1f %%\n", name, a, b, a > 0 ? (b / a - 1) * 100 : 0);
}

static void show_text(const struct side *a, const struct side *b, const char *policy,
                      const struct mc_sim_opts *o, const struct mc_sim *sim)
{
    static const char *const share[] = {"mean", "p50", "p90", "p99"};
    char name[32];

    printf("policy %s\n\n%-22s %12s %12s\n", policy, "", "recorded", "replayed");
    printf("%-22s %12d %12d\n", "requests", a->requests, b->requests);
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "first token %s ms", share[k]);
        line(name, a->ttft[k], b->ttft[k]);
    }
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "inter-token %s ms", share[k]);
        line(name, a->gap[k], b->gap[k]);
    }
    line("tokens a second", a->tokens_s, b->tokens_s);
    printf("%-22s %12s %12d\n%-22s %12s %12d\n", "preempted", "", b->preempted, "starved",
           "", b->starved);
    printf("a step: %.0f us + %.0f a row + %.1f a prompt token, mean error %.1f %%\n",
           (double)o->decode.us_base, (double)o->decode.us_row, (double)o->prefill.us_tok,
           (double)o->decode.rel_err * 100);
    if (sim->failed)
        printf("%d plans failed, the first: %s\n", sim->failed, sim->err.text);
    if (sim->starved || sim->stuck)
        printf("STARVES: %d requests got nothing for %d s and more while others ran%s\n",
               sim->starved, MC_STARVE_S, sim->stuck ? "; in the end nothing ran" : "");
}

/* ---- the command ------------------------------------------------------------------- */

static int replay(const struct mc_recording *rec, const struct mc_policy *p,
                  const char *name, bool json, struct mc_err *err)
{
    struct mc_sim_opts o = {.rec = rec, .policy = p};
    struct side was = {0}, would = {0};
    struct mc_sim sim = {0};
    const struct both both = {rec, &sim};
    int rc = mc_sim_fit(rec, &o, err);

    if (rc == 0)
        rc = mc_sim_run(&o, &sim, err);
    if (rc == 0)
        rc = measure(recorded, rec, rec->n_req, rec->gap, rec->n_gap, &was);
    if (rc == 0)
        rc = measure(simulated, &both, rec->n_req, sim.gap, sim.n_gap, &would);
    would.starved = sim.starved;
    would.preempted = sim.preempted;
    if (rc == 0 && json)
        show_json(&was, &would, name, &o, &both);
    else if (rc == 0)
        show_text(&was, &would, name, &o, &sim);
    mc_sim_free(&sim);
    mc_sim_unfit(&o);
    return rc < 0 ? rc : would.starved || sim.stuck ? STARVES : 0;
}

int mc_cmd_replay(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *policy = NULL;
    bool json = false;
    const struct mc_flag flags[] = {
        {"policy", "P", &policy, "a policy directory, a file, a shipped policy's name, or "
                                 "builtin (the one in C)"},
        {"json", NULL, &json, "the answer as JSON"}, {0}};
    struct mc_args a = {.word = "replay", .usage = "FILE --policy P [--json]", .flags = flags,
                        .min = 1, .max = 1};
    struct mc_recording rec = {0};
    struct mc_policy p = mc_policy_builtin;
    struct mc_lone *lone = NULL;
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    if (!policy) {
        fprintf(stderr, "mascon: usage: mascon replay FILE --policy P [--json]\n");
        return 2;
    }
    rc = mc_recording_load(a.pos[0], &rec, &err);
    if (rc == 0 && strcmp(policy, "builtin") != 0)
        rc = lua->lone(policy, &lone, &p, &err);
    if (rc == 0 && (rec.cut || rec.lost))
        fprintf(stderr,
                "mascon: the recording ends early or has holes (%u events lost)\n",
                rec.lost);
    if (rc == 0)
        rc = replay(&rec, &p, policy, json, &err);
    lua->lone_close(lone);
    mc_recording_free(&rec);
    return rc < 0 ? mc_cli_fail(&err) : rc;
}

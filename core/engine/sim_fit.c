/* sim_fit.c - what steps take, learnt from a recording: the fitted cost, and by how much
 * each recorded step missed it.
 *
 * OWNS the misses until mc_sim_unfit. THREAD: any one. */
#include <math.h>
#include <stdlib.h>

#include "core/base/sample.h"
#include "core/engine/sim.h"

static const double DRIFT_S = 0.5;

enum { AROUND = 20, ROUNDS = 4, HELD_UP = 2 };

static double median_host(const struct mc_recording *r)
{
    float *v = malloc((size_t)(r->n_step ? r->n_step : 1) * sizeof *v);
    double us = 0;

    for (int32_t i = 0; v && i < r->n_step; i++)
        v[i] = r->step[i].host_us;
    if (v && r->n_step) {
        mc_sort_floats(v, r->n_step);
        us = (double)v[r->n_step / 2];
    }
    free(v);
    return us;
}

/* The median of how much longer than estimated the steps around step i took. */
static float pace_at(const struct mc_recording *r, const struct mc_sim_opts *o, int32_t i)
{
    int32_t from = i > AROUND ? i - AROUND : 0, n = 0;
    float v[2 * AROUND + 1];

    for (int32_t k = from; k < r->n_step && k <= i + AROUND; k++) {
        double would = mc_cost_us(&o->decode, &o->prefill, &r->step[k].cost);

        v[n++] = (float)((double)r->step[k].cost.us / (would > 1 ? would : 1));
    }
    mc_sort_floats(v, n);
    return v[n / 2];
}

/* Fitted again to steps at the machine's usual pace: a slow spell, in which other rows
 * ran than otherwise, would be taken for what those rows cost. */
static int fit(const struct mc_recording *r, struct mc_sim_opts *o, struct mc_err *err)
{
    struct mc_cost_step *s = malloc((size_t)(r->n_step ? r->n_step : 1) * sizeof *s);

    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory to fit the steps' cost");
    for (int round = 0; round < ROUNDS; round++) {
        for (int32_t i = 0; i < r->n_step; i++) {
            float pace = round > 0 ? pace_at(r, o, i) : 1, most;

            s[i] = r->step[i].cost;
            s[i].us /= pace > 0 ? pace : 1;
            if (round == 0)
                continue;
            /* one that was held up tells nothing of its rows */
            most = HELD_UP * (float)mc_cost_us(&o->decode, &o->prefill, &s[i]);
            s[i].us = s[i].us < most ? s[i].us : most;
        }
        mc_cost_fit(s, r->n_step, &o->decode, &o->prefill);
    }
    free(s);
    if (r->n_step < MC_COST_LEAST || !(o->decode.us_base + o->decode.us_row > 0))
        return mc_fail(err, MC_EFORMAT,
                       "the recording has %d steps: too few to tell what a "
                       "step takes",
                       r->n_step);
    return 0;
}

int mc_sim_fit(const struct mc_recording *r, struct mc_sim_opts *o, struct mc_err *err)
{
    size_t room = (size_t)r->n_step + 1;
    struct mc_sim_miss *m = malloc(2 * room * sizeof *m); /* a half for each kind */
    int32_t n[2] = {0};
    int rc = m ? fit(r, o, err)
               : mc_fail(err, MC_ENOMEM, "no memory for %d steps", r->n_step);

    if (rc < 0) {
        free(m);
        return rc;
    }
    for (int32_t i = 0; i < r->n_step; i++) {
        const struct mc_cost_step *c = &r->step[i].cost;
        double would = mc_cost_us(&o->decode, &o->prefill, c);
        int kind = c->n_prompt_tok > 0;

        if (would > 1)
            m[(size_t)kind * room + (size_t)n[kind]++] = (struct mc_sim_miss){
                r->step[i].t - (double)c->us / 1e6, (float)((double)c->us / would)};
    }
    for (int kind = 0; kind < 2; kind++) {
        o->miss[kind] = m + (size_t)kind * room;
        o->n_miss[kind] = n[kind];
    }
    o->host_us = median_host(r);
    return 0;
}

void mc_sim_unfit(struct mc_sim_opts *o)
{
    free((struct mc_sim_miss *)(uintptr_t)o->miss[0]);
    o->miss[0] = o->miss[1] = NULL;
}

/* Each is used once, in order, so that slow spells stay together; out of step by more
 * than DRIFT_S it goes on from now. */
double mc_sim_miss(const struct mc_sim_opts *o, int kind, double begins, int32_t at[2])
{
    const struct mc_sim_miss *m = o->miss[kind];
    int32_t n = o->n_miss[kind], lo = 0, hi = n, i = at[kind];

    if (n == 0)
        return 1;
    if (i >= n || fabs(m[i].t - begins) > DRIFT_S) {
        while (lo < hi) {
            int32_t mid = lo + (hi - lo) / 2;

            if (m[mid].t < begins)
                lo = mid + 1;
            else
                hi = mid;
        }
        i = lo < n ? lo : n - 1;
    }
    at[kind] = i + 1;
    return (double)m[i].times;
}

/* stats.c - counters, histograms, and what lanes and tenants were served.
 *
 * Owns nothing. THREAD: writing the engine's; reading any: each number is an atomic of
 * its own, written with relaxed order by one writer, so a reader sees each one whole. */
#include <math.h>

#include "core/engine/engine_int.h"

const double mc_bucket_le[MC_N_BUCKET - 1] = {0.0001, 0.0005, 0.001, 0.0025, 0.005,
                                              0.01,   0.025,  0.05,  0.1,    0.25,
                                              0.5,    1,      2.5,   10,     60};

static void add(_Atomic double *d, double n)
{
    atomic_store_explicit(d, atomic_load_explicit(d, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

void mc_count(struct mc_engine *e, enum mc_counter c, double n)
{
    add(&e->counter[c], n);
}

void mc_observe(struct mc_engine *e, enum mc_hist_id h, double seconds)
{
    int i = 0;

    while (i < MC_N_BUCKET - 1 && seconds > mc_bucket_le[i])
        i++;
    add(&e->hist[h].sum, seconds);
    add(&e->hist[h].count[i], 1);
}

double mc_engine_counter(const struct mc_engine *e, enum mc_counter c)
{
    return atomic_load_explicit(&e->counter[c], memory_order_relaxed);
}

void mc_engine_histogram(const struct mc_engine *e, enum mc_hist_id h,
                         struct mc_histogram *out)
{
    out->sum = atomic_load_explicit(&e->hist[h].sum, memory_order_relaxed);
    for (int i = 0; i < MC_N_BUCKET; i++)
        out->count[i] = atomic_load_explicit(&e->hist[h].count[i], memory_order_relaxed);
}

int mc_engine_set_weight(struct mc_engine *e, bool tenant, uint32_t id, double weight,
                         struct mc_err *err)
{
    uint32_t n = tenant ? MC_N_TENANT : MC_N_LANE;

    if (id >= n)
        return mc_fail_param(err, MC_EARG, tenant ? "tenant" : "lane",
                             "there is no %s %u: 0..%u", tenant ? "tenant" : "lane", id, n - 1);
    if (!(weight >= 1e-3 && weight <= 1e6))
        return mc_fail_param(err, MC_EARG, "weight", "weight %g is outside 0.001..1e6",
                             weight);
    pthread_mutex_lock(&e->look);
    (tenant ? e->tenant : e->lane)[id].weight = (float)weight;
    pthread_mutex_unlock(&e->look);
    return 0;
}

/* served halves every 60 ln 2 s: a time constant of 60 s. */
void mc_party_decay(struct mc_party_state *s, double now)
{
    if (s->t_served > 0)
        s->served *= exp(-(now - s->t_served) / 60);
    s->t_served = now;
}

void mc_party_serve(struct mc_party_state *s, double now, double in, double out)
{
    mc_party_decay(s, now);
    s->tok_in += in;
    s->tok_out += out;
    s->served += in + out;
}

/* shard.c - tokens spread over ranks: what each made of its own becomes one result.
 *
 * shard_merge folds partial attention by the arithmetic of attn_merge, dsa_merge chooses
 * among the ranks' choices. Ranks read each other's memory where it lies; what each may
 * touch and when is local.c's rule 2. Owns nothing; bodies run on a stream's threads. */
#include <math.h>
#include <string.h>

#include "kernels/comm/comm.h"
#include "kernels/host/fold.h"
#include "kernels/host/host.h"
#include "kernels/host/kv.h"
#include "kernels/host/vocab.h"

enum { MAX_TOPK = 2048 /* of each rank, keys on the stack */ };

static const char *group_refuse(const struct mc_kv *kv, const struct mc_peer *peer)
{
    if (kv->n_shard < 2 || kv->n_shard > MC_MAX_RANKS || peer->n % kv->n_shard != 0)
        return "tokens are not sharded over groups of the ranks";
    return NULL;
}

/* The first rank of this rank's group. */
static int32_t group_of(const struct mc_kv *kv, const struct mc_peer *peer)
{
    return peer->rank - kv->rank;
}

/* ---- shard_merge ------------------------------------------------------------------- */

static int shard_merge_need(const struct mc_shard_merge_p *p, struct mc_need *need,
                            const char **why)
{
    const char *no = group_refuse(&p->kv, &p->peer);

    (void)need;
    return no ? mc_refuse(why, no) : 0;
}

struct merge {
    const struct mc_shard_merge_p *p;
    const void *const *all;
};

static void merge_row(const struct merge *m, int32_t t)
{
    const struct mc_shard_merge_p *p = m->p;
    const struct mc_kv *kv = &p->kv;
    int32_t n = kv->n_shard, heads = n * p->h, slot = p->rows.slot[p->rows.row_seq[t]];
    int32_t phase0 = mc_kv_phase(kv, slot, 0), head, i; /* of the group's first rank */
    const float *from[MC_MAX_RANKS];
    float *out = (float *)p->out + (int64_t)t * p->h * p->d;

    for (i = 0; i < n; i++) /* by rising phase */
        from[i] = m->all[group_of(kv, &p->peer) + (n - phase0 + i) % n];
    for (head = 0; head < p->h; head++, out += p->d) {
        int64_t at = (int64_t)t * heads + kv->rank * p->h + head;
        int64_t ml_at = (int64_t)p->rows.cap * heads * p->d + at * 2;
        float ml[2] = {-INFINITY, 0};

        memset(out, 0, (size_t)p->d * sizeof *out);
        for (i = 0; i < n; i++)
            mc_fold(ml, out, from[i] + ml_at, from[i] + at * p->d, p->d);
        mc_fold_end(ml, out, p->d);
    }
}

static void merge_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    (void)lane;
    for (; t0 < t1; t0++)
        merge_row(ctx, (int32_t)t0);
}

static int shard_merge(struct mc_par *par, const struct mc_shard_merge_p *p)
{
    struct merge m = {.p = p};
    int32_t n = p->rows.live[MC_LIVE_ROWS];
    int rc = mc_comm_meet(&p->peer, MC_OP_shard_merge, (uint64_t)n, p->fold, &m.all);

    if (rc == 0)
        mc_par_for(par, n, 1, merge_rows, &m);
    return rc;
}

MC_HOST_OP(mc_host_shard_merge, shard_merge, shard_merge_need, shard_merge);

/* ---- dsa_merge --------------------------------------------------------------------- */

static int dsa_merge_need(const struct mc_dsa_merge_p *p, struct mc_need *need,
                          const char **why)
{
    const char *no = group_refuse(&p->kv, &p->peer);

    (void)need;
    if (!no && (p->topk < 1 || p->topk > MAX_TOPK))
        no = "dsa_merge: topk below 1 or above 2048";
    return no ? mc_refuse(why, no) : 0;
}

struct choice {
    const struct mc_dsa_merge_p *p;
    const void *const *all;
};

static const float *scores_of(const struct mc_dsa_merge_p *p, const int32_t *lists)
{
    return (const float *)(lists + (int64_t)p->rows.cap * p->topk);
}

/* The last key, in order, of the topk best of all ranks; there are more. */
static uint64_t last_key(const struct choice *c, int64_t t)
{
    const struct mc_dsa_merge_p *p = c->p;
    int32_t group = group_of(&p->kv, &p->peer), r, i, n = 0;
    uint64_t key[MC_MAX_RANKS * MAX_TOPK];

    for (r = group; r < group + p->kv.n_shard; r++) {
        const int32_t *list = (const int32_t *)c->all[r] + t * p->topk;
        const float *score = scores_of(p, c->all[r]) + t * p->topk;

        for (i = 0; i < p->topk && list[i] >= 0; i++)
            key[n++] = mc_key(score[i], list[i]);
    }
    mc_vocab_sort(key, n);
    return n < p->topk ? UINT64_MAX : key[p->topk - 1];
}

static void choose(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct choice *c = ctx;
    const struct mc_dsa_merge_p *p = c->p;

    (void)lane;
    for (; t0 < t1; t0++) {
        const int32_t *list = p->lists + t0 * p->topk;
        const float *score = scores_of(p, p->lists) + t0 * p->topk;
        int32_t *idx = p->idx + t0 * p->topk, n = 0, i;
        bool all = p->rows.pos[t0] - p->first < p->topk;
        uint64_t last = all ? 0 : last_key(c, t0);

        for (i = 0; i < p->topk && list[i] >= 0; i++)
            if (all || mc_key(score[i], list[i]) <= last)
                idx[n++] = list[i];
        while (n < p->topk)
            idx[n++] = -1;
    }
}

static int dsa_merge(struct mc_par *par, const struct mc_dsa_merge_p *p)
{
    struct choice c = {.p = p};
    int32_t n = p->rows.live[MC_LIVE_ROWS];
    int rc = mc_comm_meet(&p->peer, MC_OP_dsa_merge, (uint64_t)n, p->lists, &c.all);

    if (rc == 0)
        mc_par_for(par, n, 1, choose, &c);
    return rc;
}

MC_HOST_OP(mc_host_dsa_merge, dsa_merge, dsa_merge_need, dsa_merge);

/* keep.c - which pages of the cache go first, when one must.
 *
 * The policy's keep scores blocks in arrays; nothing is asked until a page of the cache is
 * needed, and of each block once for every time that it became cached. Without a hook, and
 * after one that failed, the least recently used go first.
 * Owns nothing. THREAD: the engine's. Always true: no score in kv is of another generation
 * of the policies than the last that was asked, and none is NaN. */
#include "core/base/log.h"
#include "core/engine/engine_int.h"

static int ask(struct mc_engine *e, struct mc_block *block, int32_t n, struct mc_err *err)
{
    int rc = e->policy.ops->keep(e->policy.self, block, n, err);

    for (int32_t i = 0; rc == 0 && i < n; i++)
        if (block[i].score != block[i].score)
            rc = mc_fail(err, MC_EPOLICY, "keep gave block %d NaN as its score", i + 1);
    return rc;
}

void mc_keep_scores(struct mc_engine *e)
{
    const struct mc_policy_ops *ops = e->policy.ops;
    uint32_t generation = ops->generation ? ops->generation(e->policy.self) : 0;
    struct mc_block block[MC_KEEP_CAP];
    int32_t page[MC_KEEP_CAP], n;
    struct mc_err err = {0};
    int rc = 0;

    if (!ops->keep)
        return;
    if (generation != e->keep_generation)
        mc_kv_unscore(e->kv);
    e->keep_generation = generation;
    n = mc_kv_unscored(e->kv, page, block, MC_KEEP_CAP);
    while (rc == 0 && n > 0) {
        rc = ask(e, block, n, &err);
        if (rc == 0)
            mc_kv_score(e->kv, page, block, n);
        n = mc_kv_unscored(e->kv, page, block, MC_KEEP_CAP);
    }
    if (rc == 0)
        return;
    mc_kv_unscore(e->kv);
    if (rc < 0) {
        mc_count(e, MC_C_keep_fallback_total, 1);
        mc_debug("engine", "%s; the least recently used goes", err.text);
    }
}

int32_t mc_keep_take(struct mc_engine *e, int32_t shard, const struct mc_seq *q,
                     uint32_t *tag)
{
    if (mc_kv_must_evict(e->kv, shard))
        mc_keep_scores(e);
    return mc_kv_take(e->kv, shard, (int32_t)q->id, tag);
}

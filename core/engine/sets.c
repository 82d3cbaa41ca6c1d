/* sets.c - vocabulary sets that a sampler bans, kept on the device.
 *
 * Owns the places in each rank's dev.masks. THREAD: the engine's.
 * Always true: a place that a live sequence names is never overwritten; so a policy that
 * is reloaded often finds room again as old sequences end. */
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/engine/engine_int.h"

static bool in_use(const struct mc_engine *e, int32_t place)
{
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_params *p = &e->seqs[e->live[i]].params;

        if (e->seqs[e->live[i]].slot >= 0 && (p->ban[0] == place || p->ban[1] == place))
            return true;
    }
    return false;
}

static int upload(struct mc_engine *e, int32_t place, const uint32_t *bits, int32_t n)
{
    size_t words = ((size_t)e->model->cfg.vocab + 31) / 32, have = ((size_t)n + 31) / 32;
    uint32_t *copy = calloc(words, sizeof *copy);
    int rc = MC_ENOMEM;

    if (copy) {
        memcpy(copy, bits, (have < words ? have : words) * sizeof *copy);
        rc = 0;
        for (int32_t i = 0; i < e->crew.n && rc == 0; i++) {
            struct mc_run *run = &e->crew.run[i];

            rc = run->be->upload(run->be, run->dev.masks + (size_t)place * words, copy,
                                 words * sizeof *copy);
        }
    }
    free(copy);
    return rc;
}

int32_t mc_set_place(struct mc_engine *e, int32_t handle)
{
    const uint32_t *bits;
    int32_t n = 0, place = 0;

    if (handle < 0)
        return -1;
    for (int32_t i = 0; i < MC_MAX_SETS; i++)
        if (e->set_handle[i] == handle)
            return i;
    bits = e->policy.ops->vocab_set ? e->policy.ops->vocab_set(e->policy.self, handle, &n)
                                    : NULL;
    while (place < MC_MAX_SETS && in_use(e, place))
        place++;
    if (!bits || place == MC_MAX_SETS || upload(e, place, bits, n) < 0) {
        mc_warn("engine", "vocabulary set %d is not banned: %s", handle,
                bits ? "no place left on the device" : "no such set");
        return -1;
    }
    e->set_handle[place] = handle;
    return place;
}

/* policy.h - the border between the engine and whoever decides for it.
 *
 * The engine calls these on its own thread and nothing else; they are filled by lua/host
 * (the step VM), by the built-in first-come policy (mc_policy_builtin) or by a test.
 * Every function returns 0 or a negative MC_E code; after a failure the engine does that
 * call with the built-in policy and no request is lost. A NULL member means "the built-in".
 * No pointer passed in is kept after the call. */
#ifndef MC_ENGINE_POLICY_H
#define MC_ENGINE_POLICY_H

#include "core/base/err.h"
#include "core/mc_abi.h"

struct mc_policy_ops {
    /* Fills plan->item. The view is the engine's block; an implementation that shows it to
     * scripts copies it first. */
    int (*plan)(void *self, const struct mc_step_view *view, struct mc_plan *plan,
                struct mc_err *err);
    /* Called before plan when decode growth can't be met: need pages; answers with SWAP or
     * DROP items. */
    int (*evict)(void *self, const struct mc_step_view *view, int32_t need,
                 struct mc_plan *plan, struct mc_err *err);
    /* 0 to admit, or a negative code to refuse the request with. */
    int (*admit)(void *self, const struct mc_row *row, struct mc_err *err);
    /* Once a sequence: from what the client wants to what is sampled with. */
    int (*chain)(void *self, const struct mc_pick_seq *seq, const struct mc_params *want,
                 struct mc_params *out, struct mc_err *err);
    /* Once a token, when chain set MC_PARAM_PICK: *id = a token, or -1 for the device's
     * own. seq->state may be changed. */
    int (*pick)(void *self, const struct mc_cands *c, struct mc_pick_seq *seq, int32_t *id,
                struct mc_err *err);
    /* Between two steps: an implementation may switch to a new generation here. */
    void (*step_end)(void *self);
    /* The text of a why index for `mascon why`, or NULL. */
    const char *(*why)(void *self, uint16_t index);
    /* Generation that serves now; 0 for the built-in. */
    uint32_t (*generation)(void *self);
};

enum { MC_PARAM_PICK = 1 };

struct mc_policy {
    const struct mc_policy_ops *ops;
    void *self;
};

/* First come, first served: decode all, resume the paused, then prefill in order of
 * arrival while pages and tokens last. */
extern const struct mc_policy mc_policy_builtin;

/* Row i of a view; lanes and tenants likewise. */
static inline const struct mc_row *mc_view_row(const struct mc_step_view *v, int32_t i)
{
    return (const struct mc_row *)((const char *)v + v->off_row) + i;
}

static inline const struct mc_party *mc_view_lane(const struct mc_step_view *v, int32_t i)
{
    return (const struct mc_party *)((const char *)v + v->off_lane) + i;
}

static inline const int32_t *mc_view_order(const struct mc_step_view *v, int32_t order)
{
    return (const int32_t *)((const char *)v + v->off_order) + order * v->n_row;
}

#endif

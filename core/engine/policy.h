/* policy.h - the border between the engine and whoever decides for it.
 *
 * The engine calls these on its own thread and nothing else; they are filled by lua/host
 * (the step VM), by the built-in first-come policy (mc_policy_builtin) or by a test.
 * Every function returns 0 or a negative MC_E code; after a failure the engine does that
 * call with the built-in policy and no request is lost. A NULL member means "the
 * built-in". No pointer passed in is kept after the call. */
#ifndef MC_ENGINE_POLICY_H
#define MC_ENGINE_POLICY_H

#include <stdbool.h>

#include "core/base/err.h"
#include "core/mc_abi.h"

struct mc_policy_ops {
    /* Fills plan->item, each row at most once. The caller has set abi, epoch, cap and the
     * budget: tok_left, row_left and page_left, which fall with each grant. The view is
     * the engine's block: an implementation that shows it to scripts copies it first, and
     * may change nothing in it but user[] of rows, lanes and tenants.
     *
     *   RUN   n tokens: of a DECODE row 1 (and draft more), of a WAITING or PREFILL row
     * the next n of n_left; takes one row, n tokens, and p_step pages (decode) or
     *         mc_row_prompt_pages (prompt)
     *   BACK  a PAUSED row comes back: takes one row and p_step pages
     *   SWAP, DROP  a running row is preempted: its p_held pages move to host memory, or
     *         are forgotten; p_own of them are free then
     *   HOLD  a note: it does not run, and why;  FAIL  the request ends with code n
     *
     * The engine checks each item again and trims what does not hold. */
    int (*plan)(void *self, struct mc_step_view *view, struct mc_plan *plan,
                struct mc_err *err);
    /* Called before plan when decode growth can't be met: need pages; answers with SWAP
     * or DROP items. */
    int (*evict)(void *self, struct mc_step_view *view, int32_t need,
                 struct mc_plan *plan, struct mc_err *err);
    /* Scores n (at most MC_KEEP_CAP) cached blocks: what has the lowest goes first when pages
     * are short. Asked once for each time that a block becomes cached, and not before a page
     * of the cache is needed. 1: there is no such hook, the least recently used goes. */
    int (*keep)(void *self, struct mc_block *block, int32_t n, struct mc_err *err);
    /* 0 to admit, or a negative code to refuse the request with. */
    int (*admit)(void *self, const struct mc_row *row, struct mc_err *err);
    /* Once a sequence: from what the client wants to what is sampled with. seq->state may
     * be changed, here and in pick. */
    int (*chain)(void *self, struct mc_pick_seq *seq, const struct mc_params *want,
                 struct mc_params *out, struct mc_err *err);
    /* Once a token, when chain set MC_PARAM_PICK: *id = a token, or -1 for the device's
     * own. */
    int (*pick)(void *self, const struct mc_cands *c, struct mc_pick_seq *seq,
                int32_t *id, struct mc_err *err);
    /* The vocabulary set that a chain's ban[] names: a bit for each of *n token ids,
     * lowest bit of word 0 first. Valid and constant as long as the policy lives; NULL
     * for a handle that was never given out. */
    const uint32_t *(*vocab_set)(void *self, int32_t handle, int32_t *n);
    /* Between two steps: an implementation may switch to a new generation here. */
    void (*step_end)(void *self);
    /* A sequence starves under this policy (MC_STARVE_...): it may go back to another. */
    void (*starved)(void *self);
    /* The text of a why index for `mascon why`, or NULL. */
    const char *(*why)(void *self, uint16_t index);
    /* Generation that serves now; 0 for the built-in. */
    uint32_t (*generation)(void *self);
};

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

/* Index of the i-th row in an order; rows as they lie when the view has no such order. */
static inline int32_t mc_view_ordered(const struct mc_step_view *v, int32_t order,
                                      int32_t i)
{
    return order < v->n_order ? mc_view_order(v, order)[i] : i;
}

/* Fills the orders of a block whose rows (in order of arrival) and lanes are there; each
 * row's lane is one of them. */
void mc_view_sort(struct mc_step_view *v);
/* Pages that running rows take until each has read its prompt and, if it decodes, made a page
 * of tokens more or ended. */
int32_t mc_view_reserve(const struct mc_step_view *v);

/* Pages without which running rows can't go on: each that decodes has its next token; when
 * none does and nothing is in flight (idle), one that reads its prompt reads on. */
int32_t mc_view_growth(const struct mc_step_view *v, bool idle);

/* Starvation, in service and in simulation: a sequence that could run got nothing for so
 * many seconds, and meanwhile its whole lane got nothing, or so many of its lane that came
 * later and are no more urgent started before it, or (it had started) so many steps ran. */
enum { MC_STARVE_S = 10, MC_STARVE_PASSED = 16, MC_STARVE_STEPS = 100 };

static inline bool mc_starves(double waited, bool waiting, int64_t passed, int64_t steps,
                              double quiet)
{
    return waited >= MC_STARVE_S &&
           (quiet >= MC_STARVE_S ||
            (waiting ? passed >= MC_STARVE_PASSED : steps >= MC_STARVE_STEPS));
}

static inline bool mc_row_runs(const struct mc_row *r)
{
    return r->state == MC_STATE_PREFILL || r->state == MC_STATE_DECODE;
}

/* Pages that a row takes when its next n prompt tokens run: up to the end of those; of the
 * prefix that it would reuse, pages that nobody holds are taken out of the evictable ones. */
static inline int32_t mc_row_prompt_pages(const struct mc_step_view *v,
                                          const struct mc_row *r, int32_t n)
{
    int32_t end = r->n_ctx + r->n_hit + n;
    int32_t pages = (end + v->p_tokens - 1) / v->p_tokens - r->p_held - r->p_shared;

    return pages > 0 ? pages : 0;
}

#endif

/* shadow.h - a candidate that plans beside the live generation, on real views, never applied.
 *
 * The engine copies a view and what the live hook planned when the candidate is ready for
 * one; the builder's thread lets the candidate plan on the copy and counts what differs. So
 * it costs the engine a copy, whatever it does. THREAD: as each says. */
#ifndef MC_LUA_SHADOW_H
#define MC_LUA_SHADOW_H

#include <jansson.h>
#include <stdatomic.h>

#include "lua/host/step.h"

struct mc_policies;

enum { MC_SHADOW_OFF, MC_SHADOW_READY, MC_SHADOW_COPYING, MC_SHADOW_GIVEN };

struct mc_shadow {
    atomic_int state;
    /* the engine's while COPYING, else the builder's */
    struct mc_record record; /* bytes over cap: it did not fit */
    size_t cap;
    struct mc_plan live;
    /* ---- builder ---- */
    struct mc_stepvm *vm;
    struct mc_plan mine;
    double slots[MC_N_STATE];
    char path[256];
    uint64_t views, differ, only_live, only_mine, other; /* views; rows */
    double sum_us, max_us;
    char error[240]; /* why it ended */
};

/* Engine: before and after the live plan hook; ok: it made `plan`. */
void mc_shadow_before(struct mc_shadow *s, const struct mc_step_view *v,
                      const struct mc_plan *plan);
bool mc_shadow_after(struct mc_shadow *s, const struct mc_plan *plan, bool ok); /* given */

/* Builder. */
void mc_shadow_take(struct mc_shadow *s);
int mc_shadow_begin(struct mc_shadow *s, const struct mc_step_opts *o, const char *path,
                    struct mc_err *err);
void mc_shadow_end(struct mc_shadow *s); /* also to free it all */
json_t *mc_shadow_report(const struct mc_shadow *s);

#endif

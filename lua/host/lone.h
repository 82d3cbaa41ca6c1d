/* lone.h - one step VM as a policy, for simulations: no builder, no spare, no roll-back.
 *
 * A hook that fails is an error to the caller, who goes on with the built-in; a VM that is
 * lost answers MC_EPOLICY from then on. OWNS its VM. THREAD: one that has no limit armed. */
#ifndef MC_LUA_LONE_H
#define MC_LUA_LONE_H

#include "lua/host/step.h"

struct mc_lone {
    struct mc_stepvm *vm; /* owned once mc_lone_open made it; may be set by hand */
    struct mc_sets *sets;
    double state[MC_N_STATE];
    uint32_t layout;
};

struct mc_policy mc_lone_policy(struct mc_lone *s);
/* State as declared. */
void mc_lone_reset(struct mc_lone *s);

/* path: a directory, a file, or the name of a shipped policy. */
int mc_lone_open(const char *path, struct mc_lone **out, struct mc_err *err);
void mc_lone_close(struct mc_lone *s);

#endif

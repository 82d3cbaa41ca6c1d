/* trial.h - building a generation's step VM and trying it, with where it ran away when it did.
 *
 * What a reload, a spare and `policy check` have in common. OWNS nothing after it returns.
 * THREAD: the builder's, or one that has no limit armed. */
#ifndef MC_LUA_TRIAL_H
#define MC_LUA_TRIAL_H

#include "lua/host/dryrun.h"

/* mc_stepvm_open, with " at file:line" when a file ran over its budget. */
int mc_trial_open(const struct mc_step_opts *o, struct mc_generation *g,
                  struct mc_stepvm **out, struct mc_err *err);
/* mc_dryrun of a VM, which may serve afterwards; closes it and makes it NULL when it may
 * not. What its hooks log meanwhile is dropped. */
int mc_trial_run(struct mc_stepvm **s, const struct mc_record *recorded, int n_recorded,
                 struct mc_tried *tried, struct mc_err *err);
/* Runs a lost VM's last call again, interpreted: the line that ran, "" when it ends now. */
void mc_trial_find(const struct mc_stepvm *lost, char *at, size_t n);

#endif

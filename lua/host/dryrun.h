/* dryrun.h - trying a new VM's hooks on made-up and recorded steps before they serve.
 *
 * A policy that fails only when something waits, or when pages run out, must be caught on a
 * fresh install. It also warms the JIT: the hooks have run in the VM that will serve.
 * THREAD: the builder's. */
#ifndef MC_LUA_DRYRUN_H
#define MC_LUA_DRYRUN_H

#include "lua/host/step.h"

enum { MC_N_TRIED = 256 };

/* What a trial saw of plan(). */
struct mc_tried {
    int n;           /* views */
    bool warm;       /* the JIT had its chance: times count */
    int n_us;
    float us[MC_N_TRIED]; /* of the last ones; sorted when the trial is over */
};

/* n_recorded steps more; tried may be NULL. On failure err->text says which hook failed with
 * what; a lost VM is left lost, with the arguments that did it. */
int mc_dryrun(struct mc_stepvm *s, const struct mc_record *recorded, int n_recorded,
              struct mc_tried *tried, struct mc_err *err);

#endif

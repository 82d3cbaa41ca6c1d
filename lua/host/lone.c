/* lone.c - plan, evict and admit of one VM. Owns the VM that mc_lone_open made.
 * THREAD: as lone.h says. */
#include "lua/host/lone.h"

#include <stdlib.h>
#include <string.h>

#include "lua/host/trial.h"

static int lost(const struct mc_lone *s, struct mc_err *err)
{
    return s->vm->vm->lost ? mc_fail(err, MC_EPOLICY, "the policy's VM ran away before")
                           : 0;
}

static int op_plan(void *self, struct mc_step_view *v, struct mc_plan *p,
                   struct mc_err *err)
{
    struct mc_lone *s = self;

    return lost(s, err) ? MC_EPOLICY : mc_stepvm_plan(s->vm, v, p, s->state, err);
}

static int op_evict(void *self, struct mc_step_view *v, int32_t need, struct mc_plan *p,
                    struct mc_err *err)
{
    struct mc_lone *s = self;

    if (!mc_stepvm_has(s->vm, MC_HOOK_EVICT))
        return mc_policy_builtin.ops->evict(NULL, v, need, p, err);
    return lost(s, err) ? MC_EPOLICY : mc_stepvm_evict(s->vm, v, need, p, s->state, err);
}

static const struct mc_policy_ops ops = {.plan = op_plan, .evict = op_evict};

struct mc_policy mc_lone_policy(struct mc_lone *s)
{
    return (struct mc_policy){&ops, s};
}

void mc_lone_reset(struct mc_lone *s)
{
    memcpy(s->state, s->vm->layout[0].start, sizeof s->state);
}

int mc_lone_open(const char *path, struct mc_lone **out, struct mc_err *err)
{
    struct mc_lone *s = calloc(1, sizeof *s);
    struct mc_step_opts o = {.log = mc_step_quiet};
    struct mc_generation *g = NULL;
    int rc = s ? 0 : mc_fail(err, MC_ENOMEM, "no memory for a policy");

    *out = NULL;
    if (rc == 0 && !(s->sets = calloc(1, sizeof *s->sets)))
        rc = mc_fail(err, MC_ENOMEM, "no memory for a policy");
    if (rc == 0)
        rc = mc_generation_open_path(path, &g, err);
    if (rc == 0) {
        s->sets->vocab = mc_vocab_bytes();
        o.sets = s->sets;
        rc = mc_trial_open(&o, g, &s->vm, err);
    }
    mc_generation_unref(g);
    if (rc < 0) {
        mc_lone_close(s);
        return rc;
    }
    mc_lone_reset(s);
    *out = s;
    return 0;
}

void mc_lone_close(struct mc_lone *s)
{
    if (!s)
        return;
    mc_stepvm_close(s->vm);
    if (s->sets)
        mc_sets_fini(s->sets);
    free(s->sets);
    free(s);
}

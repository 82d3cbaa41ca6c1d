/* step.h - one step VM: a generation's scheduler, sampler and cache, and calling their hooks.
 *
 * OWNS its VM, what scripts see (shown.h) and the facts noted at load; holds a reference to
 * its generation. THREAD: one at a time: the builder's, then the engine's once handed over.
 * A failed hook changes nothing outside the VM: answers, user numbers and state are copied
 * out after success only. */
#ifndef MC_LUA_STEP_H
#define MC_LUA_STEP_H

#include <jansson.h>

#include "core/engine/policy.h"
#include "lua/host/generation.h"
#include "lua/host/vm.h"
#include "lua/host/vocab.h"

enum mc_hook {
    MC_HOOK_PLAN,
    MC_HOOK_EVICT,
    MC_HOOK_ADMIT,
    MC_HOOK_CHAIN,
    MC_HOOK_PICK,
    MC_HOOK_KEEP,
    MC_N_HOOK,
};
extern const char *const mc_hook_names[MC_N_HOOK];

/* Declared state: position -> name and value to start with. */
struct mc_layout {
    int32_t n;
    char name[MC_N_STATE][32];
    double start[MC_N_STATE];
};

/* Where a line that a script logs goes: copied, from the VM's thread, must not block. */
typedef void (*mc_step_log)(void *ctx, int level, const char *text);
void mc_step_quiet(void *ctx, int level, const char *text); /* of VMs that are only tried */

/* A step as the engine showed it: the budget of its plan, and one block. */
struct mc_record {
    int32_t tok_left, row_left, page_left;
    size_t bytes;              /* 0: no step was recorded */
    struct mc_step_view *view; /* owned by whoever made the record */
};

struct mc_step_opts {
    struct mc_sets *sets; /* the vocabulary and its sets; outlives the VM */
    mc_step_log log;
    void *log_ctx;
    struct mc_metrics *metrics; /* where scripts count; NULL: nowhere */
    const json_t *config;       /* the server's settings by key, or NULL */
    const char *model;          /* whose engine's VM this is; NULL: nobody's */
    size_t mem;    /* 0: MC_VM_MEM */
    bool no_jit;
    bool follow;   /* note lines as they run in vm->at (implies no_jit), to find a runaway */
    int64_t load_us, hook_us; /* 0: the gate's */
    const struct mc_record *views; /* what tests walk through; n_views 0: the shipped ones */
    int n_views;
};

enum { MC_N_WHY = 257 };

struct mc_stepvm {
    struct mc_vm *vm;
    struct mc_shown *shown;
    struct mc_generation *gen;
    struct mc_step_opts opts;
    int ref[MC_N_HOOK]; /* LUA_NOREF: the policy has no such hook */
    int env, start;     /* registry references */
    struct mc_layout layout[2]; /* scheduler, sampler */
    char *why[MC_N_WHY];        /* from 1 */
    char place[MC_N_HOOK][80];  /* where each hook is written: "sched.lua:12" */
    uint32_t epoch;
    enum mc_hook last; /* the hook whose arguments `shown` holds */
    struct mc_stepvm *next; /* for lists of whoever owns it */
};

/* Builds a VM and runs init.lua, the files it names, their init and tests. On failure
 * err->text begins with "file:line:" where there is one; with `follow` and MC_EBUDGET, `at`
 * (of n bytes, may be NULL) is the line that ran. Seals the generation when it works. */
int mc_stepvm_open(const struct mc_step_opts *o, struct mc_generation *g,
                   struct mc_stepvm **out, char *at, size_t n, struct mc_err *err);
void mc_stepvm_close(struct mc_stepvm *s); /* also a lost one; NULL is accepted */
bool mc_stepvm_has(const struct mc_stepvm *s, enum mc_hook h);

/* The hooks, as in core/engine/policy.h; state: the scheduler's slots. Seqs' state must
 * already follow this VM's layout. Only for hooks that it has. MC_EBUDGET, MC_ENOMEM:
 * the VM is lost. */
int mc_stepvm_plan(struct mc_stepvm *s, struct mc_step_view *v, struct mc_plan *p,
                   double *state, struct mc_err *err);
int mc_stepvm_evict(struct mc_stepvm *s, struct mc_step_view *v, int32_t need,
                    struct mc_plan *p, double *state, struct mc_err *err);
int mc_stepvm_admit(struct mc_stepvm *s, const struct mc_row *row, double *state,
                    int *answer, struct mc_err *err); /* 0 or the code to refuse with */
int mc_stepvm_chain(struct mc_stepvm *s, struct mc_pick_seq *seq,
                    const struct mc_params *want, struct mc_params *out,
                    struct mc_err *err);
int mc_stepvm_pick(struct mc_stepvm *s, const struct mc_cands *c, struct mc_pick_seq *seq,
                   int32_t *id, struct mc_err *err);

int mc_stepvm_keep(struct mc_stepvm *s, struct mc_block *block, int32_t n,
                   struct mc_err *err); /* n: at most MC_KEEP_CAP */

/* Runs in s the call whose arguments are still in from->shown: s must be freshly opened,
 * of the same generation. */
int mc_stepvm_replay(struct mc_stepvm *s, const struct mc_stepvm *from,
                     struct mc_err *err);

#endif

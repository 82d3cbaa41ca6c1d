/* policies.h - the policies of one engine: generations of scripts, kept, swapped, rolled
 * back.
 *
 * Fills a struct mc_policy for the engine. A *builder thread* makes the next generation and
 * spare VMs and watches the directory; the engine thread only swaps a pointer.
 *
 * Rules:
 *  1. A generation is one policy directory's files at one moment. It goes live whole, at a
 *     step boundary, after its files were checked, init and tests ran and its hooks were
 *     dry-run. Any failure before that leaves the one that serves, and says file:line.
 *  2. The one before it is kept, VM and all, for roll-back.
 *  3. A hook that fails costs no request: the built-in policy does that call, and calls of
 *     that hook until the step ends. A step in which any hook failed is a bad step; three
 *     in a row (of steps that called a hook), or ten in 1,000, roll back to the kept
 *     generation, or to the built-in policy when there is none. In its first 1,000 steps
 *     (probation) a generation also goes when a sequence starves under it.
 *  4. A hook that runs over its time or memory costs its VM: the spare goes on, and no hook
 *     is called until the step ends. After 32 lost VMs scripts are off until
 *     the process restarts ("degraded"): each leaves its machine code mapped.
 *  5. What must outlive a VM is here or in the engine: declared state, vocabulary sets.
 *  6. Several engines serve one generation: the policies of the others follow the first's
 *     (the leader's). It goes live when a VM of it was built and tried for each engine; each
 *     swaps at its own step boundary; one that rolls back takes all with it.
 *
 * THREAD: each function says. OWNS generations, VMs, the builder thread. */
#ifndef MC_LUA_POLICIES_H
#define MC_LUA_POLICIES_H

#include "core/engine/policy.h"
#include "lua/host/generation.h"
#include "lua/host/step.h"
#include "lua/host/vocab.h"

struct mc_policies;

struct mc_policies_opts {
    const char *dir; /* --policies, or NULL */
    const char *etc; /* looked at next; NULL: /etc/mascon/policies */
    bool no_watch;
    struct mc_vocab vocab; /* outlives the policies */
    /* The edge half of a generation, called on the builder's thread (and in open): check
     * before it is accepted, live when new requests are to use it. live keeps g by a
     * reference of its own. Both may be NULL. */
    int (*check)(void *self, struct mc_generation *g, struct mc_err *err);
    void (*live)(void *self, struct mc_generation *g);
    /* Something waits for a step boundary, which an idle engine has none of: wake it. Any
     * thread; NULL: swaps wait for the next request. */
    void (*wake)(void *self);
    void *self;
    /* Those that follow: opened before, with `follows`, and closed after this. Borrowed. */
    struct mc_policies *const *followers;
    int n_followers;
    bool follows;      /* has no directory: a leader brings its generations */
    const char *model; /* which model's engine this is for, in messages; or NULL */
    size_t vm_bytes; /* 0: MC_VM_MEM */
    struct mc_metrics *metrics; /* where scripts count; outlives the policies; or NULL */
    const json_t *config;       /* what mc.config shows; outlives them too; or NULL */
};

/* Chooses the directory (the first of dir, etc with an init.lua, else the built-in set),
 * builds its generation and starts the builder. A directory that is refused does not stop
 * the server: the built-in set serves and status().error says why. Fails when that is
 * refused too, or dir does not exist. */
int mc_policies_open(const struct mc_policies_opts *o, struct mc_policies **out,
                     struct mc_err *err);
/* After the engine has stopped. */
void mc_policies_close(struct mc_policies *p);

/* For mc_engine_set_policy. Valid until close. */
struct mc_policy mc_policies_policy(struct mc_policies *p);

/* Reads the directory again, even when nothing changed, and waits for the outcome; 0 and
 * *number: the generation that goes live at the next step boundary. Any thread but the
 * engine's. */
int mc_policies_reload(struct mc_policies *p, uint32_t *number, struct mc_err *err);
/* At the next step boundary the kept generation serves and the live one is kept. *number:
 * which. MC_ENOENT when none is kept. Any thread. */
int mc_policies_rollback(struct mc_policies *p, uint32_t *number, struct mc_err *err);

/* Runs fn on the builder's thread, where VMs may be built, and waits for it. Any thread but
 * the engine's. */
void mc_policies_do(struct mc_policies *p, void (*fn)(struct mc_policies *p, void *arg),
                    void *arg);

struct mc_hook_stats {
    uint64_t calls, failures;
    double sum_us, max_us;
};

struct mc_policies_status {
    uint32_t live, kept, next; /* generation numbers; live 0: built-in policy in C */
    uint64_t steps;            /* that the live one has served */
    char dir[256];             /* of the chosen directory, "" for the built-in set */
    bool degraded;
    int lost;              /* VMs that ran over time or memory */
    uint32_t rollbacks;    /* by failure */
    char error[400];       /* last refusal or failure, "" when none since the last success */
    struct mc_hook_stats hook[MC_N_HOOK];
};
void mc_policies_status(struct mc_policies *p, struct mc_policies_status *out); /* any */

/* The live, kept and next generations (as known now), with a reference each; returns how
 * many. Any thread. */
int mc_policies_generations(struct mc_policies *p, struct mc_generation *out[3]);

#endif

/* policies_int.h - struct mc_policies, shared by hooks.c (the engine), builder.c and policies.c.
 *
 * The two threads share no lock. VMs cross in three places, each an atomic pointer:
 * `next` and `spare` from the builder, `dead` (a stack) from the engine. A VM in a slot
 * belongs to nobody until it is taken by exchange. Log lines and events go to the builder
 * by a ring (SPSC: the engine writes). */
#ifndef MC_LUA_POLICIES_INT_H
#define MC_LUA_POLICIES_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "lua/host/dryrun.h"
#include "lua/host/policies.h"
#include "lua/host/shadow.h"

enum {
    MC_LOST_MAX = 32,
    MC_BAD_IN_A_ROW = 3,
    MC_BAD_MANY = 10,
    MC_BAD_WINDOW = 1000, /* steps */
    MC_N_EVENT = 256,
    MC_N_LAYOUT = 64,
    MC_N_KNOWN = 8,
};

enum { MC_RECORD_NONE, MC_RECORD_ASKED, MC_RECORD_COPYING, MC_RECORD_GIVEN };

enum mc_event_kind {
    MC_EVENT_LOG,    /* a script's line; level */
    MC_EVENT_FAILED, /* a hook failed */
    MC_EVENT_LIVE,   /* generation `number` serves now */
    MC_EVENT_BACK,   /* rolled back by failure to `number` */
};

struct mc_event {
    int kind, level;
    uint32_t number;
    char text[320];
};

struct mc_job { /* of whoever waits in mc_policies_do */
    struct mc_job *next;
    void (*fn)(struct mc_policies *p, void *arg);
    void *arg;
    bool done;
};

struct mc_hook_count { /* written by the engine thread only */
    _Atomic uint64_t calls, failures, sum_ns, max_ns;
};

struct mc_policies {
    struct mc_policies_opts opts;
    char dir[256];
    struct mc_sets sets;

    /* ---- engine thread ---- */
    struct mc_stepvm *live, *kept; /* NULL: lost, the spare is awaited; or none */
    unsigned off;                  /* hooks not to be called until the step ends */
    bool called, bad;              /* in this step */
    bool starves;                  /* the generation on probation goes when it ends */
    int bad_row;
    uint64_t step, bad_at[MC_BAD_MANY]; /* the last bad steps, a ring */
    int n_bad;
    struct mc_layout layout[MC_N_LAYOUT]; /* number - 1 modulo the size: what seqs follow */
    uint32_t n_layout;
    uint32_t live_layout[2]; /* scheduler, sampler */
    uint32_t state_layout;
    double state[MC_N_STATE]; /* the scheduler's */

    /* ---- crossing ---- */
    _Atomic(struct mc_stepvm *) next, spare, dead;
    _Atomic uint64_t numbers; /* generations: live << 32 | kept; the engine writes */
    atomic_bool want_rollback, degraded;
    atomic_int lost;
    atomic_uint rollbacks;
    _Atomic uint64_t steps; /* that the live generation has served; the engine writes */
    struct mc_hook_count count[MC_N_HOOK];
    struct mc_event event[MC_N_EVENT];
    atomic_uint ev_in, ev_out; /* engine adds at in, builder takes at out */
    atomic_uint ev_dropped;
    atomic_int hook; /* MC_HOOK_... that was called last, + 1; less than 0: it is running */
    atomic_int record_state;
    struct mc_record record; /* the engine's while COPYING, else the builder's */
    size_t record_cap;
    atomic_uint went_back; /* of a follower: the generation that it rolled back from; or 0 */
    struct mc_shadow shadow;
    int bell; /* eventfd: wakes the builder */

    /* ---- builder thread ---- */
    pthread_t thread;
    bool started;
    int inotify;            /* -1: not watching */
    uint64_t tried;         /* hash of the last generation built or refused */
    uint32_t edge_number;   /* generation that new requests use */
    struct mc_stepvm *ready; /* of a follower: tried, for the generation that may come */
    uint32_t spare_number;  /* generation of the VM last put into spare */
    int64_t reload_at;      /* ms; 0: nothing changed */
    int64_t no_spare_until; /* ms; after a spare could not be made */
    uint32_t follow; /* 0, or a generation whose VMs note lines: one ran away, and did not
                        when its call was run again */

    /* ---- under lock ---- */
    pthread_mutex_t lock; /* taken alone */
    pthread_cond_t done_cond;
    uint64_t asked, done; /* reload requests */
    struct mc_job *jobs;
    bool stop;
    int result; /* of the last reload, with its number and error */
    uint32_t result_number;
    struct mc_err result_err;
    uint32_t n_made, next_number; /* last given; last put into next */
    struct mc_generation *known[MC_N_KNOWN]; /* live, kept, next, and what is not yet let go */
    char error[400];
};

static inline uint32_t mc_numbers_live(uint64_t numbers)
{
    return (uint32_t)(numbers >> 32);
}

static inline uint32_t mc_numbers_kept(uint64_t numbers)
{
    return (uint32_t)numbers;
}

/* builder.c: on the builder's thread, or before it starts. */
void *mc_builder_run(void *policies);
/* Builds a generation from dir ("": the built-in set) with its first VM, dry-run. With
 * only_if_changed and the texts last tried: 0 and *out NULL. */
int mc_builder_make(struct mc_policies *p, const char *dir, bool only_if_changed,
                    struct mc_stepvm **out, struct mc_err *err);
/* Opens a VM of g; where it ran away when it did. */
int mc_builder_vm(struct mc_policies *p, struct mc_generation *g, struct mc_stepvm **out,
                  struct mc_err *err);
void mc_builder_watch(struct mc_policies *p); /* (again) after dir may have been replaced */
void mc_builder_error(struct mc_policies *p, const char *text); /* status().error; logs */
void mc_builder_wake(struct mc_policies *p); /* any thread; does not block */
/* Asks the engine for the step that runs now, into record; an idle one gives none. */
void mc_builder_ask_record(struct mc_policies *p);

/* hooks.c: generation and hook, for a crash report. */
void mc_hooks_crash(void *policies);

/* follow.c: on the leader's builder's thread, or before it starts. */
/* Builds and tries a VM of g for each follower. */
int mc_follow_prepare(struct mc_policies *leader, struct mc_generation *g,
                      struct mc_err *err);
/* The followers serve g, which was prepared or is one they keep. */
void mc_follow_adopt(struct mc_policies *leader, struct mc_generation *g);
void mc_follow_back(struct mc_policies *leader); /* rolls back when one of them has */

/* hooks.c: on the engine's thread, or before it starts. */
extern const struct mc_policy_ops mc_hooks_ops;
void mc_hooks_set_live(struct mc_policies *p, struct mc_stepvm *s);
void mc_hooks_bury(struct mc_policies *p, struct mc_stepvm *s); /* any thread */
/* Adds to the ring; drops when it is full. */
void mc_hooks_event(struct mc_policies *p, int kind, int level, uint32_t number,
                    const char *text);
void mc_hooks_log(void *policies, int level, const char *text); /* a VM's; any thread */

#endif

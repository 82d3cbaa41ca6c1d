/* follow.c - several engines serve one generation: the others follow the first.
 *
 * OWNS nothing; a follower's `ready` VM is its own. THREAD: mc_follow_* on the leader's
 * builder's (or in its mc_policies_open); prepare and adopt on each follower's builder's,
 * for whom the leader's waits. A follower never waits for its leader: it leaves word in
 * `went_back`. */
#include <stdio.h>

#include "core/base/log.h"
#include "lua/host/policies_int.h"
#include "lua/host/trial.h"

struct follow_job {
    struct mc_generation *g;
    struct mc_err *err;
    int rc;
};

static void keep_known(struct mc_policies *p, struct mc_generation *g)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < MC_N_KNOWN; i++)
        if (!p->known[i]) {
            p->known[i] = mc_generation_ref(g);
            break;
        }
    pthread_mutex_unlock(&p->lock);
}

/* ---- on the follower's builder ----------------------------------------------------- */

static void prepare(struct mc_policies *p, void *arg)
{
    struct follow_job *j = arg;

    mc_stepvm_close(p->ready);
    p->ready = NULL;
    if (atomic_load(&p->degraded)) {
        j->rc = mc_fail(j->err, MC_EPOLICY,
                        "%d VMs ran away: scripts are off until a restart", MC_LOST_MAX);
        return;
    }
    mc_builder_ask_record(p);
    j->rc = mc_builder_vm(p, j->g, &p->ready, j->err);
    if (j->rc == 0)
        j->rc = mc_trial_run(&p->ready, &p->record, 1, NULL, j->err);
}

/* The generation serves here at the next step boundary, as the live or the kept one. */
static void adopt(struct mc_policies *p, void *arg)
{
    struct follow_job *j = arg;
    uint32_t number = j->g->number;
    uint64_t numbers = atomic_load(&p->numbers);
    struct mc_stepvm *s = p->ready;
    struct mc_err err;

    p->edge_number = number;
    if (mc_numbers_live(numbers) == number)
        return;
    if (mc_numbers_kept(numbers) == number) {
        mc_hooks_bury(p, atomic_exchange(&p->next, NULL));
        atomic_store(&p->want_rollback, true);
    } else {
        p->ready = NULL;
        if (s && s->gen != j->g) {
            mc_stepvm_close(s);
            s = NULL;
        }
        if (!s && mc_builder_vm(p, j->g, &s, &err) < 0) {
            mc_builder_error(p, err.text);
            return;
        }
        keep_known(p, j->g);
        pthread_mutex_lock(&p->lock);
        p->next_number = number;
        p->error[0] = 0;
        pthread_mutex_unlock(&p->lock);
        p->no_spare_until = 0;
        mc_stepvm_close(atomic_exchange(&p->next, s));
    }
    if (p->opts.wake)
        p->opts.wake(p->opts.self);
}

/* ---- on the leader's builder ------------------------------------------------------- */

int mc_follow_prepare(struct mc_policies *leader, struct mc_generation *g,
                      struct mc_err *err)
{
    struct follow_job j = {g, err, 0};

    for (int i = 0; i < leader->opts.n_followers && j.rc == 0; i++) {
        struct mc_policies *p = leader->opts.followers[i];

        mc_policies_do(p, prepare, &j);
        if (j.rc < 0)
            mc_err_while(err, "trying it with model '%s'", p->opts.model);
    }
    return j.rc;
}

void mc_follow_adopt(struct mc_policies *leader, struct mc_generation *g)
{
    struct follow_job j = {g, NULL, 0};

    for (int i = 0; i < leader->opts.n_followers; i++)
        mc_policies_do(leader->opts.followers[i], adopt, &j);
}

void mc_follow_back(struct mc_policies *leader)
{
    uint32_t number;

    for (int i = 0; i < leader->opts.n_followers; i++) {
        struct mc_policies *p = leader->opts.followers[i];
        uint32_t failed = atomic_exchange(&p->went_back, 0);

        if (!failed || failed != mc_numbers_live(atomic_load(&leader->numbers)))
            continue;
        mc_warn("policy", "generation %u failed with model '%s'", failed, p->opts.model);
        mc_policies_rollback(leader, &number, NULL);
    }
}

/* builder.c - the builder thread: makes generations and spare VMs, finds where a runaway
 * was, watches the directory, writes the log lines of the engine's VMs.
 *
 * Owns the builder's part of struct mc_policies. THREAD: the builder's (mc_builder_make
 * also in mc_policies_open, before it runs).
 * Always true: `known` holds a reference to every generation that the engine may name. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "core/base/log.h"
#include "lua/host/policies_int.h"
#include "lua/host/trial.h"

enum { QUIET_MS = 200, IDLE_MS = 500, RECORD_WAIT_MS = 50 };

void mc_builder_wake(struct mc_policies *p)
{
    uint64_t one = 1;

    if (write(p->bell, &one, sizeof one) < 0)
        return; /* full: it is ringing already */
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

/* ---- making VMs -------------------------------------------------------------------- */

static struct mc_step_opts step_opts(struct mc_policies *p)
{
    return (struct mc_step_opts){.sets = &p->sets, .log = mc_hooks_log, .log_ctx = p,
                                 .mem = p->opts.vm_bytes, .metrics = p->opts.metrics,
                                 .config = p->opts.config, .model = p->opts.model};
}

int mc_builder_vm(struct mc_policies *p, struct mc_generation *g, struct mc_stepvm **out,
                  struct mc_err *err)
{
    struct mc_step_opts o = step_opts(p);

    o.follow = p->follow && p->follow == g->number;
    return mc_trial_open(&o, g, out, err);
}

static void add_known(struct mc_policies *p, struct mc_generation *g)
{
    pthread_mutex_lock(&p->lock);
    g->number = ++p->n_made;
    for (int i = 0; i < MC_N_KNOWN; i++) {
        if (!p->known[i]) {
            p->known[i] = mc_generation_ref(g);
            break;
        }
    }
    pthread_mutex_unlock(&p->lock);
}

int mc_builder_make(struct mc_policies *p, const char *dir, bool only_if_changed,
                    struct mc_stepvm **out, struct mc_err *err)
{
    const struct mc_source *init = NULL;
    struct mc_generation *g;
    int rc = mc_generation_open(dir, &g, err);
    bool same;

    *out = NULL;
    if (rc < 0)
        goto unread;
    if (dir[0])
        rc = mc_generation_source(g, "init", &init, err);
    if (rc == 0 && dir[0] && !init) /* or the built-in set would take over unasked */
        rc = mc_fail(err, MC_EPOLICY, "init.lua is gone from %s: what it named goes on",
                     dir);
    if (rc < 0) {
        mc_generation_unref(g);
        goto unread;
    }
    rc = mc_builder_vm(p, g, out, err);
    same = only_if_changed && g->hash == p->tried;
    p->tried = g->hash;
    if (rc >= 0 && !same)
        rc = mc_trial_run(out, &p->record, 1, NULL, err);
    if (rc >= 0 && !same && p->opts.check)
        rc = p->opts.check(p->opts.self, g, err);
    if (rc >= 0 && !same)
        rc = mc_follow_prepare(p, g, err);
    if (rc < 0 || same) {
        mc_stepvm_close(*out);
        *out = NULL;
    } else {
        add_known(p, g);
    }
    mc_generation_unref(g);
    return same ? 0 : rc;
unread:
    p->tried = 0; /* what comes back is tried, though it be what was there */
    return rc;
}

/* ---- what the engine tells --------------------------------------------------------- */

void mc_builder_error(struct mc_policies *p, const char *text)
{
    mc_error("policy", "%s", text);
    pthread_mutex_lock(&p->lock);
    snprintf(p->error, sizeof p->error, "%s", text);
    pthread_mutex_unlock(&p->lock);
}

/* Lets go of generations that nothing can go back to. */
static void forget_old(struct mc_policies *p)
{
    uint64_t numbers = atomic_load(&p->numbers);

    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < MC_N_KNOWN; i++) {
        struct mc_generation *g = p->known[i];

        if (g && g->number != mc_numbers_live(numbers) &&
            g->number != mc_numbers_kept(numbers) && g->number != p->next_number) {
            mc_generation_unref(g);
            p->known[i] = NULL;
        }
    }
    pthread_mutex_unlock(&p->lock);
}

static struct mc_generation *find_known(struct mc_policies *p, uint32_t number)
{
    for (int i = 0; i < MC_N_KNOWN; i++)
        if (p->known[i] && p->known[i]->number == number)
            return p->known[i];
    return NULL;
}

/* New requests use the generation that steps use. */
static void tell_edge(struct mc_policies *p, uint32_t number)
{
    struct mc_generation *g = find_known(p, number);

    if (!g || number == p->edge_number)
        return;
    p->edge_number = number;
    if (p->opts.live)
        p->opts.live(p->opts.self, g);
    mc_follow_adopt(p, g);
}

static void on_event(struct mc_policies *p, const struct mc_event *e)
{
    char text[400];

    switch (e->kind) {
    case MC_EVENT_LOG:
        mc_log_at((enum mc_log_level)e->level, "policy", "%s", e->text);
        break;
    case MC_EVENT_FAILED:
        snprintf(text, sizeof text, "generation %u: %s", e->number, e->text);
        mc_builder_error(p, text);
        break;
    case MC_EVENT_LIVE:
        mc_info("policy", "generation %u is live", e->number);
        tell_edge(p, e->number);
        break;
    case MC_EVENT_BACK:
        mc_warn("policy", "rolled back to %s %u",
                e->number ? "generation" : "the built-in policy,", e->number);
        if (p->opts.follows)
            atomic_store(&p->went_back, p->edge_number);
        tell_edge(p, e->number);
        break;
    }
}

static void take_events(struct mc_policies *p)
{
    unsigned out = atomic_load_explicit(&p->ev_out, memory_order_relaxed), dropped;

    while (out != atomic_load_explicit(&p->ev_in, memory_order_acquire)) {
        on_event(p, &p->event[out % MC_N_EVENT]);
        atomic_store_explicit(&p->ev_out, ++out, memory_order_release);
    }
    dropped = atomic_exchange(&p->ev_dropped, 0);
    if (dropped)
        mc_warn("policy", "%u lines from scripts were dropped: they came too fast",
                dropped);
}

/* Generation `number` has a new spare, which notes lines or no longer does. */
static void follow(struct mc_policies *p, uint32_t number, bool on)
{
    p->follow = on ? number : 0;
    mc_stepvm_close(atomic_exchange(&p->spare, NULL));
}

/* Where a lost VM was: the line that ran; or the hook's own, when run again it ends (it
 * depends on what the VM had come to hold). Then its successors note lines as they go,
 * slower, until one is caught. */
static void say_lost(struct mc_policies *p, const struct mc_stepvm *s)
{
    char at[80], text[400];
    bool found;

    if (s->opts.follow)
        snprintf(at, sizeof at, "%s", s->vm->at);
    else
        mc_trial_find(s, at, sizeof at);
    found = at[0];
    snprintf(text, sizeof text,
             "generation %u: %s used up its %s %s %s%s; the built-in policy "
             "served; VM %d of %d abandoned",
             s->gen->number, mc_hook_names[s->last],
             s->vm->lost == MC_EBUDGET ? "time" : "memory",
             found ? "at" : "in the hook at", found ? at : s->place[s->last],
             found ? "" : " (not when run again: its next VMs note lines)",
             atomic_load(&p->lost), MC_LOST_MAX);
    mc_builder_error(p, text);
    if (!found || p->follow == s->gen->number)
        follow(p, s->gen->number, !found);
}

/* Ends VMs that the engine is done with. */
static void take_dead(struct mc_policies *p)
{
    struct mc_stepvm *s = atomic_exchange(&p->dead, NULL), *next;

    for (; s; s = next) {
        next = s->next;
        if (s->vm->lost)
            say_lost(p, s);
        mc_stepvm_close(s);
    }
}

/* ---- spares and reloads ------------------------------------------------------------ */

/* Keeps a second VM of the live generation ready. */
static void keep_spare(struct mc_policies *p)
{
    uint32_t live = mc_numbers_live(atomic_load(&p->numbers));
    struct mc_generation *g = find_known(p, live);
    struct mc_stepvm *s;
    struct mc_err err;

    if (atomic_load(&p->spare) && p->spare_number == live)
        return;
    mc_stepvm_close(atomic_exchange(&p->spare, NULL));
    if (!g || now_ms() < p->no_spare_until)
        return;
    if (mc_builder_vm(p, g, &s, &err) < 0 ||
        mc_trial_run(&s, &p->record, 1, NULL, &err) < 0) {
        p->no_spare_until = now_ms() + 10000;
        mc_warn("policy", "no spare VM for generation %u: %s", live, err.text);
        return;
    }
    p->spare_number = live;
    atomic_store(&p->spare, s);
}

/* The first answer may only say how much room it takes. */
void mc_builder_ask_record(struct mc_policies *p)
{
    for (int tries = 0; tries < 2; tries++) {
        int want = MC_RECORD_ASKED;

        atomic_store(&p->record_state, want);
        for (int ms = 0; ms < RECORD_WAIT_MS; ms += 2) {
            if (atomic_load(&p->record_state) == MC_RECORD_GIVEN)
                break;
            poll(NULL, 0, 2);
        }
        if (atomic_compare_exchange_strong(&p->record_state, &want, MC_RECORD_NONE))
            return;
        while (atomic_load(&p->record_state) != MC_RECORD_GIVEN)
            poll(NULL, 0, 1); /* it is being copied */
        if (p->record.bytes <= p->record_cap)
            return;
        free(p->record.view);
        p->record_cap = p->record.bytes * 2;
        p->record.bytes = 0;
        p->record.view = malloc(p->record_cap);
        if (!p->record.view)
            p->record_cap = 0;
    }
}

static int reload(struct mc_policies *p, bool only_if_changed, uint32_t *number,
                  struct mc_err *err)
{
    struct mc_stepvm *s;
    int rc;

    if (atomic_load(&p->degraded))
        return mc_fail(err, MC_EPOLICY,
                       "%d VMs ran away: scripts are off until a restart", MC_LOST_MAX);
    mc_builder_ask_record(p);
    rc = mc_builder_make(p, p->dir, only_if_changed, &s, err);
    if (rc < 0) {
        mc_builder_error(p, err->text);
        return rc;
    }
    if (!s)
        return 0;
    *number = s->gen->number;
    pthread_mutex_lock(&p->lock);
    p->next_number = *number;
    p->error[0] = 0;
    pthread_mutex_unlock(&p->lock);
    p->no_spare_until = 0;
    mc_info("policy", "generation %u (%s) goes live at the next step", *number,
            p->dir[0] ? p->dir : "built in");
    mc_stepvm_close(atomic_exchange(&p->next, s));
    tell_edge(p, *number);
    if (p->opts.wake)
        p->opts.wake(p->opts.self);
    return 0;
}

/* Those who asked before it began have their answer. */
static void answer_reloads(struct mc_policies *p)
{
    struct mc_err err = {0};
    uint32_t number = 0;
    uint64_t asked;
    int rc;

    pthread_mutex_lock(&p->lock);
    asked = p->asked;
    pthread_mutex_unlock(&p->lock);
    if (asked == p->done)
        return;
    rc = reload(p, false, &number, &err);
    pthread_mutex_lock(&p->lock);
    p->done = asked;
    p->result = rc;
    p->result_number = number;
    p->result_err = err;
    pthread_cond_broadcast(&p->done_cond);
    pthread_mutex_unlock(&p->lock);
}

static void do_jobs(struct mc_policies *p)
{
    struct mc_job *j;

    pthread_mutex_lock(&p->lock);
    while ((j = p->jobs)) {
        p->jobs = j->next;
        pthread_mutex_unlock(&p->lock);
        j->fn(p, j->arg);
        pthread_mutex_lock(&p->lock);
        j->done = true;
        pthread_cond_broadcast(&p->done_cond);
    }
    pthread_mutex_unlock(&p->lock);
}

/* ---- the thread -------------------------------------------------------------------- */

void mc_builder_watch(struct mc_policies *p)
{
    /* Written and closed, or moved here: editors' renames and a `..data` link's swap. Or
     * gone, which is a mistake that has to be told. */
    const uint32_t what = IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM |
                          IN_DELETE_SELF | IN_MOVE_SELF;
    char routes[sizeof p->dir + 8];

    if (p->inotify < 0 || !p->dir[0])
        return;
    snprintf(routes, sizeof routes, "%s/routes", p->dir);
    inotify_add_watch(p->inotify, p->dir, what);
    inotify_add_watch(p->inotify, routes, what); /* need not be there */
}

/* Waits for the bell, a change, or the end of the quiet time after a change. */
static void wait_for_work(struct mc_policies *p)
{
    struct pollfd f[2] = {{.fd = p->bell, .events = POLLIN},
                          {.fd = p->inotify, .events = POLLIN}};
    char junk[4096];
    int64_t left = p->reload_at ? p->reload_at - now_ms() : IDLE_MS;

    poll(f, 2, left < 0 ? 0 : (int)left);
    if (f[0].revents && read(p->bell, junk, 8) < 0)
        return;
    if (f[1].revents && read(p->inotify, junk, sizeof junk) > 0)
        p->reload_at = now_ms() + QUIET_MS;
}

void *mc_builder_run(void *policies)
{
    struct mc_policies *p = policies;
    struct mc_err err;
    uint32_t number;
    bool stop = false;

    while (!stop) {
        wait_for_work(p);
        take_events(p);
        take_dead(p);
        forget_old(p);
        answer_reloads(p);
        do_jobs(p);
        mc_follow_back(p);
        mc_shadow_take(&p->shadow);
        if (p->reload_at && now_ms() >= p->reload_at) {
            p->reload_at = 0;
            mc_builder_watch(p);
            reload(p, true, &number, &err);
        }
        keep_spare(p);
        pthread_mutex_lock(&p->lock);
        stop = p->stop;
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

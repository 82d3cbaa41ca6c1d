/* policies.c - opening, closing and asking about an engine's policies.
 *
 * Owns struct mc_policies. THREAD: open and close from one; the rest from any. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/crash.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "lua/host/policies_int.h"

static bool has_init(const char *dir)
{
    char path[300];
    struct stat st;

    return snprintf(path, sizeof path, "%s/init.lua", dir) < (int)sizeof path &&
           stat(path, &st) == 0;
}

/* The first directory with an init.lua; "" is the built-in set. */
static int choose_dir(struct mc_policies *p, struct mc_err *err)
{
    const char *etc = p->opts.etc ? p->opts.etc : "/etc/mascon/policies", *dir = "";
    struct stat st;

    if (p->opts.dir && (stat(p->opts.dir, &st) || !S_ISDIR(st.st_mode)))
        return mc_fail_param(err, MC_ENOENT, "policies", "--policies %s is no directory; "
                             "`mascon policy init` begins one", p->opts.dir);
    if (p->opts.dir && has_init(p->opts.dir))
        dir = p->opts.dir;
    else if (has_init(etc))
        dir = etc;
    if (p->opts.dir && dir != p->opts.dir)
        mc_warn("policy", "%s has no init.lua; using %s", p->opts.dir,
                dir[0] ? dir : "the built-in policies");
    if (snprintf(p->dir, sizeof p->dir, "%s", dir) >= (int)sizeof p->dir)
        return mc_fail_param(err, MC_EARG, "policies", "--policies: path over %zu bytes",
                             sizeof p->dir - 1);
    return 0;
}

/* The first generation: the directory's, or the built-in one when that is refused. */
static int make_first(struct mc_policies *p, struct mc_err *err)
{
    struct mc_stepvm *s;
    int rc = mc_builder_make(p, p->dir, false, &s, err);

    if (rc < 0 && p->dir[0]) {
        mc_builder_error(p, err->text);
        rc = mc_builder_make(p, "", false, &s, err);
    }
    if (rc < 0)
        return rc;
    atomic_store(&p->numbers, (uint64_t)s->gen->number << 32);
    mc_hooks_set_live(p, s);
    p->next_number = p->edge_number = s->gen->number;
    if (p->opts.live)
        p->opts.live(p->opts.self, s->gen);
    mc_follow_adopt(p, s->gen);
    return 0;
}

int mc_policies_open(const struct mc_policies_opts *o, struct mc_policies **out,
                     struct mc_err *err)
{
    struct mc_policies *p = calloc(1, sizeof *p);
    int rc;

    *out = NULL;
    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory for policies");
    p->opts = *o;
    mc_crash_part(mc_hooks_crash, p);
    p->sets.vocab = o->vocab;
    p->inotify = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->done_cond, NULL);
    p->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->bell < 0) {
        rc = mc_fail(err, MC_EIO, "eventfd: %s", strerror(errno));
        goto fail;
    }
    rc = o->follows ? 0 : choose_dir(p, err);
    if (rc < 0)
        goto fail;
    if (!o->no_watch && p->dir[0]) {
        p->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (p->inotify < 0)
            mc_warn("policy", "%s is not watched: %s", p->dir, strerror(errno));
        mc_builder_watch(p);
    }
    rc = o->follows ? 0 : make_first(p, err);
    if (rc < 0)
        goto fail;
    if (mc_thread_run(&p->thread, mc_builder_run, p)) {
        rc = mc_fail(err, MC_EINTERNAL, "no thread for the policy builder");
        goto fail;
    }
    p->started = true;
    mc_builder_wake(p); /* the first spare */
    *out = p;
    return 0;
fail:
    mc_policies_close(p);
    return rc;
}

static void close_dead(struct mc_policies *p)
{
    struct mc_stepvm *s = atomic_exchange(&p->dead, NULL), *next;

    for (; s; s = next) {
        next = s->next;
        mc_stepvm_close(s);
    }
}

void mc_policies_close(struct mc_policies *p)
{
    if (!p)
        return;
    mc_crash_drop(p);
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_mutex_unlock(&p->lock);
        mc_builder_wake(p);
        pthread_join(p->thread, NULL);
    }
    close_dead(p);
    mc_shadow_end(&p->shadow);
    mc_stepvm_close(p->live);
    mc_stepvm_close(p->kept);
    mc_stepvm_close(p->ready);
    mc_stepvm_close(atomic_load(&p->next));
    mc_stepvm_close(atomic_load(&p->spare));
    for (int i = 0; i < MC_N_KNOWN; i++)
        mc_generation_unref(p->known[i]);
    mc_sets_fini(&p->sets);
    free(p->record.view);
    if (p->bell >= 0)
        close(p->bell);
    if (p->inotify >= 0)
        close(p->inotify);
    pthread_cond_destroy(&p->done_cond);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

struct mc_policy mc_policies_policy(struct mc_policies *p)
{
    return (struct mc_policy){&mc_hooks_ops, p};
}

int mc_policies_reload(struct mc_policies *p, uint32_t *number, struct mc_err *err)
{
    uint64_t mine;
    int rc;

    pthread_mutex_lock(&p->lock);
    mine = ++p->asked;
    mc_builder_wake(p);
    while (p->done < mine)
        pthread_cond_wait(&p->done_cond, &p->lock);
    rc = p->result;
    if (rc < 0 && err)
        *err = p->result_err;
    else if (rc >= 0)
        *number = p->result_number;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

void mc_policies_do(struct mc_policies *p, void (*fn)(struct mc_policies *p, void *arg),
                    void *arg)
{
    struct mc_job job = {.fn = fn, .arg = arg}, **at = &p->jobs;

    pthread_mutex_lock(&p->lock);
    while (*at)
        at = &(*at)->next;
    *at = &job;
    mc_builder_wake(p);
    while (!job.done)
        pthread_cond_wait(&p->done_cond, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

int mc_policies_rollback(struct mc_policies *p, uint32_t *number, struct mc_err *err)
{
    *number = mc_numbers_kept(atomic_load(&p->numbers));
    if (*number == 0)
        return mc_fail(err, MC_ENOENT, "no generation is kept to go back to");
    mc_hooks_bury(p, atomic_exchange(&p->next, NULL));
    atomic_store(&p->want_rollback, true);
    if (p->opts.wake)
        p->opts.wake(p->opts.self);
    return 0;
}

void mc_policies_status(struct mc_policies *p, struct mc_policies_status *out)
{
    uint64_t numbers = atomic_load(&p->numbers);

    *out = (struct mc_policies_status){
        .live = mc_numbers_live(numbers), .kept = mc_numbers_kept(numbers),
        .degraded = atomic_load(&p->degraded), .lost = atomic_load(&p->lost),
        .rollbacks = atomic_load(&p->rollbacks), .steps = atomic_load(&p->steps),
    };
    memcpy(out->dir, p->dir, sizeof out->dir);
    pthread_mutex_lock(&p->lock);
    memcpy(out->error, p->error, sizeof out->error);
    if (atomic_load(&p->next))
        out->next = p->next_number;
    pthread_mutex_unlock(&p->lock);
    for (int h = 0; h < MC_N_HOOK; h++)
        out->hook[h] = (struct mc_hook_stats){
            .calls = atomic_load(&p->count[h].calls),
            .failures = atomic_load(&p->count[h].failures),
            .sum_us = (double)atomic_load(&p->count[h].sum_ns) * 1e-3,
            .max_us = (double)atomic_load(&p->count[h].max_ns) * 1e-3,
        };
}

int mc_policies_generations(struct mc_policies *p, struct mc_generation *out[3])
{
    uint64_t numbers = atomic_load(&p->numbers);
    int n = 0;

    pthread_mutex_lock(&p->lock);
    uint32_t want[3] = {mc_numbers_live(numbers), mc_numbers_kept(numbers), p->next_number};

    for (int w = 0; w < 3; w++) {
        if (w == 2 && (want[w] == want[0] || want[w] == want[1]))
            continue;
        for (int i = 0; i < MC_N_KNOWN; i++)
            if (want[w] && p->known[i] && p->known[i]->number == want[w])
                out[n++] = mc_generation_ref(p->known[i]);
    }
    pthread_mutex_unlock(&p->lock);
    return n;
}

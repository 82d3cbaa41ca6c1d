/* trial.c - a VM is built and tried; one that ran away is run again to find its line.
 * Owns nothing. THREAD: as trial.h says. */
#include "lua/host/trial.h"

#include <stdio.h>
#include <string.h>

enum { FIND_US = 400000 };

static bool ran_away(int rc)
{
    return rc == MC_EBUDGET || rc == MC_ENOMEM;
}

/* Interpreted, noting lines, without a word in the log or a count. */
static struct mc_step_opts following(const struct mc_step_opts *o)
{
    struct mc_step_opts f = *o;

    f.follow = true;
    f.log = mc_step_quiet;
    f.metrics = NULL;
    f.hook_us = FIND_US;
    return f;
}

static void say_where(struct mc_err *err, const char *at)
{
    size_t n = strlen(err->text);

    if (at[0])
        snprintf(err->text + n, sizeof err->text - n, " at %s", at);
}

void mc_trial_find(const struct mc_stepvm *lost, char *at, size_t n)
{
    struct mc_step_opts o = following(&lost->opts);
    struct mc_stepvm *s;

    at[0] = 0;
    if (mc_stepvm_open(&o, lost->gen, &s, at, n, NULL) < 0)
        return;
    snprintf(at, n, "%s", ran_away(mc_stepvm_replay(s, lost, NULL)) ? s->vm->at : "");
    mc_stepvm_close(s);
}

int mc_trial_open(const struct mc_step_opts *o, struct mc_generation *g,
                  struct mc_stepvm **out, struct mc_err *err)
{
    struct mc_step_opts again = following(o);
    struct mc_stepvm *s = NULL;
    char at[80] = "";
    int rc = mc_stepvm_open(o, g, out, NULL, 0, err);

    again.load_us = FIND_US;
    if (ran_away(rc)) {
        mc_stepvm_open(&again, g, &s, at, sizeof at, NULL);
        mc_stepvm_close(s);
        say_where(err, at);
    }
    return rc;
}

int mc_trial_run(struct mc_stepvm **s, const struct mc_record *recorded, int n_recorded,
                 struct mc_tried *tried, struct mc_err *err)
{
    struct mc_metrics *metrics = (*s)->opts.metrics;
    mc_step_log log = (*s)->opts.log;
    char at[80] = "";
    int rc;

    (*s)->opts.log = mc_step_quiet;
    (*s)->opts.metrics = NULL;
    rc = mc_dryrun(*s, recorded, n_recorded, tried, err);
    (*s)->opts.log = log;
    (*s)->opts.metrics = metrics;
    if (ran_away(rc)) {
        mc_trial_find(*s, at, sizeof at);
        say_where(err, at);
    }
    if (rc < 0) {
        mc_stepvm_close(*s);
        *s = NULL;
    }
    return rc;
}

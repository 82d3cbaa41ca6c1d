/* verbs.c - what an operator asks of policy generations, as JSON.
 *
 * OWNS nothing. THREAD: any; what builds VMs runs on the builder's thread. So every verb
 * answers while the step VM, edge VMs or sessions are busy or lost. */
#include "lua/host/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/diff.h"
#include "lua/host/check.h"
#include "lua/host/policies_int.h"
#include "lua/host/trial.h"

static int generation(uint32_t number, int rc, json_t **out)
{
    if (rc == 0)
        *out = json_pack("{s:i, s:s}", "generation", (int)number, "state",
                         "live at the next step");
    return rc;
}

static int on_reload(void *self, json_t **out, struct mc_err *err)
{
    uint32_t number = 0;
    int rc = mc_policies_reload(self, &number, err);

    return generation(number, rc, out);
}

static int on_rollback(void *self, json_t **out, struct mc_err *err)
{
    uint32_t number = 0;
    int rc = mc_policies_rollback(self, &number, err);

    return generation(number, rc, out);
}

/* ---- list -------------------------------------------------------------------------- */

static json_t *files_of(const struct mc_generation *g)
{
    json_t *out = json_object(), *list;

    for (int i = 0; i < g->n_choice; i++) {
        list = json_object_get(out, g->choice[i].kind);
        if (!list) {
            list = json_array();
            json_object_set_new(out, g->choice[i].kind, list);
        }
        json_array_append_new(list, json_string(g->choice[i].name));
    }
    return out;
}

static json_t *row_of(const struct mc_generation *g, const struct mc_policies_status *st)
{
    const char *what = g->number == st->live   ? "live"
                       : g->number == st->kept ? "kept"
                                               : "next";
    char hash[24];
    json_t *row;

    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)g->hash);
    row = json_pack("{s:i, s:s, s:o, s:s}", "generation", (int)g->number, "state", what,
                    "files", files_of(g), "hash", hash);
    if (g->number != st->live)
        return row;
    json_object_set_new(row, "steps", json_integer((json_int_t)st->steps));
    json_object_set_new(row, "probation",
                        json_boolean(st->kept && st->steps < MC_BAD_WINDOW));
    return row;
}

/* Of several models: how each one's engine is served. */
static json_t *models_of(struct mc_policies *leader)
{
    json_t *rows = json_array();

    for (int i = -1; i < leader->opts.n_followers; i++) {
        struct mc_policies *p = i < 0 ? leader : leader->opts.followers[i];
        struct mc_policies_status st;
        json_t *row;

        mc_policies_status(p, &st);
        row = json_pack("{s:s, s:i, s:b, s:i}", "model", p->opts.model, "live",
                        (int)st.live, "degraded", st.degraded, "lost_vms", st.lost);
        if (st.error[0])
            json_object_set_new(row, "error", json_string(st.error));
        json_array_append_new(rows, row);
    }
    return rows;
}

static int on_list(void *self, json_t **out, struct mc_err *err)
{
    struct mc_policies_status st;
    struct mc_generation *g[3];
    json_t *generations = json_array();
    int n = mc_policies_generations(self, g);

    (void)err;
    mc_policies_status(self, &st);
    for (int i = 0; i < n; i++) {
        json_array_append_new(generations, row_of(g[i], &st));
        mc_generation_unref(g[i]);
    }
    *out = json_pack("{s:s, s:b, s:i, s:i, s:o}", "dir", st.dir[0] ? st.dir : "(built in)",
                     "degraded", st.degraded, "lost_vms", st.lost, "rollbacks",
                     (int)st.rollbacks, "generations", generations);
    if (st.error[0])
        json_object_set_new(*out, "error", json_string(st.error));
    if (((struct mc_policies *)self)->opts.n_followers > 0)
        json_object_set_new(*out, "models", models_of(self));
    return 0;
}

/* ---- check ------------------------------------------------------------------------- */

struct check_job {
    const char *path;
    json_t **out;
    struct mc_err *err;
    int rc;
};

/* A path, or a name in the policies' own directory, written out into buf. */
static const char *path_of(const struct mc_policies *p, const char *given, char *buf,
                           size_t n)
{
    size_t len = strlen(given);
    bool ends = len > 4 && strcmp(given + len - 4, ".lua") == 0;

    if (strchr(given, '/') || !*p->dir)
        return given;
    snprintf(buf, n, "%s/%.*s%s", p->dir, MC_SOURCE_NAME, given, ends ? "" : ".lua");
    return buf;
}

/* What a step VM of the first model does not show: the edge, and the other models. */
static int try_rest(void *self, struct mc_generation *g, struct mc_err *err)
{
    struct mc_policies *p = self;
    int rc = p->opts.check ? p->opts.check(p->opts.self, g, err) : 0;

    return rc < 0 ? rc : mc_follow_prepare(p, g, err);
}

static void run_check(struct mc_policies *p, void *arg)
{
    struct check_job *j = arg;
    struct mc_check c = {.path = p->dir, .vocab = p->opts.vocab, .model = p->opts.model,
                         .recorded = &p->record, .n_recorded = 1,
                         .edge = try_rest, .self = p};
    char path[sizeof p->dir + MC_SOURCE_NAME + 8];

    if (j->path)
        c.path = path_of(p, j->path, path, sizeof path);
    mc_builder_ask_record(p);
    j->rc = mc_check_run(&c, j->out, j->err);
}

static int on_check(void *self, const char *path, json_t **out, struct mc_err *err)
{
    struct check_job j = {path, out, err, 0};

    mc_policies_do(self, run_check, &j);
    return j.rc;
}

/* ---- diff -------------------------------------------------------------------------- */

struct diff_job {
    const char *from, *to;
    json_t **out;
    struct mc_err *err;
    int rc;
};

/* What the directory says now. A file that does not load is there all the same. */
static int open_disk(struct mc_policies *p, const struct mc_generation *like,
                     struct mc_generation **out, struct mc_err *err)
{
    const struct mc_step_opts o = {.sets = &p->sets, .log = mc_step_quiet,
                                   .config = p->opts.config};
    const struct mc_source *s;
    struct mc_stepvm *vm;
    int rc = mc_generation_open(p->dir, out, err);

    for (int i = 0; rc == 0 && i < like->n_source; i++)
        rc = mc_generation_source(*out, like->source[i].name, &s, err);
    if (rc == 0 && mc_trial_open(&o, *out, &vm, NULL) == 0)
        mc_stepvm_close(vm); /* it has named what is new */
    return rc;
}

static int open_word(struct mc_policies *p, const char *word,
                     const struct mc_generation *like, struct mc_generation **out,
                     struct mc_err *err)
{
    uint64_t numbers = atomic_load(&p->numbers);
    uint32_t n = strcmp(word, "live") == 0   ? mc_numbers_live(numbers)
                 : strcmp(word, "kept") == 0 ? mc_numbers_kept(numbers)
                                             : (uint32_t)strtoul(word, NULL, 10);

    *out = NULL;
    if (strcmp(word, "disk") == 0)
        return open_disk(p, like, out, err);
    if (n == 0 && strcmp(word, "live") == 0)
        return mc_fail_param(err, MC_ENOENT, "generation",
                             "no generation is live, the built-in policy serves: say a "
                             "number of policy list");
    for (int i = 0; i < MC_N_KNOWN && n; i++)
        if (p->known[i] && p->known[i]->number == n)
            *out = mc_generation_ref(p->known[i]);
    return *out ? 0
                : mc_fail_param(err, MC_ENOENT, "generation",
                                "there is no generation "
                                "'%.20s': live, kept, disk or a number of policy list",
                                word);
}

static struct mc_text text_of(const struct mc_generation *g, const char *name,
                              const char *label)
{
    for (int i = 0; i < g->n_source; i++)
        if (strcmp(g->source[i].name, name) == 0)
            return (struct mc_text){label, g->source[i].text, g->source[i].n};
    return (struct mc_text){label, NULL, 0};
}

static int write_diff(FILE *f, const struct diff_job *j, const struct mc_generation *a,
                      const struct mc_generation *b)
{
    char old[128], new[128];
    int rc = 0;

    for (int side = 0; rc == 0 && side < 2; side++) {
        const struct mc_generation *g = side ? b : a, *other = side ? a : b;

        for (int i = 0; rc == 0 && i < g->n_source; i++) {
            const char *name = g->source[i].name;
            struct mc_text x = text_of(a, name, old), y = text_of(b, name, new);

            if ((side && text_of(other, name, "").p) || x.p == y.p)
                continue; /* shown already; or the same built-in text */
            snprintf(old, sizeof old, "%.24s/%s.lua", j->from, name);
            snprintf(new, sizeof new, "%.24s/%s.lua", j->to, name);
            rc = mc_diff(f, &x, &y);
        }
    }
    return rc;
}

static void run_diff(struct mc_policies *p, void *arg)
{
    struct diff_job *j = arg;
    struct mc_generation *a = NULL, *b = NULL;
    char *text = NULL;
    size_t n = 0;
    FILE *f = NULL;

    j->rc = open_word(p, j->from, NULL, &a, j->err);
    if (j->rc == 0)
        j->rc = open_word(p, j->to, a, &b, j->err);
    if (j->rc == 0 && !(f = open_memstream(&text, &n)))
        j->rc = mc_fail(j->err, MC_ENOMEM, "no memory for a diff");
    if (j->rc == 0)
        j->rc = write_diff(f, j, a, b);
    if (f)
        fclose(f);
    if (j->rc == 0)
        *j->out = json_pack("{s:s, s:s, s:s}", "from", j->from, "to", j->to, "text", text);
    free(text);
    mc_generation_unref(a);
    mc_generation_unref(b);
}

static int on_diff(void *self, const char *from, const char *to, json_t **out,
                   struct mc_err *err)
{
    struct diff_job j = {from ? from : "live", to ? to : from ? "live" : "disk", out, err, 0};

    if (strcmp(j.from, "disk") == 0)
        return mc_fail_param(err, MC_EARG, "from",
                             "diff goes from a generation: live, kept "
                             "or a number");
    mc_policies_do(self, run_diff, &j);
    return j.rc;
}

/* ---- shadow ------------------------------------------------------------------------ */

static void run_shadow(struct mc_policies *p, void *arg)
{
    const struct mc_step_opts o = {.sets = &p->sets, .log = mc_step_quiet,
                                   .config = p->opts.config};
    struct check_job *j = arg;
    char path[sizeof p->dir + MC_SOURCE_NAME + 8];

    if (j->path && strcmp(j->path, "off") == 0)
        mc_shadow_end(&p->shadow);
    else if (j->path)
        j->rc = mc_shadow_begin(&p->shadow, &o, path_of(p, j->path, path, sizeof path),
                                j->err);
    if (j->rc == 0)
        *j->out = mc_shadow_report(&p->shadow);
}

static int on_shadow(void *self, const char *path, json_t **out, struct mc_err *err)
{
    struct check_job j = {path, out, err, 0};

    mc_policies_do(self, run_shadow, &j);
    return j.rc;
}

const struct mc_policy_admin mc_policy_verbs = {
    .reload = on_reload,
    .rollback = on_rollback,
    .list = on_list,
    .check = on_check,
    .diff = on_diff,
    .shadow = on_shadow,
};

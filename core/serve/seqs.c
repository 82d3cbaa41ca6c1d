/* seqs.c - see seqs.h. OWNS nothing. THREAD: any. */
#include "core/serve/seqs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/args.h"

enum { SEQS_MAX = 4096 };

static const char *const state_names[] = {"", "waiting", "prefill", "decode", "paused",
                                          "done"};

static json_t *seq_row(const struct mc_server *s, const struct mc_served *m,
                       const struct mc_seq_info *r)
{
    char id[MC_SEQ_ID];

    mc_seq_id(s, m, r->h, id);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:i, s:f}", "id", id, "request",
                     r->name, "model", m->id, "state", state_names[r->state], "lane",
                     (int)r->lane, "tenant", mc_keys_tenant(s->keys, r->tenant),
                     "n_prompt", r->n_prompt, "n_gen", r->n_gen, "age", r->age);
}

/* Calls fn for each live sequence of each model. */
static int each_seq(struct mc_server *s, void (*fn)(void *ctx, const struct mc_served *m,
                                                    const struct mc_seq_info *r),
                    void *ctx, struct mc_err *err)
{
    struct mc_seq_info *rows = malloc(SEQS_MAX * sizeof *rows);

    if (!rows)
        return mc_fail(err, MC_ENOMEM, "no memory for the list");
    for (int i = 0; i < s->n_model; i++) {
        struct mc_engine *e = s->model[i].engine;
        int n = e ? mc_engine_seqs(e, rows, SEQS_MAX) : 0;

        for (int k = 0; k < n && k < SEQS_MAX; k++)
            fn(ctx, &s->model[i], &rows[k]);
    }
    free(rows);
    return 0;
}

struct listing {
    struct mc_server *s;
    json_t *rows;
};

static void add_row(void *ctx, const struct mc_served *m, const struct mc_seq_info *r)
{
    struct listing *l = ctx;

    json_array_append_new(l->rows, seq_row(l->s, m, r));
}

int mc_seqs_list(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err)
{
    struct listing l = {s, json_array()};

    (void)args;
    *out = l.rows;
    return each_seq(s, add_row, &l, err);
}

struct ending {
    struct mc_server *s;
    const char *id, *why;
    int found;
};

static void end_if_named(void *ctx, const struct mc_served *m,
                         const struct mc_seq_info *r)
{
    struct ending *e = ctx;
    char mine[MC_SEQ_ID];

    mc_seq_id(e->s, m, r->h, mine);
    if (strcmp(mine, e->id) != 0 && strcmp(r->name, e->id) != 0)
        return;
    mc_engine_cancel(m->engine, r->h, e->why ? e->why : "cancelled by an operator");
    e->found++;
}

/* By a sequence's id or by the request's: all of its sequences. */
int mc_seqs_cancel(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err)
{
    struct ending e = {s, mc_arg_text(args, 0), mc_arg_text(args, 1), 0};
    int rc;

    if (!e.id)
        return mc_fail_param(err, MC_EARG, "id",
                             "cancel takes a sequence's or a request's id");
    rc = each_seq(s, end_if_named, &e, err);
    if (rc < 0)
        return rc;
    if (!e.found)
        return mc_fail_param(err, MC_ENOENT, "id",
                             "no sequence or request '%.60s' is alive", e.id);
    *out = json_pack("{s:i}", "cancelled", e.found);
    return 0;
}

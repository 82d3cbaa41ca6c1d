/* pins.c - the verbs pin, unpin, pins and cached: prompts whose KV stays.
 *
 * A prompt is text as /v1/completions takes it; its KV is computed first where it is not
 * there yet, which may take seconds. Owns nothing. THREAD: any. */
#include "core/serve/pins.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/serve/args.h"
#include "core/serve/gen.h"

static const double PATIENCE_S = 120;

static int prompt_of(const struct mc_served *m, const json_t *args, struct mc_ids *ids,
                     struct mc_err *err)
{
    const char *text = mc_arg_text(args, 0);

    if (!text || !*text)
        return mc_fail_param(err, MC_EARG, "prompt", "this takes a prompt's text");
    return mc_tok_encode(mc_engine_tok(m->engine), text, strlen(text),
                         MC_TOK_SPECIAL | MC_TOK_BOS, ids, err);
}

/* Reads the prompt as a request that makes no token. */
static int compute(const struct mc_served *m, const struct mc_ids *ids, uint32_t tenant,
                   struct mc_err *err)
{
    struct mc_gen_opts o = {.req = {.ids = ids->v, .n_ids = (int32_t)ids->n, .n_top = -1,
                                    .tenant = tenant, .name = "pin"}};
    double until = mc_now() + PATIENCE_S;
    struct mc_gen *g;
    struct mc_piece p;
    const struct mc_end *end;
    int rc;

    mc_params_default(mc_engine_config(m->engine), &o.req.want);
    rc = mc_gen_open(m->engine, &o, NULL, NULL, &g, err);
    if (rc < 0)
        return rc;
    do
        rc = mc_gen_wait(g, until - mc_now() > 0 ? until - mc_now() : 0, &p, &end);
    while (rc == 1);
    if (rc == 0)
        rc = mc_fail(err, MC_ETIMEOUT, "the prompt was not read within %.0f s",
                     PATIENCE_S);
    else if (end->err.code < 0)
        rc = mc_fail(err, end->err.code, "%s", end->err.text);
    else
        rc = 0;
    mc_gen_close(g);
    return rc;
}

static json_t *row_of(const struct mc_pin_info *p, const char *model)
{
    json_t *row = json_pack("{s:i, s:s, s:i, s:i, s:i, s:f}", "id", (int)p->id, "model",
                            model, "tenant", (int)p->tenant, "tokens",
                            p->n_page * MC_PAGE, "pages", p->n_page, "bytes", p->bytes);

    if (row && p->until > 0)
        json_object_set_new(row, "seconds", json_real(p->until - mc_now()));
    return row;
}

int mc_pins_pin(struct mc_server *s, const json_t *args, json_t **out, struct mc_err *err)
{
    double seconds = 0, tenant = 0;
    struct mc_ids ids = {0};
    const struct mc_served *m;
    struct mc_pin_info pin;
    int rc = mc_arg_model(s, args, 3, &m, err);

    if (rc == 0)
        rc = mc_arg_number(args, 1, "seconds", 1e9, &seconds, err);
    if (rc == 0)
        rc = mc_arg_number(args, 2, "tenant", 63, &tenant, err);
    if (rc == 0)
        rc = prompt_of(m, args, &ids, err);
    if (rc == 0)
        rc = compute(m, &ids, (uint32_t)tenant, err);
    if (rc == 0)
        rc = mc_engine_pin(m->engine, ids.v, (int32_t)ids.n, (uint32_t)tenant, "",
                           seconds, &pin, err);
    mc_ids_free(&ids);
    if (rc == 0)
        *out = row_of(&pin, m->id);
    return rc;
}

int mc_pins_unpin(struct mc_server *s, const json_t *args, json_t **out,
                  struct mc_err *err)
{
    const struct mc_served *m;
    double id = 0;
    int rc = mc_arg_model(s, args, 1, &m, err);

    if (rc == 0)
        rc = mc_arg_number(args, 0, "id", UINT32_MAX, &id, err);
    if (rc == 0)
        rc = mc_engine_unpin(m->engine, (uint32_t)id, err);
    if (rc == 0)
        *out = json_pack("{s:i}", "unpinned", (int)id);
    return rc;
}

int mc_pins_list(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err)
{
    struct mc_pin_info pin[MC_MAX_PINS];

    (void)args, (void)err;
    *out = json_array();
    for (int i = 0; i < s->n_model; i++) {
        int n = s->model[i].engine ? mc_engine_pins(s->model[i].engine, pin) : 0;

        for (int k = 0; k < n; k++)
            json_array_append_new(*out, row_of(&pin[k], s->model[i].id));
    }
    return 0;
}

int mc_pins_cached(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err)
{
    struct mc_ids ids = {0};
    const struct mc_served *m;
    double tenant = 0;
    int rc = mc_arg_model(s, args, 2, &m, err);

    if (rc == 0)
        rc = mc_arg_number(args, 1, "tenant", 63, &tenant, err);
    if (rc == 0)
        rc = prompt_of(m, args, &ids, err);
    if (rc == 0)
        *out = json_pack("{s:i, s:i}", "cached",
                         mc_engine_cached(m->engine, ids.v, (int32_t)ids.n,
                                          (uint32_t)tenant, ""),
                         "prompt", (int)ids.n);
    mc_ids_free(&ids);
    return rc;
}

/* weights.c - the settings of lanes and tenants (lane_weight, tenant_weight, tenant_rate),
 * applied. OWNS nothing. THREAD: any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/serve.h"

/* A setting of NAME=NUMBER, and where a number goes. */
struct numbers {
    const char *setting;
    bool tenant; /* else names are lanes' numbers */
    struct mc_keys *keys;
    struct mc_engine *engine;
    int (*put)(const struct numbers *n, uint32_t id, double v, struct mc_err *err);
};

static int put_weight(const struct numbers *n, uint32_t id, double v, struct mc_err *err)
{
    return mc_engine_set_weight(n->engine, n->tenant, id, v, err);
}

static int put_rate(const struct numbers *n, uint32_t id, double v, struct mc_err *err)
{
    return mc_keys_set_rate(n->keys, id, v, err);
}

static int id_of(const struct numbers *n, const char *name, uint32_t *id,
                 struct mc_err *err)
{
    unsigned long lane;
    char *end;

    for (*id = 0; n->tenant && *id < MC_TENANTS_MAX; ++*id)
        if (*name && strcmp(mc_keys_tenant(n->keys, *id), name) == 0)
            return 0;
    if (n->tenant)
        return mc_fail_param(err, MC_EARG, n->setting,
                             "no API key is of a tenant '%.40s'", name);
    lane = strtoul(name, &end, 10);
    *id = lane < UINT32_MAX ? (uint32_t)lane : UINT32_MAX;
    return *name && !*end ? 0 : mc_fail_param(err, MC_EARG, n->setting,
                                              "'%.40s' is no lane's number", name);
}

static int apply_one(const struct numbers *n, char *pair, struct mc_err *err)
{
    char *eq = strchr(pair, '='), *end;
    uint32_t id;
    double v;
    int rc;

    if (!eq)
        return mc_fail_param(err, MC_EARG, n->setting, "'%.40s' is no NAME=NUMBER", pair);
    *eq = 0;
    v = strtod(eq + 1, &end);
    rc = id_of(n, pair, &id, err);
    if (rc == 0 && (end == eq + 1 || *end))
        rc = mc_fail_param(err, MC_EARG, n->setting, "'%.40s' is no number", eq + 1);
    return rc < 0 ? rc : n->put(n, id, v, err);
}

static int apply(const struct numbers *n, const char *pairs, struct mc_err *err)
{
    char *copy = strdup(pairs), *save = NULL, *pair;
    int rc = copy ? 0 : mc_fail(err, MC_ENOMEM, "no memory for %s", n->setting);

    for (pair = copy ? strtok_r(copy, ",", &save) : NULL; pair && rc == 0;
         pair = strtok_r(NULL, ",", &save))
        rc = apply_one(n, pair, err);
    free(copy);
    return rc < 0 ? mc_err_while(err, "setting %s", n->setting) : 0;
}

int mc_serve_weights(const struct mc_settings *s, struct mc_engine *e,
                     struct mc_keys *keys, struct mc_err *err)
{
    const struct numbers lanes = {"lane_weight", false, keys, e, put_weight};
    const struct numbers tenants = {"tenant_weight", true, keys, e, put_weight};
    int rc = apply(&lanes, s->lane_weight, err);

    return rc < 0 ? rc : apply(&tenants, s->tenant_weight, err);
}

int mc_serve_rates(const struct mc_settings *s, struct mc_keys *keys, struct mc_err *err)
{
    const struct numbers rates = {"tenant_rate", true, keys, NULL, put_rate};

    return apply(&rates, s->tenant_rate, err);
}

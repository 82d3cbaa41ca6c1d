/* weights.c - the settings lane_weight and tenant_weight, applied to an engine.
 * OWNS nothing. THREAD: main, or the loading thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/serve.h"

enum { TENANTS_MAX = 64 };

static int id_of(const struct mc_keys *keys, bool tenant, const char *name, uint32_t *id,
                 struct mc_err *err)
{
    char *end;

    for (*id = 0; tenant && *id < TENANTS_MAX; ++*id)
        if (strcmp(mc_keys_tenant(keys, *id), name) == 0)
            return 0;
    if (tenant)
        return mc_fail_param(err, MC_EARG, "tenant_weight", "no API key is of a tenant '%.40s'",
                             name);
    *id = (uint32_t)strtoul(name, &end, 10);
    return *name && !*end ? 0 : mc_fail_param(err, MC_EARG, "lane_weight",
                                              "'%.40s' is no lane's number", name);
}

static int apply(struct mc_engine *e, const struct mc_keys *keys, bool tenant,
                 const char *pairs, struct mc_err *err)
{
    char copy[1024], *save = NULL, *pair;
    int rc = 0;

    snprintf(copy, sizeof copy, "%s", pairs);
    for (pair = strtok_r(copy, ",", &save); pair && rc == 0; pair = strtok_r(NULL, ",", &save)) {
        char *eq = strchr(pair, '='), *end;
        uint32_t id;
        double weight;

        if (!eq)
            return mc_fail_param(err, MC_EARG, tenant ? "tenant_weight" : "lane_weight",
                                 "'%.40s' is no NAME=WEIGHT", pair);
        *eq = 0;
        weight = strtod(eq + 1, &end);
        rc = id_of(keys, tenant, pair, &id, err);
        if (rc == 0 && (end == eq + 1 || *end))
            rc = mc_fail_param(err, MC_EARG, "weight", "'%.40s' is no number", eq + 1);
        if (rc == 0)
            rc = mc_engine_set_weight(e, tenant, id, weight, err);
    }
    return rc;
}

int mc_serve_weights(const struct mc_settings *s, struct mc_engine *e,
                     const struct mc_keys *keys, struct mc_err *err)
{
    int rc = apply(e, keys, false, s->lane_weight, err);

    return rc < 0 ? rc : apply(e, keys, true, s->tenant_weight, err);
}

/* recipe.c - reads a recipe's table and applies its rules.
 *
 * Owns the rules. THREAD: any, once read. */
#include "core/compress/recipe.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

enum { MAX_RULES = 64, MAX_GROUPS = 3, GLOB_MAX = 128, ABOUT_MAX = 160 };

struct rule {
    unsigned roles;      /* bit i: role i; 0: any */
    char name[GLOB_MAX]; /* "": any */
    bool keep;
    uint16_t fmt;
    int32_t group[MAX_GROUPS];
    int n_group;
};

struct mc_recipe {
    char about[ABOUT_MAX];
    struct rule rule[MAX_RULES];
    int n;
};

/* ---- roles ------------------------------------------------------------------------- */

static const char *const role_names[MC_N_ROLE] = {
    [MC_ROLE_EMBED] = "embed",     [MC_ROLE_HEAD] = "head",
    [MC_ROLE_ATTENTION] = "attention", [MC_ROLE_INDEXER] = "indexer",
    [MC_ROLE_GATES] = "gates",     [MC_ROLE_MLP] = "mlp",
    [MC_ROLE_EXPERT] = "expert",   [MC_ROLE_SHARED] = "shared",
    [MC_ROLE_ROUTER] = "router",   [MC_ROLE_OTHER] = "other",
};

const char *mc_role_name(enum mc_role role)
{
    return role_names[role];
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);

    return n >= m && strcmp(s + n - m, with) == 0;
}

enum mc_role mc_role_of(const char *module)
{
    static const struct {
        const char *part; /* found anywhere, in this order */
        enum mc_role role;
    } inside[] = {
        {"vision", MC_ROLE_OTHER},
        {"mm_projector", MC_ROLE_OTHER},
        {".self_attn.indexer.weights_proj", MC_ROLE_GATES},
        {".self_attn.indexer.", MC_ROLE_INDEXER},
        {".self_attn.", MC_ROLE_ATTENTION},
        {".mlp.experts.", MC_ROLE_EXPERT},
        {".mlp.shared_expert_gate", MC_ROLE_ROUTER},
        {".mlp.shared_expert", MC_ROLE_SHARED},
        {".mlp.gate_proj", MC_ROLE_MLP},
        {".mlp.up_proj", MC_ROLE_MLP},
        {".mlp.down_proj", MC_ROLE_MLP},
    };

    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++)
        if (strstr(module, inside[i].part))
            return inside[i].role;
    return ends(module, ".mlp.gate")         ? MC_ROLE_ROUTER
           : ends(module, "embed_tokens")    ? MC_ROLE_EMBED
           : ends(module, "lm_head")         ? MC_ROLE_HEAD
                                             : MC_ROLE_OTHER;
}

/* ---- reading ----------------------------------------------------------------------- */

static int read_role(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    const char *s = json_string_value(v);

    for (int i = 0; s && i < MC_ROLE_OTHER; i++)
        if (strcmp(s, role_names[i]) == 0) {
            r->roles |= 1u << i;
            return 0;
        }
    return mc_fail_param(
        err, MC_EARG, "role",
        "rule %d: role '%.40s' is none of embed, head, attention, indexer, "
        "gates, mlp, expert, shared, router",
        at, s ? s : "(not a string)");
}

static int read_roles(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    json_t *one;
    size_t i;
    int rc = 0;

    if (!json_is_array(v))
        return v ? read_role(v, at, r, err) : 0;
    json_array_foreach ((json_t *)v, i, one)
        if (rc == 0)
            rc = read_role(one, at, r, err);
    return rc;
}

static int add_group(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    json_int_t g = json_is_real(v) ? (json_int_t)json_real_value(v)
                                   : json_integer_value(v);

    if ((g != 32 && g != 64 && g != 128) || r->n_group == MAX_GROUPS)
        return mc_fail_param(err, MC_EARG, "group",
                             "rule %d: group is 32, 64 or 128, or a list of them", at);
    r->group[r->n_group++] = (int32_t)g;
    return 0;
}

static int read_group(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    json_t *one;
    size_t i;
    int rc = 0;

    if (r->fmt != MC_D_INT4 || r->keep)
        return v ? mc_fail_param(err, MC_EARG, "group", "rule %d: only int4 has a group",
                                 at)
                 : 0;
    if (!json_is_array(v))
        return add_group(v, at, r, err);
    json_array_foreach ((json_t *)v, i, one)
        if (rc == 0)
            rc = add_group(one, at, r, err);
    if (rc == 0 && r->n_group == 0)
        rc = add_group(NULL, at, r, err);
    return rc;
}

static int read_to(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    static const struct {
        const char *name;
        uint16_t fmt;
    } to[] = {{"bf16", MC_D_BF16}, {"fp8", MC_D_E4M3}, {"int4", MC_D_INT4},
              {"nvfp4", MC_D_NVFP4}};
    const char *s = json_string_value(v);

    r->keep = s && strcmp(s, "keep") == 0;
    for (size_t i = 0; s && i < sizeof to / sizeof to[0]; i++)
        if (strcmp(s, to[i].name) == 0) {
            r->fmt = to[i].fmt;
            return 0;
        }
    return r->keep
               ? 0
               : mc_fail_param(err, MC_EARG, "to",
                               "rule %d: to = '%.40s' is none of keep, bf16, fp8, int4, "
                               "nvfp4",
                               at, s ? s : "(not a string)");
}

static int read_rule(const json_t *v, int at, struct rule *r, struct mc_err *err)
{
    const char *glob = json_string_value(json_object_get(v, "name")), *key;
    json_t *value;
    int rc;

    if (!json_is_object(v))
        return mc_fail_param(err, MC_EARG, "rules", "rule %d is not a table", at);
    json_object_foreach((json_t *)v, key, value) if (
        strcmp(key, "name") != 0 && strcmp(key, "role") != 0 && strcmp(key, "to") != 0 &&
        strcmp(key, "group") !=
            0) return mc_fail_param(err, MC_EARG, "rules",
                                    "rule %d: '%.40s' is none of name, role, to, group",
                                    at, key);
    if (json_object_get(v, "name") && (!glob || !*glob || strlen(glob) >= GLOB_MAX))
        return mc_fail_param(err, MC_EARG, "name",
                             "rule %d: name is a glob of at most %d bytes", at,
                             GLOB_MAX - 1);
    snprintf(r->name, sizeof r->name, "%s", glob ? glob : "");
    rc = read_roles(json_object_get(v, "role"), at, r, err);
    if (rc == 0)
        rc = read_to(json_object_get(v, "to"), at, r, err);
    if (rc == 0)
        rc = read_group(json_object_get(v, "group"), at, r, err);
    return rc;
}

static int read_rules(const json_t *table, struct mc_recipe *r, struct mc_err *err)
{
    const char *about = json_string_value(json_object_get(table, "about"));
    json_t *rules = json_object_get(table, "rules"), *v;
    size_t i;
    int rc = 0;

    if (!json_is_array(rules) || json_array_size(rules) == 0 ||
        json_array_size(rules) > MAX_RULES)
        return mc_fail_param(err, MC_EARG, "rules",
                             "rules must be a list of 1 to %d tables", MAX_RULES);
    snprintf(r->about, sizeof r->about, "%s", about ? about : "");
    json_array_foreach (rules, i, v)
        if (rc == 0)
            rc = read_rule(v, ++r->n, &r->rule[i], err);
    return rc;
}

int mc_recipe_read(const json_t *table, struct mc_recipe **out, struct mc_err *err)
{
    struct mc_recipe *r = calloc(1, sizeof *r);
    int rc;

    *out = NULL;
    if (!r)
        return mc_fail(err, MC_ENOMEM, "no memory for a recipe");
    rc = read_rules(table, r, err);
    if (rc < 0)
        free(r);
    else
        *out = r;
    return rc;
}

void mc_recipe_free(struct mc_recipe *r)
{
    free(r);
}

const char *mc_recipe_about(const struct mc_recipe *r)
{
    return r->about;
}

/* ---- deciding ---------------------------------------------------------------------- */

/* Whether the rule can do the matrix; *group is what it would take. */
static bool fits(const struct rule *r, enum mc_role role, const char *module, int32_t k,
                 int32_t *group)
{
    *group = r->fmt == MC_D_NVFP4 ? 16 : 0;
    if ((r->roles && !(r->roles >> role & 1)) ||
        (r->name[0] && fnmatch(r->name, module, 0) != 0))
        return false;
    if (r->keep || r->fmt == MC_D_BF16 || r->fmt == MC_D_E4M3)
        return true;
    if (r->fmt == MC_D_NVFP4)
        return k % 16 == 0;
    for (int i = 0; i < r->n_group; i++)
        if (k % r->group[i] == 0) {
            *group = r->group[i];
            return true;
        }
    return false;
}

struct mc_target mc_recipe_decide(const struct mc_recipe *r, const char *module,
                                  int32_t columns)
{
    enum mc_role role = mc_role_of(module);
    int32_t group;

    for (int i = 0; i < r->n && role != MC_ROLE_OTHER; i++)
        if (fits(&r->rule[i], role, module, columns, &group))
            return (struct mc_target){r->rule[i].keep, r->rule[i].fmt, group, i + 1};
    return (struct mc_target){.keep = true};
}

uint64_t mc_target_bytes(const struct mc_target *t, int64_t n, int64_t k)
{
    int64_t blocks = ((n + 127) / 128) * ((k + 127) / 128);

    switch (t->fmt) {
    case MC_D_E4M3:
        return (uint64_t)(n * k + 4 * blocks);
    case MC_D_INT4:
        return (uint64_t)(n * k / 2 + 2 * n * (k / t->group) + 16);
    case MC_D_NVFP4:
        return (uint64_t)(n * k / 2 + n * (k / 16) + 4);
    default:
        return (uint64_t)(2 * n * k);
    }
}

const char *mc_target_name(const struct mc_target *t, char *buf, size_t cap)
{
    if (t->keep)
        snprintf(buf, cap, "as it is");
    else if (t->fmt == MC_D_INT4)
        snprintf(buf, cap, "int4-g%d", t->group);
    else
        snprintf(buf, cap, "%s", t->fmt == MC_D_E4M3    ? "fp8"
                                 : t->fmt == MC_D_NVFP4 ? "nvfp4"
                                                        : "bf16");
    return buf;
}

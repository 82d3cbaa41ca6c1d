/* config_json.c - reading checked fields of config.json.
 *
 * Owns nothing. THREAD: any. */
#include "core/model/config_json.h"

#include <math.h>
#include <string.h>

void mc_cfg_bad(struct mc_cfg_reader *r, int code, const char *key, const char *what)
{
    if (r->rc == 0)
        r->rc = mc_fail_param(r->err, code, key, "%s: %s %s", r->where, key, what);
}

/* NULL when absent or null. */
const json_t *mc_cfg_field(const struct mc_cfg_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->o, key);

    return json_is_null(v) ? NULL : v;
}

/* A number in [lo, hi]. A file with an integer beyond 64 bits has integers as reals. */
double mc_cfg_number(struct mc_cfg_reader *r, const char *key, double absent, double lo,
                     double hi)
{
    const json_t *v = mc_cfg_field(r, key);
    double x = json_number_value(v);

    if (!v)
        return absent;
    if (json_is_number(v) && x >= lo && x <= hi)
        return x;
    if (r->rc == 0)
        r->rc = json_is_number(v)
                    ? mc_fail_param(r->err, MC_EFORMAT, key,
                                    "%s: %s %g is not within %g..%g", r->where, key, x,
                                    lo, hi)
                    : mc_fail_param(r->err, MC_EFORMAT, key, "%s: %s is not a number",
                                    r->where, key);
    return absent;
}

int32_t mc_cfg_integer(struct mc_cfg_reader *r, const char *key, int32_t absent,
                       int32_t lo, int32_t hi)
{
    double x = mc_cfg_number(r, key, absent, lo, hi);

    if (x != floor(x)) {
        mc_cfg_bad(r, MC_EFORMAT, key, "is not an integer");
        return absent;
    }
    return (int32_t)x;
}

int32_t mc_cfg_required(struct mc_cfg_reader *r, const char *key, int32_t lo, int32_t hi)
{
    if (!mc_cfg_field(r, key))
        mc_cfg_bad(r, MC_EFORMAT, key, "is missing");
    return mc_cfg_integer(r, key, lo, lo, hi);
}

bool mc_cfg_boolean(struct mc_cfg_reader *r, const char *key, bool absent)
{
    const json_t *v = mc_cfg_field(r, key);

    if (v && !json_is_boolean(v))
        mc_cfg_bad(r, MC_EFORMAT, key, "is not a boolean");
    return v ? json_is_true(v) : absent;
}

void mc_cfg_must_be(struct mc_cfg_reader *r, const char *key, const char *want)
{
    const json_t *v = mc_cfg_field(r, key);
    const char *s = json_string_value(v);

    if (v && (!s || strcmp(s, want) != 0) && r->rc == 0)
        r->rc = mc_fail_param(r->err, MC_EUNSUP, key, "%s: %s must be %s, not %s",
                              r->where, key, want, s ? s : "no string");
}

void mc_cfg_must_be_false(struct mc_cfg_reader *r, const char *key)
{
    if (mc_cfg_boolean(r, key, false))
        mc_cfg_bad(r, MC_EUNSUP, key, "true is not supported");
}

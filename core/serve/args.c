/* args.c - see args.h. OWNS nothing. THREAD: any. */
#include "core/serve/args.h"

#include <stdlib.h>

const char *mc_arg_text(const json_t *args, size_t i)
{
    return json_string_value(json_array_get(args, i));
}

int mc_arg_number(const json_t *args, size_t i, const char *name, double most,
                  double *out, struct mc_err *err)
{
    const json_t *v = json_array_get(args, i);
    char *end = NULL;

    if (!v || json_is_null(v) || (json_is_string(v) && !*json_string_value(v)))
        return 0;
    *out = json_is_number(v) ? json_number_value(v)
           : json_is_string(v) ? strtod(json_string_value(v), &end) : -1;
    if (!(*out >= 0 && *out <= most) || (end && *end))
        return mc_fail_param(err, MC_EARG, name, "%s must be a number from 0 to %.0f",
                             name, most);
    return 0;
}

int mc_arg_model(const struct mc_server *s, const json_t *args, size_t i,
                 const struct mc_served **out, struct mc_err *err)
{
    const char *name = mc_arg_text(args, i);

    *out = mc_served_find(s, name);
    if (!*out)
        return mc_fail_param(err, MC_EMODEL, "model",
                             "there is no model '%.80s' here; `mascon status` lists them",
                             name);
    return (*out)->engine ? 0 : mc_fail(err, MC_ELOADING, "the model is still loading");
}

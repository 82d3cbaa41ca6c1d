/* defaults.c - what a request gets that does not say. Owns nothing. THREAD: any. */
#include "core/serve/gen.h"

enum { LIMIT_LEAST = 256 };

int32_t mc_limit_default(struct mc_engine *e, int64_t set)
{
    const struct mc_config *c = mc_engine_config(e);
    struct mc_engine_status st;

    if (set >= 0)
        return set == 0 ? -1 : set > INT32_MAX ? INT32_MAX : (int32_t)set;
    if (c->max_new_tokens > 0)
        return c->max_new_tokens;
    mc_engine_status(e, &st);
    return st.max_context / 8 > LIMIT_LEAST ? st.max_context / 8 : LIMIT_LEAST;
}

void mc_params_default(const struct mc_config *c, struct mc_params *p)
{
    *p = (struct mc_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1,
                            .ban = {-1, -1}};
    if (!c->has_sampling)
        return;
    p->temperature = (double)c->temperature;
    p->top_p = (double)c->top_p;
    p->min_p = (double)c->min_p;
    p->repetition_penalty = (double)c->repetition_penalty;
    p->top_k = c->top_k;
}

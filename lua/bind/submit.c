/* submit.c - reads the table of mc.submit field by field.
 *
 * OWNS nothing. THREAD: the VM's. A value may be what JSON gave: mc.json.null is absent, a
 * marked number counts by its value. Wrong values are errors for the client and never
 * raise. */
#include "lua/bind/submit.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>

#include "core/base/clock.h"
#include "lua/bind/json.h"
#include "lua/bind/tensor.h"

enum field_kind { NUMBER, INTEGER, UNSIGNED, FLAG, OTHER };

/* Fields that are one number or flag: where they go. */
#define REQ(member) offsetof(struct mc_submit, o.req.member)
#define WANT(member) offsetof(struct mc_submit, o.req.want.member)
static const struct field {
    const char *name;
    enum field_kind kind;
    size_t at;
} fields[] = {
    {"temperature", NUMBER, WANT(temperature)},
    {"top_p", NUMBER, WANT(top_p)},
    {"min_p", NUMBER, WANT(min_p)},
    {"repetition_penalty", NUMBER, WANT(repetition_penalty)},
    {"presence_penalty", NUMBER, WANT(presence_penalty)},
    {"frequency_penalty", NUMBER, WANT(frequency_penalty)},
    {"top_k", INTEGER, WANT(top_k)},
    {"min_tokens", INTEGER, WANT(min_tokens)},
    {"limit", INTEGER, REQ(limit)},
    {"logprobs", INTEGER, REQ(n_top)},
    {"priority", INTEGER, REQ(priority)},
    {"lane", UNSIGNED, REQ(lane)},
    {"tenant", UNSIGNED, REQ(tenant)},
    {"ignore_eos", FLAG, REQ(ignore_eos)},
    {"prompt_logprobs", FLAG, REQ(prompt_logprobs)},
    {"keep_special", FLAG, offsetof(struct mc_submit, o.keep_special)},
    {"deadline", OTHER, 0},
    {"due_first", OTHER, 0},
    {"slo_token", NUMBER, REQ(slo_token)},
    {"index", UNSIGNED, offsetof(struct mc_submit, index)},
    {"seed", OTHER, 0},
    {"stop", OTHER, 0},
    {"stop_token_ids", OTHER, 0},
    {"logit_bias", OTHER, 0},
    {"salt", OTHER, 0},
    {"name", OTHER, 0},
};
enum { N_FIELD = sizeof fields / sizeof *fields };

/* The number at the stack's top; false when it is none. */
static bool number_at_top(lua_State *L, double *out)
{
    bool ok = lua_type(L, -1) == LUA_TNUMBER || mc_json_is_number(L, -1);

    if (!ok)
        return false;
    if (lua_istable(L, -1)) {
        lua_pushliteral(L, "value");
        lua_rawget(L, -2);
        *out = lua_tonumber(L, -1);
        lua_pop(L, 1);
    } else {
        *out = lua_tonumber(L, -1);
    }
    return true;
}

static int read_number(lua_State *L, const struct field *f, void *to, struct mc_err *err)
{
    double v;

    if (!number_at_top(L, &v) || !isfinite(v))
        return mc_fail_param(err, MC_EARG, f->name, "%s must be a finite number",
                             f->name);
    if (f->kind == NUMBER) {
        *(double *)to = v;
        return 0;
    }
    if (v != floor(v))
        return mc_fail_param(err, MC_EARG, f->name, "%s must be a whole number", f->name);
    if (f->kind == UNSIGNED && v < 0)
        return mc_fail_param(err, MC_EARG, f->name, "%s must not be negative", f->name);
    /* the engine checks the range: a number that does not fit is cut to one that is out */
    *(int32_t *)to = v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
    return 0;
}

static int read_seed(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    struct mc_err why;
    json_t *v = mc_json_pull(L, -1, &why);
    bool ok = json_is_integer(v);

    if (ok) {
        s->o.req.seeded = true;
        s->o.req.seed = (uint64_t)json_integer_value(v);
    }
    json_decref(v);
    return ok ? 0
              : mc_fail_param(err, MC_EARG, "seed", "seed must be a 64-bit whole number");
}

static int add_stop(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    size_t n;

    if (lua_type(L, -1) != LUA_TSTRING)
        return mc_fail_param(err, MC_EARG, "stop",
                             "stop must be a string or a list of them");
    if (s->o.n_stop == MC_SUBMIT_STOPS)
        return mc_fail_param(err, MC_EARG, "stop", "stop has more than %d strings",
                             MC_SUBMIT_STOPS);
    s->stop[s->o.n_stop] = lua_tolstring(L, -1, &n);
    s->stop_len[s->o.n_stop++] = n;
    return 0;
}

/* A list of JSON or a table of Lua's, neither an object nor a marked number. */
static bool is_list(lua_State *L, int idx)
{
    return lua_istable(L, idx) && !mc_json_is_map(L, idx) && !mc_json_is_number(L, idx);
}

static int read_stop(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    int rc = 0, i, n;

    if (!is_list(L, -1))
        return add_stop(L, s, err);
    n = (int)lua_objlen(L, -1);
    for (i = 1; i <= n && rc == 0; i++) {
        lua_rawgeti(L, -1, i);
        rc = add_stop(L, s, err);
        lua_pop(L, 1);
    }
    return rc;
}

static int read_stop_ids(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    int i, n = is_list(L, -1) ? (int)lua_objlen(L, -1) : -1;
    int rc = 0;

    if (n < 0 || n > MC_SUBMIT_STOP_IDS)
        return mc_fail_param(err, MC_EARG, "stop_token_ids",
                             "stop_token_ids must be a list of at most %d token ids",
                             MC_SUBMIT_STOP_IDS);
    for (i = 1; i <= n && rc == 0; i++) {
        const struct field f = {"stop_token_ids", INTEGER, 0};

        lua_rawgeti(L, -1, i);
        rc = read_number(L, &f, &s->stop_ids[s->o.req.n_stop++], err);
        lua_pop(L, 1);
    }
    return rc;
}

/* Key and value at -2 and -1. */
static int add_bias(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    struct mc_bias *b = &s->bias[s->o.req.n_bias];
    char *end = NULL;
    double add;
    long id = -1;

    if (s->o.req.n_bias == MC_MAX_BIAS)
        return mc_fail_param(err, MC_EARG, "logit_bias",
                             "logit_bias has more than %d entries", MC_MAX_BIAS);
    errno = 0;
    if (lua_type(L, -2) == LUA_TNUMBER) {
        double k = lua_tonumber(L, -2);

        id = k == floor(k) && fabs(k) < 1e9 ? (long)k : -1;
    } else if (lua_type(L, -2) == LUA_TSTRING) {
        id = strtol(lua_tostring(L, -2), &end, 10);
        if (*end || end == lua_tostring(L, -2) || errno)
            id = -1;
    }
    if (id < 0 || id > INT32_MAX)
        return mc_fail_param(err, MC_EARG, "logit_bias",
                             "logit_bias: a key is no token id");
    if (!number_at_top(L, &add) || !isfinite(add))
        return mc_fail_param(err, MC_EARG, "logit_bias",
                             "logit_bias: the bias of token %ld is no number", id);
    *b = (struct mc_bias){(int32_t)id, (float)add};
    s->o.req.n_bias++;
    return 0;
}

static int read_bias(lua_State *L, struct mc_submit *s, struct mc_err *err)
{
    bool ordered = mc_json_is_map(L, -1);
    int rc = 0;

    if (!lua_istable(L, -1) || mc_json_is_array(L, -1))
        return mc_fail_param(err, MC_EARG, "logit_bias",
                             "logit_bias must be an object of token ids and numbers");
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        if (!ordered || lua_type(L, -2) == LUA_TSTRING)
            rc = add_bias(L, s, err);
        lua_pop(L, 1);
        if (rc < 0) {
            lua_pop(L, 1);
            return rc;
        }
    }
    return 0;
}

static int read_text(lua_State *L, const char *name, char *to, size_t cap,
                     struct mc_err *err)
{
    size_t n;
    const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &n) : NULL;

    if (!s || n >= cap || memchr(s, 0, n))
        return mc_fail_param(err, MC_EARG, name,
                             "%s must be a string of at most %d bytes", name,
                             (int)cap - 1);
    memset(to, 0, cap);
    memcpy(to, s, n);
    return 0;
}

/* The value at the stack's top. */
static int read_field(lua_State *L, const struct field *f, struct mc_submit *s,
                      struct mc_err *err)
{
    struct mc_request *r = &s->o.req;
    void *to = (char *)s + f->at;
    double v;

    if (f->kind == FLAG) {
        if (!lua_isboolean(L, -1))
            return mc_fail_param(err, MC_EARG, f->name, "%s must be true or false",
                                 f->name);
        *(bool *)to = lua_toboolean(L, -1);
        return 0;
    }
    if (f->kind != OTHER)
        return read_number(L, f, to, err);
    if (strcmp(f->name, "seed") == 0)
        return read_seed(L, s, err);
    if (strcmp(f->name, "stop") == 0)
        return read_stop(L, s, err);
    if (strcmp(f->name, "stop_token_ids") == 0)
        return read_stop_ids(L, s, err);
    if (strcmp(f->name, "logit_bias") == 0)
        return read_bias(L, s, err);
    if (strcmp(f->name, "salt") == 0)
        return read_text(L, "salt", r->salt, sizeof r->salt, err);
    if (strcmp(f->name, "name") == 0)
        return read_text(L, "name", r->name, sizeof r->name, err);
    if (!number_at_top(L, &v) || !(v > 0) || v > 1e6)
        return mc_fail_param(err, MC_EARG, f->name,
                             "%s must be seconds from now, up to 1e6", f->name);
    *(strcmp(f->name, "deadline") == 0 ? &r->deadline : &r->due_first) = mc_now() + v;
    return 0;
}

/* The seed of the index-th of several sequences of one request: splitmix64's output. */
static uint64_t seed_of(uint64_t seed, uint32_t index)
{
    uint64_t z = seed + 0x9E3779B97F4A7C15ull * index;

    if (index == 0)
        return seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

void mc_submit_push_fields(lua_State *L)
{
    lua_createtable(L, 0, N_FIELD);
    for (int i = 0; i < N_FIELD; i++) {
        lua_pushboolean(L, 1);
        lua_setfield(L, -2, fields[i].name);
    }
}

int mc_submit_read(lua_State *L, int idx, const struct mc_config *c,
                   struct mc_submit *out, struct mc_err *err)
{
    int rc = 0, i;

    memset(out, 0, sizeof *out);
    mc_params_default(c, &out->o.req.want);
    out->o.req.limit = -1;
    out->o.req.n_top = -1;
    for (i = 0; i < N_FIELD && rc == 0; i++) {
        lua_pushstring(L, fields[i].name);
        lua_rawget(L, idx);
        if (!lua_isnil(L, -1) && !mc_json_is_null(L, -1))
            rc = read_field(L, &fields[i], out, err);
        lua_pop(L, 1);
    }
    out->o.req.seed = seed_of(out->o.req.seed, out->index);
    out->o.stop = out->stop;
    out->o.stop_len = out->stop_len;
    out->o.req.stop_ids = out->stop_ids;
    out->o.req.bias = out->bias;
    return rc;
}

/* Entry i of the array at idx: its layer; its tensor stays on the stack. */
static int32_t push_tap(lua_State *L, int idx, int i)
{
    int32_t layer;

    lua_rawgeti(L, idx, i);
    lua_rawgeti(L, -1, 1);
    layer = (int32_t)luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, 2);
    return layer;
}

void mc_submit_taps(lua_State *L, int captures, int steers, struct mc_submit *out)
{
    struct mc_request *r = &out->o.req;
    int n = lua_istable(L, captures) ? (int)lua_objlen(L, captures) : 0;

    luaL_argcheck(L, n <= MC_MAX_TAPS, captures, "more than 8 captures");
    for (; r->n_capture < n; r->n_capture++) {
        struct mc_capture *c = &out->capture[r->n_capture];

        c->layer = push_tap(L, captures, r->n_capture + 1);
        c->to = *mc_tensor_check(L, -1);
        lua_pop(L, 2);
    }
    n = lua_istable(L, steers) ? (int)lua_objlen(L, steers) : 0;
    luaL_argcheck(L, n <= MC_MAX_TAPS, steers, "more than 8 vectors");
    for (; r->n_steer < n; r->n_steer++) {
        struct mc_steer *s = &out->steer[r->n_steer];

        s->layer = push_tap(L, steers, r->n_steer + 1);
        s->add = *mc_tensor_check(L, -1);
        lua_rawgeti(L, -2, 3);
        s->scale = (float)luaL_checknumber(L, -1);
        lua_pop(L, 3);
    }
    r->capture = out->capture;
    r->steer = out->steer;
}

/* http.c - what a handler reads of its request and writes of its response.
 *
 * OWNS the handle that scripts hold: it is closed when the task ends, the request itself
 * belongs to edge.c. THREAD: the loop's. */
#include "lua/bind/http.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/serve/json_out.h"
#include "lua/bind/bind.h"
#include "lua/bind/json.h"
#include "lua/bind/stream.h"

static const char RES[] = "mc.response";
enum { NAME_MAX_ = 128 };

struct handle {
    struct mc_owned own;
    struct mc_edge_req *r; /* NULL: the request is over */
};

static void end_handle(struct mc_owned *o)
{
    ((struct handle *)o)->r = NULL;
}

static void free_handle(struct mc_owned *o)
{
    free(o);
}

struct mc_edge_req *mc_http_check(lua_State *L, int idx)
{
    struct handle *h = *(struct handle **)luaL_checkudata(L, idx, RES);

    if (!h->r)
        luaL_error(L, "this request is over");
    return h->r;
}

/* ---- the request ------------------------------------------------------------------- */

static void add_pair(void *ctx, const char *key, const char *value)
{
    lua_State *L = ctx;
    char low[NAME_MAX_];
    size_t i;

    for (i = 0; key[i] && i < sizeof low - 1; i++)
        low[i] = (char)tolower((unsigned char)key[i]);
    lua_pushlstring(L, low, i);
    lua_pushstring(L, value ? value : "");
    lua_rawset(L, -3);
}

static void add_query(void *ctx, const char *key, const char *value)
{
    lua_State *L = ctx;

    lua_pushstring(L, key);
    lua_pushstring(L, value ? value : "");
    lua_rawset(L, -3);
}

static void set_text(lua_State *L, const char *key, const char *value)
{
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

void mc_http_push(lua_State *L, struct mc_edge_req *r)
{
    struct mc_server *s = mc_tvm_of(L)->server;
    struct handle **at, *h;

    lua_createtable(L, 0, 8);
    set_text(L, "method", mc_req_method(r->req));
    set_text(L, "path", mc_req_path(r->req));
    set_text(L, "id", mc_req_id(r->req));
    set_text(L, "ip", mc_req_ip(r->req));
    set_text(L, "tenant", mc_keys_tenant(s->keys, r->tenant));
    if (mc_keys_rate(s->keys, r->tenant) > 0) {
        lua_pushnumber(L, mc_keys_rate(s->keys, r->tenant));
        lua_setfield(L, -2, "tenant_rate");
    }
    lua_pushinteger(L, (lua_Integer)r->tenant);
    lua_setfield(L, -2, "tenant_id");
    lua_newtable(L);
    mc_req_each_query(r->req, add_query, L);
    lua_setfield(L, -2, "query");
    lua_newtable(L);
    mc_req_each_header(r->req, add_pair, L);
    lua_setfield(L, -2, "headers");
    at = lua_newuserdata(L, sizeof *at);
    *at = NULL;
    luaL_getmetatable(L, RES);
    lua_setmetatable(L, -2);
    h = calloc(1, sizeof *h);
    if (!h)
        luaL_error(L, "not enough memory");
    h->own.end = end_handle;
    h->own.free = free_handle;
    h->r = r;
    mc_own(mc_tvm_of(L), &r->task.scope, &h->own);
    *at = h;
}

static int l_body(lua_State *L)
{
    size_t n;
    const char *s = mc_req_body(mc_http_check(L, 1)->req, &n);

    lua_pushlstring(L, n ? s : "", n);
    return 1;
}

/* json(res) -> value; nil, error */
static int l_json(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    struct mc_err err;
    size_t n;
    const char *s = mc_req_body(r->req, &n);

    json_decref(r->body);
    r->body = mc_json_read(n ? s : "", n, &err);
    if (!r->body)
        return mc_bind_fail(L, &err);
    mc_json_push(L, r->body, MC_JSON_EXACT);
    json_decref(r->body);
    r->body = NULL;
    return 1;
}

/* ---- the response ------------------------------------------------------------------ */

static int result(lua_State *L, int rc)
{
    struct mc_err err = {0};

    if (rc >= 0) {
        lua_pushboolean(L, 1);
        return 1;
    }
    if (rc == MC_EAGAIN) { /* over 1 MiB waits unread */
        lua_pushboolean(L, 0);
        return 1;
    }
    mc_fail(&err, rc, "%s", rc == MC_ECANCEL ? "the client is gone" : mc_code_text(rc));
    return mc_bind_fail(L, &err);
}

static void check_fresh(lua_State *L, const struct mc_edge_req *r)
{
    if (mc_res_started(r->req))
        luaL_error(L, "this request has been answered already");
}

/* send(res, status, type or nil, body) */
static int l_send(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    int status = luaL_checkint(L, 2);
    const char *type = luaL_optstring(L, 3, NULL);
    size_t n;
    const char *body = luaL_checklstring(L, 4, &n);

    luaL_argcheck(L, status >= 100 && status <= 599, 2, "an HTTP status");
    check_fresh(L, r);
    return result(L, mc_res_send(r->req, status, type, body, n));
}

static int l_header(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    const char *key = luaL_checkstring(L, 2), *value = luaL_checkstring(L, 3);

    check_fresh(L, r);
    return result(L, mc_res_header(r->req, key, value));
}

/* asked(res, name) -> the request's header, or nil */
static int l_asked(lua_State *L)
{
    lua_pushstring(L, mc_req_header(mc_http_check(L, 1)->req, luaL_checkstring(L, 2)));
    return 1;
}

/* begin(res, status, type): an event stream when the type says so */
static int l_begin(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    int status = luaL_checkint(L, 2);
    const char *type = luaL_checkstring(L, 3);

    luaL_argcheck(L, status >= 100 && status <= 599, 2, "an HTTP status");
    check_fresh(L, r);
    r->begun = true;
    r->sse = strncmp(type, "text/event-stream", 17) == 0;
    return result(L, mc_res_begin(r->req, status, type));
}

/* write(res, text) -> true; false: try again soon; nil, error */
static int l_write(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    size_t n;
    const char *s = luaL_checklstring(L, 2, &n);

    return result(L, mc_res_write(r->req, s, n));
}

/* enter(res, route, body_max, at_once, seconds): the route's limits (nil: none); false: the
 * request has its error */
static int l_enter(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    const char *route = luaL_checkstring(L, 2);
    double body_max = luaL_optnumber(L, 3, 0), seconds = luaL_optnumber(L, 5, 0);
    int at_once = luaL_optint(L, 4, 0), rc = 0;
    struct mc_err err;
    size_t n;

    mc_req_body(r->req, &n);
    if (body_max > 0 && (double)n > body_max)
        rc = mc_fail(&err, MC_EBIG, "the body has %zu bytes; this route takes %.0f", n,
                     body_max);
    if (rc == 0)
        rc = mc_edge_enter(r, route, at_once, seconds, &err);
    if (rc < 0)
        mc_http_fail(r, &err);
    lua_pushboolean(L, rc == 0);
    return 1;
}

static int l_started(lua_State *L)
{
    lua_pushboolean(L, mc_res_started(mc_http_check(L, 1)->req));
    return 1;
}

/* Seconds out of the error table at 2, if it says when to come back. */
static void set_retry_after(lua_State *L, struct mc_edge_req *r)
{
    char text[32];

    lua_pushliteral(L, "retry_after");
    lua_rawget(L, 2);
    if (lua_type(L, -1) == LUA_TNUMBER) {
        double after = lua_tonumber(L, -1);

        snprintf(text, sizeof text, "%.0f", ceil(after));
        mc_res_header(r->req, "retry-after", text);
        snprintf(text, sizeof text, "%.0f", ceil(after * 1e3));
        mc_res_header(r->req, "retry-after-ms", text);
    }
    lua_pop(L, 1);
}

static int l_fail(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    struct mc_err err;

    luaL_checkany(L, 2);
    mc_bind_pull_err(L, 2, &err);
    if (lua_istable(L, 2) && !mc_res_started(r->req))
        set_retry_after(L, r);
    mc_http_fail(r, &err);
    return 0;
}

/* finish(res): the next wait is the end of this task */
static int l_finish(lua_State *L)
{
    mc_http_check(L, 1)->task.finish = true;
    return 0;
}

static void fail_stream(struct mc_edge_req *r, const struct mc_err *err)
{
    struct mc_buf b = {0};

    mc_buf_puts(&b, "data: ");
    mc_json_error(&b, err);
    mc_buf_puts(&b, "\n\ndata: [DONE]\n\n");
    if (!b.failed)
        mc_res_write(r->req, b.p, b.n);
    mc_buf_free(&b);
}

void mc_http_fail(struct mc_edge_req *r, const struct mc_err *err)
{
    if (r->left || r->stream)
        return;
    if (!mc_res_started(r->req))
        mc_res_error(r->req, err);
    else if (r->sse)
        fail_stream(r, err);
}

void mc_bind_http(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"body", l_body},       {"json", l_json},
        {"send", l_send},       {"header", l_header},
        {"asked", l_asked},     {"begin", l_begin},     {"write", l_write},
        {"started", l_started}, {"fail", l_fail},
        {"enter", l_enter},     {"finish", l_finish},   {"stream", mc_http_stream},
        {"streamed", mc_http_streamed}, {NULL, NULL},
    };

    mc_bind_type(L, RES, none, mc_bind_disown);
    mc_bind_table(L, fns);
    luaL_getmetatable(L, RES); /* lua/mc/http.lua puts the methods there */
    lua_setfield(L, -2, "meta");
}

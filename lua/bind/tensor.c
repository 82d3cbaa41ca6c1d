/* tensor.c - host.tensor: tensors made, viewed, worked on and read from Lua.
 *
 * A tensor's userdata is a pointer to its handle (lua/host/task.h): device memory goes
 * with close(), with the scope or with the collector, whichever is first. What would pass
 * a limit is tried again after a full collection: memory outside is no pressure on
 * LuaJIT's. Nothing here waits: a read is a copy to host memory and a fence (fence.c),
 * awaited by lua/mc/tensor.lua. OWNS the handles. THREAD: the loop's. */
#include "lua/bind/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/fence.h"
#include "lua/bind/weight.h"
#include "lua/host/task.h"

static const char TENSOR[] = "mc.tensor";

enum {
    MAX_TABLE = 1 << 20, /* elements that go through a Lua table */
    FORGOTTEN = 1 << 20  /* bytes from which a scope's end tells of what it left open */
};

struct ltensor {
    struct mc_owned own;
    struct mc_tensor t; /* store NULL: closed */
    char at[72];        /* where the script made it */
};

/* ---- handles ----------------------------------------------------------------------- */

/* By a scope's end, or the collector's: both mean that nobody closed it. */
static void end_tensor(struct mc_owned *o)
{
    struct ltensor *h = (struct ltensor *)o;
    size_t bytes = h->t.store
                       ? (size_t)mc_tensor_count(&h->t) * mc_dtype_bytes(h->t.v.dt) : 0;
    char text[80];

    if (bytes >= FORGOTTEN) {
        mc_tensor_text(&h->t, text);
        mc_info("lua", "tensor %s, made at %s, was not closed", text, h->at);
    }
    mc_tensor_drop(&h->t);
}

/* The script's line: the first frame that is not this program's. */
static void where(lua_State *L, char *out, size_t cap)
{
    lua_Debug ar;

    snprintf(out, cap, "?");
    for (int i = 1; lua_getstack(L, i, &ar); i++)
        if (lua_getinfo(L, "Sl", &ar) && ar.currentline > 0 &&
            strncmp(ar.source, "@lua/", 5) != 0) {
            snprintf(out, cap, "%s:%d", ar.short_src, ar.currentline);
            return;
        }
}

/* Pushes an empty handle; what it gets cannot fail any more. */
static struct ltensor *push_handle(lua_State *L)
{
    struct ltensor *h = mc_bind_own(L, TENSOR, sizeof *h, end_tensor);

    where(L, h->at, sizeof h->at);
    return h;
}

void mc_tensor_push(lua_State *L, struct mc_tensor *t)
{
    struct ltensor *h = push_handle(L);

    h->t = *t;
    t->store = NULL;
}

static struct ltensor *check(lua_State *L, int idx)
{
    return *(struct ltensor **)luaL_checkudata(L, idx, TENSOR);
}

const struct mc_tensor *mc_tensor_check(lua_State *L, int idx)
{
    struct ltensor *h = check(L, idx);

    if (!h || !h->t.store)
        luaL_argerror(L, idx, "the tensor is closed");
    return &h->t;
}

static int l_close(lua_State *L)
{
    mc_tensor_drop(&check(L, 1)->t);
    return 0;
}

/* ---- the account ------------------------------------------------------------------- */

struct mc_account *mc_tensor_account_of(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);
    const struct mc_served *m;
    struct mc_tensors *ts;
    struct mc_tensors_use use;
    struct mc_err err;

    if (v->account)
        return v->account;
    lua_pushnil(L); /* the first model's: all share its memory */
    m = mc_bind_model(L, -1);
    if (!m)
        return NULL;
    lua_pop(L, 1);
    ts = mc_engine_tensors(m->engine, &err);
    if (ts) {
        mc_tensors_use(ts, NULL, &use);
        v->account = mc_account_open(ts, use.total / 2);
        if (!v->account)
            mc_fail(&err, MC_ENOMEM, "no memory for tensors");
    }
    if (!v->account)
        mc_bind_fail(L, &err);
    return v->account;
}

/* stats() -> used, total, mine, quota; bytes */
static int l_stats(lua_State *L)
{
    struct mc_account *a = mc_tensor_account_of(L);
    struct mc_tensors_use use;

    if (!a)
        return 2;
    mc_tensors_use(mc_account_pool(a), a, &use);
    lua_pushnumber(L, (double)use.used);
    lua_pushnumber(L, (double)use.total);
    lua_pushnumber(L, (double)use.mine);
    lua_pushnumber(L, (double)use.quota);
    return 4;
}

/* ---- making ------------------------------------------------------------------------ */

static int check_dtype(lua_State *L, int idx)
{
    int dt = mc_dtype_of(luaL_checkstring(L, idx));

    luaL_argcheck(L, dt >= 0, idx, "a type is \"f32\", \"f16\", \"bf16\" or \"i32\"");
    return dt;
}

/* A whole number in 1..2^31-1; raises. */
static int32_t axis_at(lua_State *L, int table, int i)
{
    double n;

    lua_rawgeti(L, table, i);
    n = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    lua_pop(L, 1);
    if (!(n >= 1 && n <= INT32_MAX && n == floor(n)))
        luaL_argerror(L, table, "a shape is up to 4 whole numbers from 1");
    return (int32_t)n;
}

static int make(struct mc_account *a, int dt, int n_dim, const int32_t *shape, bool host,
                struct mc_tensor *out, struct mc_err *err)
{
    return host ? mc_tensor_new_host(a, dt, n_dim, shape, out, err)
                : mc_tensor_new(a, dt, n_dim, shape, out, err);
}

/* What a failure becomes: false where work that is queued still holds memory that may be
 * enough once it is done; else nil and the error. */
static int push_failure(lua_State *L, int rc, const struct mc_err *err)
{
    if (rc == MC_ELIMIT && mc_tensors_busy(mc_account_pool(mc_tvm_of(L)->account))) {
        lua_pushboolean(L, 0);
        return 1;
    }
    return mc_bind_fail(L, err);
}

/* A new tensor on the stack; false or nil and an error, as push_failure. */
static int push_new(lua_State *L, int dt, int n_dim, const int32_t *shape, bool host)
{
    struct mc_account *a = mc_tensor_account_of(L);
    struct ltensor *h;
    struct mc_err err;
    int rc;

    if (!a)
        return 2;
    h = push_handle(L);
    rc = make(a, dt, n_dim, shape, host, &h->t, &err);
    if (rc == MC_ELIMIT) {
        lua_gc(L, LUA_GCCOLLECT, 0);
        rc = make(a, dt, n_dim, shape, host, &h->t, &err);
    }
    return rc < 0 ? push_failure(L, rc, &err) : 1;
}

/* zeros(dtype, shape, whether in host memory) -> tensor; false: work must be awaited first;
 * nil and an error */
static int l_zeros(lua_State *L)
{
    int32_t shape[MC_AXES];
    int dt = check_dtype(L, 1), n;

    luaL_checktype(L, 2, LUA_TTABLE);
    n = (int)lua_objlen(L, 2);
    luaL_argcheck(L, n <= MC_AXES, 2, "a shape is up to 4 whole numbers from 1");
    for (int i = 0; i < n; i++)
        shape[i] = axis_at(L, 2, i + 1);
    return push_new(L, dt, n, shape, lua_toboolean(L, 3));
}

/* The shape that nested tables at the top have, by their first elements; raises. */
static int shape_of(lua_State *L, int32_t *shape)
{
    int n = 0, top = lua_gettop(L);
    double count = 1;

    lua_pushvalue(L, 1);
    for (; lua_istable(L, -1); n++) {
        luaL_argcheck(L, n < MC_AXES, 1, "tables nest up to 4 deep");
        shape[n] = (int32_t)lua_objlen(L, -1);
        count *= shape[n];
        luaL_argcheck(L, shape[n] > 0, 1, "an empty table");
        luaL_argcheck(L, count <= MAX_TABLE, 1, "more than 1,048,576 numbers");
        lua_rawgeti(L, -1, 1);
    }
    lua_settop(L, top);
    return n;
}

/* Copies the value at the top, of n axes left; raises where the tables are uneven. */
static void fill(lua_State *L, const int32_t *shape, int n, float **to)
{
    if (n == 0) {
        luaL_argcheck(L, lua_type(L, -1) == LUA_TNUMBER, 1,
                      "not a number where one belongs");
        *(*to)++ = (float)lua_tonumber(L, -1);
        return;
    }
    luaL_argcheck(L, lua_istable(L, -1) && (int32_t)lua_objlen(L, -1) == shape[0], 1,
                  "the tables are not even");
    for (int32_t i = 1; i <= shape[0]; i++) {
        lua_rawgeti(L, -1, i);
        fill(L, shape + 1, n - 1, to);
        lua_pop(L, 1);
    }
}

/* host(numbers) -> an f32 tensor in host memory with them; else as zeros */
static int l_host(lua_State *L)
{
    int32_t shape[MC_AXES];
    float *to;
    int n, n_pushed;

    if (lua_type(L, 1) != LUA_TNUMBER)
        luaL_checktype(L, 1, LUA_TTABLE);
    n = shape_of(L, shape);
    n_pushed = push_new(L, MC_F32, n, shape, true);
    if (!lua_isuserdata(L, -n_pushed))
        return n_pushed;
    to = mc_tensor_check(L, -1)->v.p;
    lua_pushvalue(L, 1);
    fill(L, shape, n, &to);
    lua_pop(L, 1);
    return 1;
}

/* like(tensor, dtype or nil) -> a tensor of its shape on the device (nil: in host memory,
 * and f32); else as zeros */
static int l_like(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    bool host = lua_isnoneornil(L, 2);

    return push_new(L, host ? MC_F32 : check_dtype(L, 2), t->n_dim, mc_tensor_shape(t),
                    host);
}

/* ---- views ------------------------------------------------------------------------- */

/* An index from 1, or from -1 at the end, as one from 0. */
static int32_t index_of(lua_State *L, int idx, int32_t n)
{
    double i = luaL_checknumber(L, idx);

    luaL_argcheck(L, i == floor(i) && fabs(i) >= 1 && fabs(i) <= n, idx,
                  "an index counts from 1, or from -1 at the end, within the axis");
    return (int32_t)(i > 0 ? i - 1 : n + i);
}

static int push_view(lua_State *L, int rc, struct mc_tensor *t, const struct mc_err *err)
{
    if (rc < 0)
        return mc_bind_fail(L, err);
    mc_tensor_push(L, t);
    return 1;
}

/* row(tensor, i) -> view */
static int l_row(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    struct ltensor *h;
    struct mc_err err;
    int32_t i;

    luaL_argcheck(L, t->n_dim > 0, 1, "it has no axis");
    i = index_of(L, 2, mc_tensor_shape(t)[0]);
    h = push_handle(L);
    return mc_tensor_index(t, i, &h->t, &err) < 0 ? mc_bind_fail(L, &err) : 1;
}

/* slice(tensor, from, to, axis) -> view of elements from..to of that axis */
static int l_slice(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    int axis = luaL_optint(L, 4, 1) - 1;
    int32_t n, from, to;
    struct ltensor *h;
    struct mc_err err;

    luaL_argcheck(L, axis >= 0 && axis < t->n_dim, 4, "it has no such axis");
    n = mc_tensor_shape(t)[axis];
    from = index_of(L, 2, n);
    to = lua_isnoneornil(L, 3) ? n - 1 : index_of(L, 3, n);
    luaL_argcheck(L, from <= to, 3, "it ends before it begins");
    h = push_handle(L);
    return mc_tensor_slice(t, axis, from, to - from + 1, &h->t, &err) < 0
               ? mc_bind_fail(L, &err) : 1;
}

static int l_transpose(lua_State *L)
{
    struct mc_tensor out;
    struct mc_err err;
    int rc;

    rc = mc_tensor_transpose(mc_tensor_check(L, 1), &out, &err);
    return push_view(L, rc, &out, &err);
}

/* info(tensor) -> dtype, bytes, text */
static int l_info(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    char text[80];

    mc_tensor_text(t, text);
    lua_pushstring(L, mc_dtype_name(t->v.dt));
    lua_pushnumber(L, (double)mc_tensor_count(t) * (double)mc_dtype_bytes(t->v.dt));
    lua_pushstring(L, text);
    return 3;
}

/* closed(tensor) -> whether */
static int l_closed(lua_State *L)
{
    lua_pushboolean(L, !check(L, 1)->t.store);
    return 1;
}

static int l_shape(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);

    lua_createtable(L, t->n_dim, 0);
    for (int i = 0; i < t->n_dim; i++) {
        lua_pushinteger(L, mc_tensor_shape(t)[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* ---- work -------------------------------------------------------------------------- */

static enum mc_tensor_what check_what(lua_State *L, int idx)
{
    static const char *const names[] = {"cast",    "add",  "sub",  "mul",  "div",
                                        "matmul",  "sum",  "mean", "norm", "max",
                                        "softmax", "topk", NULL};

    return (enum mc_tensor_what)luaL_checkoption(L, idx, NULL, names);
}

/* What the arguments ask for; raises. */
static struct mc_tensor_work check_work(lua_State *L)
{
    struct mc_tensor_work w = {.what = check_what(L, 1), .a = mc_tensor_check(L, 2)};

    switch (w.what) {
    case MC_T_COPY:
        w.dt = check_dtype(L, 3);
        break;
    case MC_T_TOPK: {
        double k = luaL_checknumber(L, 3);

        w.k = k >= 1 && k <= MC_TOPK_MAX && k == floor(k) ? (int32_t)k
                                                          : 0; /* 0 is refused */
        break;
    }
    case MC_T_MATMUL:
        w.b = mc_tensor_check(L, 3);
        break;
    case MC_T_ADD:
    case MC_T_SUB:
    case MC_T_MUL:
    case MC_T_DIV:
        if (lua_type(L, 3) == LUA_TNUMBER)
            w.scale = (float)lua_tonumber(L, 3);
        else
            w.b = mc_tensor_check(L, 3);
        break;
    default:
        break;
    }
    return w;
}

/* work(what, a, b or number) -> tensor[, ids]; false: so much is queued that some must be
 * awaited first; nil and an error */
static int l_work(lua_State *L)
{
    struct mc_tensor_work w = check_work(L);
    struct ltensor *out = push_handle(L), *ids = NULL;
    struct mc_err err;
    int rc;

    if (w.what == MC_T_TOPK)
        ids = push_handle(L);
    rc = mc_tensor_work(&w, &out->t, ids ? &ids->t : NULL, &err);
    if (rc == MC_ELIMIT) {
        lua_gc(L, LUA_GCCOLLECT, 0);
        rc = mc_tensor_work(&w, &out->t, ids ? &ids->t : NULL, &err);
    }
    if (rc < 0)
        return push_failure(L, rc, &err);
    if (rc == 1) {
        lua_pushboolean(L, 0);
        return 1;
    }
    return ids ? 2 : 1;
}

/* move(from, to) -> true: the copy is queued; false, or nil and an error, as work */
static int l_move(lua_State *L)
{
    const struct mc_tensor *from = mc_tensor_check(L, 1), *to = mc_tensor_check(L, 2);
    struct mc_err err;
    int rc = mc_tensor_move(from, to, &err);

    if (rc < 0)
        return mc_bind_fail(L, &err);
    lua_pushboolean(L, rc == 0);
    return 1;
}

/* ---- reading ----------------------------------------------------------------------- */

static void push_numbers(lua_State *L, const int32_t *shape, int n, const float **from)
{
    if (n == 0) {
        lua_pushnumber(L, (double)*(*from)++);
        return;
    }
    lua_createtable(L, shape[0], 0);
    for (int32_t i = 1; i <= shape[0]; i++) {
        push_numbers(L, shape + 1, n - 1, from);
        lua_rawseti(L, -2, i);
    }
}

/* numbers(tensor in host memory) -> nested tables, or a number; after its copy was
 * awaited */
static int l_numbers(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    const float *from = t->v.p;

    luaL_checkstack(L, MC_AXES + 4, "tables");
    push_numbers(L, mc_tensor_shape(t), t->n_dim, &from);
    return 1;
}

/* count(tensor) -> elements */
static int l_count(lua_State *L)
{
    lua_pushnumber(L, (double)mc_tensor_count(mc_tensor_check(L, 1)));
    return 1;
}

void mc_bind_tensor(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"zeros", l_zeros},   {"host", l_host},   {"like", l_like},
        {"row", l_row},       {"slice", l_slice}, {"transpose", l_transpose},
        {"info", l_info},     {"shape", l_shape}, {"count", l_count},
        {"work", l_work},     {"move", l_move},
        {"numbers", l_numbers}, {"closed", l_closed},
        {"close", l_close},   {"stats", l_stats}, {NULL, NULL},
    };

    mc_bind_type(L, TENSOR, none, mc_bind_disown);
    mc_bind_table(L, fns);
    mc_bind_fence(L);
    mc_bind_weight(L);
    luaL_getmetatable(L, TENSOR); /* lua/mc/tensor.lua puts the methods there */
    lua_setfield(L, -2, "meta");
}

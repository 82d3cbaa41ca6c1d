/* seq.c - opening, reading and ending sequences from Lua.
 *
 * OWNS the handles' memory. THREAD: the loop's, save on_ready (the engine's).
 * Always true: gen is NULL or its bell's context is this handle, so the handle's memory
 * goes only after mc_gen_close (here or in the pump) has returned. */
#include "lua/bind/seq.h"

#include <stdlib.h>
#include <string.h>

#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/ids.h"
#include "lua/bind/submit.h"

static const char SEQ[] = "mc.seq";

static void on_ready(void *ctx)
{
    struct mc_lseq *q = ctx;
    struct mc_pump_job *job = atomic_load_explicit(&q->job, memory_order_acquire);

    if (job)
        mc_pump_ring(job);
    else
        mc_bell_ring(&q->bell);
}

static void on_bell(struct mc_bell *b)
{
    struct mc_lseq *q = (struct mc_lseq *)((char *)b - offsetof(struct mc_lseq, bell));

    mc_task_wake(&q->own.waiter);
}

/* ---- the handle -------------------------------------------------------------------- */

static void end_seq(struct mc_owned *o)
{
    struct mc_lseq *q = (struct mc_lseq *)o;

    if (q->gen)
        mc_gen_close(q->gen);
    q->gen = NULL;
    mc_bell_still(&q->bell);
    mc_task_wake(&q->own.waiter);
}

static void release(struct mc_lseq *q)
{
    free(q->ids);
    free(q->text);
    free(q);
}

static void free_seq(struct mc_owned *o)
{
    struct mc_lseq *q = (struct mc_lseq *)o;

    q->freed = true;
    if (!q->streams)
        release(q);
}

void mc_seq_streamed(struct mc_lseq *q)
{
    q->streams = false;
    q->ended = true;
    if (q->freed)
        release(q);
}

static int gc_seq(lua_State *L)
{
    struct mc_lseq **at = lua_touserdata(L, 1);

    if (*at)
        mc_disown(&(*at)->own);
    *at = NULL;
    return 0;
}

struct mc_lseq *mc_seq_check(lua_State *L, int idx)
{
    return *(struct mc_lseq **)luaL_checkudata(L, idx, SEQ);
}

/* ---- opening ----------------------------------------------------------------------- */

static bool keep_id(struct mc_lseq *q, int32_t id)
{
    if (q->n_ids == q->cap_ids) {
        int32_t cap = q->cap_ids + q->cap_ids / 2 + 64;
        int32_t *ids = realloc(q->ids, (size_t)cap * sizeof *ids);

        if (!ids)
            return false;
        q->ids = ids;
        q->cap_ids = cap;
    }
    q->ids[q->n_ids++] = id;
    return true;
}

static struct mc_lseq *new_seq(struct mc_tvm *v, const struct mc_ids *ids)
{
    struct mc_lseq *q = calloc(1, sizeof *q);

    if (!q)
        return NULL;
    q->own.end = end_seq;
    q->own.free = free_seq;
    q->cap_ids = (int32_t)ids->n + 64;
    q->ids = malloc((size_t)q->cap_ids * sizeof *q->ids);
    if (!q->ids) {
        free(q);
        return NULL;
    }
    memcpy(q->ids, ids->v, ids->n * sizeof *q->ids);
    q->n_ids = q->n_prompt = (int32_t)ids->n;
    mc_bell_init(&q->bell, v->loop, on_bell);
    return q;
}

/* open(fields, list, model[, captures, steers, parent]) -> seq, or nil and an error */
static int l_open(lua_State *L)
{
    struct mc_tvm *v = mc_tvm_of(L);
    const struct mc_served *m;
    const struct mc_ids *ids = mc_ids_check(L, 2);
    struct mc_submit *s;
    struct mc_lseq **at, *q, *parent = NULL;
    struct mc_err err;
    int rc;

    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 6);
    if (!lua_isnil(L, 6))
        parent = mc_seq_check(L, 6);
    mc_task_need(L);
    mc_bind_room(L);
    if (ids->n > INT32_MAX / 2)
        return luaL_error(L, "a prompt of %d tokens", INT32_MAX / 2);
    m = mc_bind_model(L, 3);
    if (!m)
        return 2;
    s = lua_newuserdata(L, sizeof *s);
    rc = mc_submit_read(L, 1, mc_engine_config(m->engine), s, &err);
    if (rc < 0)
        return mc_bind_fail(L, &err);
    mc_submit_taps(L, 4, 5, s);
    if (parent && parent->model == m)
        s->o.req.from = parent->handle;
    at = lua_newuserdata(L, sizeof *at);
    *at = NULL;
    luaL_getmetatable(L, SEQ);
    lua_setmetatable(L, -2);
    q = new_seq(v, ids);
    if (!q)
        return luaL_error(L, "not enough memory");
    s->o.req.ids = q->ids;
    s->o.req.n_ids = q->n_prompt;
    rc = mc_gen_open(m->engine, &s->o, on_ready, q, &q->gen, &err);
    if (rc < 0) {
        mc_bell_still(&q->bell);
        release(q);
        return mc_bind_fail(L, &err);
    }
    q->model = m;
    q->handle = mc_gen_handle(q->gen);
    mc_own(v, &v->now->scope, &q->own);
    *at = q;
    return 1;
}

/* ---- reading ----------------------------------------------------------------------- */

static bool keep_text(struct mc_lseq *q, const char *s, size_t n)
{
    if (n > q->cap_text - q->n_text) {
        size_t cap = q->cap_text + q->cap_text / 2 + n + 256;
        char *text = realloc(q->text, cap);

        if (!text)
            return false;
        q->text = text;
        q->cap_text = cap;
    }
    memcpy(q->text + q->n_text, s, n);
    q->n_text += n;
    return true;
}

/* take(seq) -> id, text, logprob; false: not yet, and the running task will be woken; nil:
 * it has ended. */
static int l_take(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);
    const struct mc_end *end = NULL;
    struct mc_piece p;
    int rc;

    if (q->ended || !q->gen)
        return 0;
    if (!mc_task_wait(mc_tvm_of(L), &q->own.waiter))
        return luaL_error(L, "another task waits for this sequence");
    do
        rc = mc_gen_take(q->gen, &p, &end);
    while (rc == 1 && p.prompt); /* those are for res:stream */
    if (rc == 0) {
        lua_pushboolean(L, 0);
        return 1;
    }
    mc_task_unwait(mc_tvm_of(L));
    if (rc == 2) {
        q->ended = true;
        q->end = *end;
        return 0;
    }
    if (!keep_id(q, p.token.id) || !keep_text(q, p.text, p.n))
        return luaL_error(L, "not enough memory");
    q->sum_logprob += (double)p.token.logprob;
    lua_pushinteger(L, p.token.id);
    lua_pushlstring(L, p.text, p.n);
    lua_pushnumber(L, (double)p.token.logprob);
    return 3;
}

static void push_usage(lua_State *L, const struct mc_lseq *q)
{
    const struct mc_usage *u = &q->end.usage;
    double first = u->t_first > 0 ? u->t_first - u->t_arrive : 0;

    lua_createtable(L, 0, 5);
    lua_pushinteger(L, q->n_prompt);
    lua_setfield(L, -2, "prompt");
    lua_pushinteger(L, q->ended ? u->n_gen : q->n_ids - q->n_prompt);
    lua_setfield(L, -2, "gen");
    lua_pushinteger(L, u->n_cached);
    lua_setfield(L, -2, "cached");
    lua_pushnumber(L, first * 1e3);
    lua_setfield(L, -2, "first_ms");
    lua_pushnumber(L, u->n_gen > 1 ? (u->t_end - u->t_first) * 1e3 / (u->n_gen - 1) : 0);
    lua_setfield(L, -2, "per_token_ms");
}

static const char *finish_name(const struct mc_end *e)
{
    return e->finish == MC_FINISH_STOP     ? "stop"
           : e->finish == MC_FINISH_LENGTH ? "length"
           : e->finish == MC_FINISH_CANCEL ? "cancel"
                                           : "error";
}

/* result(seq) -> {text, finish, n, mean_logprob, usage}; nil and the error that ended it.
 * Before the end: what there is so far, with finish nil. */
static int l_result(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);
    int n = q->n_ids - q->n_prompt;
    struct mc_err err;

    if (q->ended &&
        (q->end.finish == MC_FINISH_ERROR || q->end.finish == MC_FINISH_CANCEL))
        return mc_bind_fail(L, &q->end.err);
    if (!q->ended && !q->gen) {
        mc_fail(&err, MC_ECANCEL, "the sequence was cancelled");
        return mc_bind_fail(L, &err);
    }
    lua_createtable(L, 0, 5);
    lua_pushlstring(L, q->n_text ? q->text : "", q->n_text);
    lua_setfield(L, -2, "text");
    if (q->ended) {
        lua_pushstring(L, finish_name(&q->end));
        lua_setfield(L, -2, "finish");
    }
    lua_pushinteger(L, n);
    lua_setfield(L, -2, "n");
    lua_pushnumber(L, n ? q->sum_logprob / n : 0);
    lua_setfield(L, -2, "mean_logprob");
    push_usage(L, q);
    lua_setfield(L, -2, "usage");
    return 1;
}

static int l_usage(lua_State *L)
{
    push_usage(L, mc_seq_check(L, 1));
    return 1;
}

/* ids(seq) -> list of prompt and generated ids, number of prompt ids */
static int l_ids(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);

    mc_ids_push_list(L, q->ids, (size_t)q->n_ids);
    lua_pushinteger(L, q->n_prompt);
    return 2;
}

/* counts(seq) -> prompt ids, all ids so far */
static int l_counts(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);

    lua_pushinteger(L, q->n_prompt);
    lua_pushinteger(L, q->n_ids);
    return 2;
}

/* state(seq) -> id ("12.3"), "running" or "ended", its model */
static int l_state(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);
    char id[MC_SEQ_ID];

    mc_seq_id(mc_tvm_of(L)->server, q->model, q->handle, id);
    lua_pushstring(L, id);
    lua_pushstring(L, q->ended || !(q->gen || q->streams) ? "ended" : "running");
    lua_pushstring(L, q->model->id);
    return 3;
}

/* dims(model) -> n_layer, hidden, vocab, longest context, the rows' type; nil and an error */
static int l_dims(lua_State *L)
{
    const struct mc_served *m = mc_bind_model(L, 1);
    const struct mc_config *c;
    struct mc_engine_status st;

    if (!m)
        return 2;
    c = mc_engine_config(m->engine);
    mc_engine_status(m->engine, &st);
    lua_pushinteger(L, c->n_layer);
    lua_pushinteger(L, c->hidden);
    lua_pushinteger(L, c->vocab);
    lua_pushinteger(L, st.max_context);
    lua_pushstring(L, mc_dtype_name(mc_engine_row_type(m->engine)));
    return 5;
}

/* ---- ending ------------------------------------------------------------------------ */

static int l_cancel(lua_State *L)
{
    struct mc_lseq *q = mc_seq_check(L, 1);

    if (q->gen && !q->ended)
        mc_gen_cancel(q->gen, luaL_optstring(L, 2, "cancelled by a script"));
    return 0;
}

static int l_detach(lua_State *L)
{
    mc_orphan(&mc_seq_check(L, 1)->own);
    return 0;
}

void mc_bind_seq(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"open", l_open},     {"take", l_take},     {"result", l_result},
        {"usage", l_usage},   {"ids", l_ids},       {"state", l_state},
        {"cancel", l_cancel}, {"detach", l_detach}, {"dims", l_dims},
        {"counts", l_counts},
        {NULL, NULL},
    };

    mc_bind_type(L, SEQ, none, gc_seq);
    mc_bind_table(L, fns);
    luaL_getmetatable(L, SEQ); /* lua/mc/seq.lua puts the methods there */
    lua_setfield(L, -2, "meta");
    mc_submit_push_fields(L);
    lua_setfield(L, -2, "fields");
}

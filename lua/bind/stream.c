/* stream.c - handing sequences to the pump, and knowing when it is done with them.
 *
 * OWNS a struct mc_http_stream from start until the pump's done: it outlives the task and the VM
 * that started it, since a stream goes on when its VM is lost. THREAD: the loop's; done on
 * the pump's, which only rings. */
#include "lua/bind/stream.h"

#include <stdlib.h>
#include <string.h>

#include "lua/bind/bind.h"
#include "lua/bind/http.h"
#include "lua/bind/seq.h"

struct mc_http_stream {
    struct mc_bell done; /* first */
    struct mc_pump *pump;
    struct mc_edge_req *req;
    struct mc_task *waiter;
    int n;
    struct mc_lseq *seqs[];
};

static void on_done(void *ctx)
{
    mc_bell_ring(&((struct mc_http_stream *)ctx)->done);
}

static void on_bell(struct mc_bell *b)
{
    struct mc_http_stream *s = (struct mc_http_stream *)b;
    struct mc_edge_req *r = s->req;
    int i;

    for (i = 0; i < s->n; i++)
        mc_seq_streamed(s->seqs[i]);
    r->stream = NULL;
    mc_task_wake(&s->waiter);
    free(s);
    if (!r->lives)
        mc_edge_req_end(r);
}

static bool flag(lua_State *L, int idx, const char *key)
{
    bool on;

    lua_getfield(L, idx, key);
    on = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return on;
}

/* The string stays on the stack. */
static const char *text(lua_State *L, int idx, const char *key)
{
    lua_getfield(L, idx, key);
    return luaL_checkstring(L, -1);
}

static void read_opts(lua_State *L, int idx, struct mc_pump_opts *o)
{
    const char *dialect = text(L, idx, "dialect");

    *o = (struct mc_pump_opts){.n_logprobs = -1};
    if (strcmp(dialect, "chat") == 0)
        o->dialect = MC_DIALECT_CHAT;
    else if (strcmp(dialect, "completion") == 0)
        o->dialect = MC_DIALECT_COMPLETION;
    else
        luaL_error(L, "no dialect '%s': chat, completion", dialect);
    o->stream = flag(L, idx, "stream");
    o->include_usage = flag(L, idx, "include_usage");
    o->continuous_usage = flag(L, idx, "continuous_usage");
    o->token_ids = flag(L, idx, "token_ids");
    o->prompt_logprobs = flag(L, idx, "prompt_logprobs");
    o->model = text(L, idx, "model");
    o->id = text(L, idx, "id");
    lua_getfield(L, idx, "logprobs");
    o->n_logprobs = (int32_t)luaL_optinteger(L, -1, -1);
}

/* The sequences of the list at idx that can be streamed; raises when one can't. */
static int read_seqs(lua_State *L, int idx, struct mc_lseq **seqs)
{
    int n = (int)lua_objlen(L, idx), i;

    luaL_argcheck(L, n >= 1 && n <= MC_PUMP_MAX_CHOICES, idx, "1..128 sequences");
    for (i = 0; i < n; i++) {
        lua_rawgeti(L, idx, i + 1);
        seqs[i] = mc_seq_check(L, -1);
        lua_pop(L, 1);
        for (int k = 0; k < i; k++)
            if (seqs[k] == seqs[i])
                luaL_error(L, "sequence %d is in the list twice", i + 1);
        if (seqs[i]->model != seqs[0]->model)
            luaL_error(L, "sequence %d is another model's", i + 1);
        if (!seqs[i]->gen || seqs[i]->n_ids != seqs[i]->n_prompt)
            luaL_error(L, "sequence %d was read, streamed or ended before", i + 1);
    }
    return n;
}

/* What the pump shows of each prompt: the choices are dealt to them evenly. */
static int read_prompts(lua_State *L, int idx, struct mc_lseq **seqs, int n,
                        struct mc_pump_prompt *prompts)
{
    int n_prompt, i;

    lua_getfield(L, idx, "prompts");
    n_prompt = (int)luaL_optinteger(L, -1, 1);
    if (n_prompt < 1 || n % n_prompt)
        luaL_error(L, "%d sequences are not dealt evenly to %d prompts", n, n_prompt);
    lua_getfield(L, idx, "echo");
    for (i = 0; i < n_prompt; i++) {
        struct mc_lseq *q = seqs[i * (n / n_prompt)];

        prompts[i] = (struct mc_pump_prompt){.ids = q->ids, .n_ids = q->n_prompt};
        if (!lua_istable(L, -1))
            continue;
        lua_rawgeti(L, -1, i + 1);
        prompts[i].echo = luaL_checklstring(L, -1, &prompts[i].n_echo);
        lua_pop(L, 1); /* the echo table holds it */
    }
    return n_prompt;
}

static void hand_over(struct mc_http_stream *s, struct mc_pump_job *job)
{
    struct mc_gen *gens[MC_PUMP_MAX_CHOICES];
    int i;

    for (i = 0; i < s->n; i++) {
        struct mc_lseq *q = s->seqs[i];

        gens[i] = q->gen;
        q->gen = NULL;
        q->streams = true;
        atomic_store_explicit(&q->job, job, memory_order_release);
    }
    s->req->stream = s;
    mc_pump_start(job, gens, s->n, on_done, s);
}

int mc_http_stream(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);
    struct mc_lseq *seqs[MC_PUMP_MAX_CHOICES];
    struct mc_pump_prompt prompts[MC_PUMP_MAX_CHOICES];
    struct mc_pump_opts o;
    struct mc_pump_job *job;
    struct mc_http_stream *s;
    int n;

    luaL_checktype(L, 2, LUA_TTABLE);
    luaL_checktype(L, 3, LUA_TTABLE);
    if (mc_res_started(r->req) || r->stream)
        return luaL_error(L, "this request has been answered already");
    n = read_seqs(L, 2, seqs);
    read_opts(L, 3, &o);
    o.prompts = prompts;
    o.n_prompts = read_prompts(L, 3, seqs, n, prompts);
    s = calloc(1, sizeof *s + (size_t)n * sizeof *s->seqs);
    job = s ? mc_pump_job(seqs[0]->model->pump, r->req, &o) : NULL;
    if (!job) {
        free(s);
        return luaL_error(L, "not enough memory");
    }
    mc_bell_init(&s->done, mc_tvm_of(L)->loop, on_bell);
    s->pump = seqs[0]->model->pump;
    s->req = r;
    s->n = n;
    memcpy(s->seqs, seqs, (size_t)n * sizeof *seqs);
    hand_over(s, job);
    lua_pushboolean(L, 1);
    return 1;
}

void mc_http_stream_gone(struct mc_http_stream *s, struct mc_req *r)
{
    mc_pump_gone(s->pump, r);
}

int mc_http_streamed(lua_State *L)
{
    struct mc_edge_req *r = mc_http_check(L, 1);

    if (r->stream)
        mc_task_wait(mc_tvm_of(L), &r->stream->waiter);
    lua_pushboolean(L, !r->stream);
    return 1;
}

/* repl.c - a REPL session: a task VM of its own, one chunk at a time.
 *
 * OWNS the session, its loop and VM. THREAD: eval, cancel and complete come from the
 * connection's thread and ring; everything Lua happens on the loop's.
 * Always true: what a chunk made (sequences) belongs to the session once the chunk has
 * ended, well or not, and ends with a chunk that was interrupted. */
#define _GNU_SOURCE /* syscall */
#include "lua/host/repl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lauxlib.h>

#include "core/base/log.h"
#include "core/base/utf8.h"
#include "lua/bind/host.h"
#include "lua/bind/json.h"
#include "lua/host/gate.h"
#include "lua/host/task.h"

enum { HARD_S = 50, LOSE_S = 60, OUT_MAX = 256 << 10, NICE = 15 };

static const char REPL_KEY; /* registry: what lua/mc/repl.lua returned */

struct mc_repl {
    struct mc_tvm tvm; /* first */
    struct mc_server *server;
    struct mc_loop *loop;
    struct mc_repl_client client;
    struct mc_scope scope; /* the session's */
    struct mc_task task;   /* the chunk that runs */
    bool runs;
    atomic_bool interrupt;
    struct mc_bell eval, cancel, complete;

    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t answered;
    char *text; /* asked for: a chunk, or what is to be completed */
    size_t n;
    enum mc_repl_how how;
    int line;
    bool closing;
    json_t *names; /* the answer of complete */
    bool has_names;
};

/* ---- Lua --------------------------------------------------------------------------- */

static void push_repl(lua_State *L, const char *name)
{
    lua_pushlightuserdata(L, (void *)&REPL_KEY);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
}

static int set_up(lua_State *L)
{
    struct mc_repl *r = lua_touserdata(L, 1);
    struct mc_generation *g;
    struct mc_err err;

    if (mc_generation_open(NULL, &g, &err) < 0)
        return luaL_error(L, "%s", err.text);
    r->tvm.user = g;
    mc_bind_host(L, g);
    mc_vm_push_module(L, "mc.repl");
    mc_bind_env(L, lua_gettop(L));
    lua_setfield(L, -2, "env");
    lua_pushlightuserdata(L, (void *)&REPL_KEY);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

/* What is printed; text that is no UTF-8 is repaired, and cut when there is too much. */
static void on_out(struct mc_tvm *v, const char *s, size_t n)
{
    struct mc_repl *r = (struct mc_repl *)v;
    size_t len;
    char *clean;

    if (n > OUT_MAX)
        n = OUT_MAX;
    len = mc_utf8_clean(s, n, NULL);
    clean = malloc(len + 1);
    if (!clean)
        return;
    mc_utf8_clean(s, n, clean);
    r->client.out(r->client.ctx, clean, len);
    free(clean);
}

struct pulled {
    lua_State *co;
    json_t *v;
    struct mc_err err;
};

static int pull(lua_State *L)
{
    struct pulled *p = lua_touserdata(L, 1);

    p->v = mc_json_pull(p->co, -1, &p->err);
    return 0;
}

/* What a chunk answered, as JSON. */
static int result_of(struct mc_task *t, json_t **out, struct mc_err *err)
{
    struct pulled p = {.co = t->co};
    int rc = mc_vm_protect(t->tvm->vm, pull, &p, err);

    if (rc == 0 && !p.v) {
        *err = p.err;
        rc = err->code;
    }
    *out = p.v;
    return rc;
}

static void on_ended(struct mc_task *t, int rc, const struct mc_err *err)
{
    struct mc_repl *r = t->user;
    struct mc_err why;
    json_t *result = NULL;
    bool closing;

    r->runs = false;
    atomic_store(&r->interrupt, false);
    if (rc == 0)
        rc = result_of(t, &result, &why);
    else
        why = *err;
    if (rc == MC_ECANCEL)
        mc_fail(&why, MC_ECANCEL, "interrupted");
    pthread_mutex_lock(&r->lock);
    closing = r->closing;
    pthread_mutex_unlock(&r->lock);
    if (closing)
        json_decref(result);
    else
        r->client.done(r->client.ctx, result, rc < 0 ? &why : NULL);
}

struct chunk {
    struct mc_repl *repl;
    char *text;
    size_t n;
    enum mc_repl_how how;
    int line;
    json_t *out;
};

static struct chunk take_text(struct mc_repl *r)
{
    struct chunk c = {.repl = r};

    pthread_mutex_lock(&r->lock);
    c.text = r->text;
    c.n = r->n;
    c.how = r->how;
    c.line = r->line;
    r->text = NULL;
    pthread_mutex_unlock(&r->lock);
    return c;
}

static int start(lua_State *L)
{
    static const char *const hows[] = {"shown", "raw", "json"};
    struct chunk *c = lua_touserdata(L, 1);

    push_repl(L, "eval");
    lua_pushlstring(L, c->text, c->n);
    lua_pushstring(L, hows[c->how]);
    lua_pushinteger(L, c->line);
    mc_task_init(&c->repl->task, &c->repl->tvm, L, 3);
    return 0;
}

static void on_eval(struct mc_bell *b)
{
    struct mc_repl *r = (struct mc_repl *)((char *)b - offsetof(struct mc_repl, eval));
    struct chunk c = take_text(r);
    struct mc_err err;
    int rc;

    if (!c.text)
        return;
    memset(&r->task, 0, sizeof r->task);
    r->task.ended = on_ended;
    r->task.user = r;
    r->runs = true;
    rc = r->tvm.vm->lost ? mc_fail(&err, MC_EBUDGET, "this session's VM was given up")
                         : mc_vm_protect(r->tvm.vm, start, &c, &err);
    free(c.text);
    if (rc == 0)
        return;
    r->runs = false;
    r->client.done(r->client.ctx, NULL, &err);
}

/* The hook interrupts a chunk that computes; one that waits is ended here. */
static void on_cancel(struct mc_bell *b)
{
    struct mc_repl *r = (struct mc_repl *)((char *)b - offsetof(struct mc_repl, cancel));

    if (r->runs) {
        mc_scope_interrupt(&r->scope, &r->task);
        mc_task_kill(&r->task);
    }
    atomic_store(&r->interrupt, false);
}

static int complete(lua_State *L)
{
    struct chunk *c = lua_touserdata(L, 1);
    struct mc_err err;

    push_repl(L, "complete");
    lua_pushlstring(L, c->text, c->n);
    lua_call(L, 1, 1);
    c->out = mc_json_pull(L, -1, &err);
    return 0;
}

static void on_complete(struct mc_bell *b)
{
    struct mc_repl *r = (struct mc_repl *)((char *)b -
                                           offsetof(struct mc_repl, complete));
    struct chunk c = take_text(r);

    if (c.text && !r->tvm.vm->lost)
        mc_vm_protect(r->tvm.vm, complete, &c, NULL);
    free(c.text);
    pthread_mutex_lock(&r->lock);
    r->names = c.out;
    r->has_names = true;
    pthread_cond_signal(&r->answered);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the session ------------------------------------------------------------------- */

static int begin(void *ctx, struct mc_err *err)
{
    static const struct mc_burst burst = {0, HARD_S * 1000000ll, LOSE_S * 1000000ll,
                                          NULL};
    struct mc_repl *r = ctx;
    struct mc_vm *vm = mc_vm_new(MC_ENV_REPL, 0, false, err);
    int rc;

    if (!vm)
        return err->code;
    /* what is typed computes in what the engine's threads leave; where it holds a lock that
     * they wait for, they leave all */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    rc = mc_tvm_init(&r->tvm, vm, r->loop, r->server, &burst);
    r->tvm.burst.interrupt = &r->interrupt;
    r->tvm.out = on_out;
    r->tvm.session = &r->scope;
    if (rc == 0)
        rc = mc_vm_protect(vm, set_up, r, err);
    if (rc < 0) {
        mc_tvm_fini(&r->tvm);
        mc_generation_unref(r->tvm.user);
    }
    return rc;
}

static void end(void *ctx)
{
    struct mc_repl *r = ctx;

    mc_scope_end(&r->scope);
    mc_tvm_fini(&r->tvm);
    mc_generation_unref(r->tvm.user);
}

static void free_repl(struct mc_repl *r)
{
    json_decref(r->names);
    free(r->text);
    pthread_cond_destroy(&r->answered);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static int repl_open(void *self, const struct mc_repl_client *c, struct mc_repl **out,
                     struct mc_err *err)
{
    struct mc_repl *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return mc_fail(err, MC_ENOMEM, "no memory for a session");
    r->server = self;
    r->client = *c;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->answered, NULL);
    rc = mc_loop_open("repl", begin, end, r, &r->loop, err);
    if (rc < 0) {
        free_repl(r);
        return rc;
    }
    mc_bell_init(&r->eval, r->loop, on_eval);
    mc_bell_init(&r->cancel, r->loop, on_cancel);
    mc_bell_init(&r->complete, r->loop, on_complete);
    *out = r;
    return 0;
}

static void set_text(struct mc_repl *r, const char *text, size_t n,
                     enum mc_repl_how how, int line)
{
    char *copy = malloc(n + 1);

    if (copy)
        memcpy(copy, text, n);
    pthread_mutex_lock(&r->lock);
    free(r->text);
    r->text = copy;
    r->n = n;
    r->how = how;
    r->line = line;
    pthread_mutex_unlock(&r->lock);
}

static void repl_eval(struct mc_repl *r, const char *text, size_t n,
                      enum mc_repl_how how, int line)
{
    mc_info("repl", "typed: %.*s", (int)(n < 400 ? n : 400), text);
    set_text(r, text, n, how, line);
    mc_bell_ring(&r->eval);
}

static void repl_cancel(struct mc_repl *r)
{
    atomic_store(&r->interrupt, true);
    mc_bell_ring(&r->cancel);
}

static int repl_complete(struct mc_repl *r, const char *text, json_t **out,
                         struct mc_err *err)
{
    set_text(r, text, strlen(text), MC_REPL_SHOWN, 0);
    mc_bell_ring(&r->complete);
    pthread_mutex_lock(&r->lock);
    while (!r->has_names)
        pthread_cond_wait(&r->answered, &r->lock);
    *out = r->names;
    r->names = NULL;
    r->has_names = false;
    pthread_mutex_unlock(&r->lock);
    return *out ? 0 : mc_fail(err, MC_EPOLICY, "no completion");
}

static void repl_close(struct mc_repl *r)
{
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_mutex_unlock(&r->lock);
    repl_cancel(r);
    mc_loop_close(r->loop);
    free_repl(r);
}

const struct mc_repl_ops mc_repl_ops = {repl_open, repl_eval, repl_cancel, repl_complete,
                                        repl_close};

/* edge.c - the edge threads, their VMs, and requests as tasks.
 *
 * OWNS threads, VMs and requests until both the response and the task are over.
 * THREAD: a worker's VM list is its loop's; `next` (a VM that waits to be switched to) is
 * under the worker's lock, a leaf; request() and gone() come from HTTP threads and ring.
 *
 * A request's life: request() makes the record and rings begin; on a loop the task starts;
 * it ends when the handler returns, fails, is killed because the client is gone, or is lost
 * with its VM. A stream that the pump writes may outlive the task; whichever is last calls
 * mc_edge_req_end. */
#include "lua/host/edge.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "lua/bind/bind.h"
#include "lua/bind/host.h"
#include "lua/bind/http.h"
#include "lua/bind/stream.h"
#include "lua/host/gate.h"

enum {
    VM_MEM = 256 << 20,
    ROUTES_MAX = 128,
    ROUTE_NAME = 128,
    EDGES_MAX = 64, /* of the setting edge_vms */
};

#ifdef MC_SANITIZE
static const struct mc_burst BURST = {200000, 1000000, 3000000, NULL};
#else
static const struct mc_burst BURST = {20000, 200000, 1000000, NULL};
#endif

/* A file's top level, init and tests. */
static const struct mc_burst LOAD = {0, MC_GATE_LOAD_US, MC_GATE_LOAD_US + 1000000, NULL};

static const char API_KEY; /* registry: what lua/mc/edge.lua returned */

struct edge_vm {
    struct mc_tvm tvm; /* first */
    struct worker *worker;
    struct mc_generation *gen;
    struct edge_vm *next; /* in the worker's list of old ones */
};

/* An edge thread; the last one takes no requests: its VM is the task VM, where mc.every
 * runs, of one process once and with time enough. */
struct worker {
    struct mc_edge *edge;
    bool tasks;
    struct mc_loop *loop;
    struct edge_vm *vm, *old;
    atomic_int n_req;
    struct mc_bell swap, quit;
    pthread_mutex_t lock;
    pthread_cond_t has_quit;
    struct edge_vm *next; /* under lock */
    bool quiet;           /* under lock: on_quit has run */
};

/* How many requests of a route run; only routes with a limit have one. A slot of none is
 * another route's when it is needed: names come and go with reloads. */
struct slot {
    char route[ROUTE_NAME];
    int n;
};

struct mc_edge {
    struct mc_server *server;
    pthread_mutex_t slots_lock; /* a leaf */
    struct slot slots[ROUTES_MAX]; /* from 1 */
    atomic_uint turn;
    atomic_bool stopped;
    int n_worker;  /* that are open */
    int n_serving; /* that take requests: the first */
    struct worker worker[];
};

/* ---- VMs ------------------------------------------------------------------------------ */

struct build {
    struct edge_vm *vm;
    lua_State *co; /* with the API's load() on its stack */
};

static void push_api(lua_State *L, const char *name);

static int set_up(lua_State *L)
{
    struct build *b = lua_touserdata(L, 1);

    mc_bind_host(L, b->vm->gen);
    mc_vm_push_module(L, "mc.edge");
    mc_bind_env(L, lua_gettop(L));
    lua_pop(L, 1);
    lua_pushlightuserdata(L, (void *)&API_KEY);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
    b->co = lua_newthread(L);
    lua_pushlightuserdata(L, b);
    lua_insert(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX); /* the build's key: until drop_loader */
    push_api(b->co, "load");
    return 0;
}

static int drop_loader(lua_State *L)
{
    lua_pushnil(L);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

static void push_api(lua_State *L, const char *name)
{
    lua_pushlightuserdata(L, (void *)&API_KEY);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
}

static void close_vm(struct edge_vm *v)
{
    if (!v)
        return;
    mc_tvm_fini(&v->tvm);
    mc_generation_unref(v->gen);
    free(v);
}

static void on_idle(struct mc_tvm *t)
{
    struct edge_vm *v = (struct edge_vm *)t, **at;

    if (v->worker->vm == v)
        return;
    for (at = &v->worker->old; *at != v; at = &(*at)->next)
        ;
    *at = v->next;
    close_vm(v);
}

static void on_lost(struct mc_tvm *t);

static int open_vm(struct worker *w, struct mc_generation *g, struct edge_vm **out,
                   struct mc_err *err)
{
    struct edge_vm *v = calloc(1, sizeof *v);
    struct build b = {.vm = v};
    struct mc_vm *vm;
    int rc;

    if (!v)
        return mc_fail(err, MC_ENOMEM, "no memory for an edge VM");
    v->worker = w;
    v->gen = mc_generation_ref(g);
    vm = mc_vm_new(MC_ENV_EDGE, VM_MEM, false, err);
    if (!vm) {
        mc_generation_unref(g);
        free(v);
        return err->code;
    }
    rc = mc_tvm_init(&v->tvm, vm, w->loop, w->edge->server, w->tasks ? &LOAD : &BURST);
    if (rc == 0)
        rc = mc_vm_protect(vm, set_up, &b, err);
    if (rc == 0)
        rc = mc_burst_resume(vm, b.co, 0, &LOAD, err);
    if (rc == 1)
        rc = mc_fail(err, MC_EPOLICY, "a file waits at its top level, in init or in tests");
    if (rc == 0)
        rc = mc_vm_protect(vm, drop_loader, &b, err);
    v->tvm.idle = on_idle;
    v->tvm.lost = on_lost;
    if (rc < 0) {
        close_vm(v);
        return rc;
    }
    *out = v;
    return 0;
}

static int start_timers(lua_State *L)
{
    push_api(L, "start");
    lua_call(L, 0, 0);
    return 0;
}

/* On the loop's thread: new requests go to v, which may be NULL. */
static void use_vm(struct worker *w, struct edge_vm *v)
{
    struct mc_err err;

    w->vm = v;
    if (w->tasks && v && mc_vm_protect(v->tvm.vm, start_timers, NULL, &err) < 0)
        mc_error("lua", "mc.every: %s", err.text);
}

/* The worker goes on with a fresh VM of the same files. */
static void on_lost(struct mc_tvm *t)
{
    struct edge_vm *v = (struct edge_vm *)t, *fresh = NULL, **at;
    struct worker *w = v->worker;
    struct mc_err err;

    if (w->vm == v) {
        if (open_vm(w, v->gen, &fresh, &err) < 0)
            mc_error("lua", "no new edge VM: %s", err.text);
        use_vm(w, fresh);
    } else {
        for (at = &w->old; *at != v; at = &(*at)->next)
            ;
        *at = v->next;
    }
    close_vm(v);
}

static void on_swap(struct mc_bell *b)
{
    struct worker *w = (struct worker *)((char *)b - offsetof(struct worker, swap));
    struct edge_vm *old = w->vm, *fresh;

    pthread_mutex_lock(&w->lock);
    fresh = w->next;
    w->next = NULL;
    pthread_mutex_unlock(&w->lock);
    if (!fresh)
        return;
    use_vm(w, fresh);
    if (old && old->tvm.n_front == 0) {
        close_vm(old);
    } else if (old) {
        old->next = w->old;
        w->old = old;
    }
}

int mc_edge_check(struct mc_edge *e, struct mc_generation *g, struct mc_err *err)
{
    struct edge_vm *v = NULL;
    int rc = open_vm(&e->worker[0], g, &v, err);

    close_vm(v);
    return rc;
}

int mc_edge_install(struct mc_edge *e, struct mc_generation *g, struct mc_err *err)
{
    struct edge_vm *fresh[EDGES_MAX + 1] = {NULL}, *unused;
    int i, rc = 0;

    for (i = 0; i < e->n_worker && rc == 0; i++)
        rc = open_vm(&e->worker[i], g, &fresh[i], err);
    if (rc < 0) {
        for (i = 0; i < e->n_worker; i++)
            close_vm(fresh[i]);
        return rc;
    }
    for (i = 0; i < e->n_worker; i++) {
        struct worker *w = &e->worker[i];

        pthread_mutex_lock(&w->lock);
        unused = w->next;
        w->next = fresh[i];
        pthread_mutex_unlock(&w->lock);
        close_vm(unused);
        mc_bell_ring(&w->swap);
    }
    return 0;
}

/* ---- a route's limits ------------------------------------------------------------------ */

static int take_slot(struct mc_edge *e, const char *route, int at_once, struct mc_err *err)
{
    int i, idle = ROUTES_MAX, rc;

    pthread_mutex_lock(&e->slots_lock);
    for (i = 1; i < ROUTES_MAX; i++) {
        if (strncmp(e->slots[i].route, route, ROUTE_NAME - 1) == 0)
            break;
        if (e->slots[i].n == 0)
            idle = i;
    }
    i = i < ROUTES_MAX ? i : idle;
    if (i == ROUTES_MAX)
        rc = mc_fail(err, MC_ELIMIT, "more than %d routes with a limit run", ROUTES_MAX - 1);
    else if (e->slots[i].n >= at_once)
        rc = mc_fail(err, MC_ELIMIT, "%s runs as often as it may at once (%d)", route, at_once);
    else
        rc = i;
    if (rc > 0) {
        snprintf(e->slots[i].route, ROUTE_NAME, "%s", route);
        e->slots[i].n++;
    }
    pthread_mutex_unlock(&e->slots_lock);
    return rc;
}

static void give_slot(struct mc_edge *e, int slot)
{
    pthread_mutex_lock(&e->slots_lock);
    e->slots[slot].n--;
    pthread_mutex_unlock(&e->slots_lock);
}

/* A handler whose time is over; sequences that stream have the time as their deadline. */
static void on_late(struct mc_timer *t)
{
    struct mc_edge_req *r = (struct mc_edge_req *)((char *)t -
                                                   offsetof(struct mc_edge_req, timer));
    struct mc_err err;

    if (!r->lives || r->stream)
        return;
    mc_fail(&err, MC_EDEADLINE, "the route's time is over");
    mc_http_fail(r, &err);
    mc_task_kill(&r->task);
}

int mc_edge_enter(struct mc_edge_req *r, const char *route, int at_once, double seconds,
                  struct mc_err *err)
{
    int slot = at_once > 0 ? take_slot(r->edge, route, at_once, err) : 0;

    if (slot < 0)
        return slot;
    r->slot = slot;
    if (seconds > 0)
        mc_timer_set(((struct worker *)r->task.user)->loop, &r->timer, mc_now() + seconds);
    return 0;
}

/* ---- requests ------------------------------------------------------------------------- */

void mc_edge_req_end(struct mc_edge_req *r)
{
    struct worker *w = r->task.user;

    mc_timer_unset(w->loop, &r->timer);
    if (r->slot)
        give_slot(r->edge, r->slot);
    if (r->begun)
        mc_res_end(r->req);
    mc_req_done(r->req); /* gone() is not called after this */
    mc_bell_still(&r->begin);
    mc_bell_still(&r->gone);
    atomic_fetch_sub(&w->n_req, 1);
    json_decref(r->body);
    free(r);
}

static void on_ended(struct mc_task *t, int rc, const struct mc_err *err)
{
    struct mc_edge_req *r = (struct mc_edge_req *)t;
    struct mc_err none;

    r->lives = false;
    if (rc == MC_ECANCEL && atomic_load(&r->edge->stopped)) {
        mc_fail(&none, MC_EDRAIN, "the server is shutting down");
        mc_http_fail(r, &none);
    } else if (rc < 0 && rc != MC_ECANCEL) {
        mc_warn("lua", "request %s, %s %s: %s\n%s", mc_req_id(r->req), mc_req_method(r->req),
                mc_req_path(r->req), err->text, t->tvm->vm->trace);
        mc_fail(&none, rc, "%s: the server's log says more about request %s",
                mc_code_text(rc), mc_req_id(r->req));
        mc_http_fail(r, &none);
    } else if (rc == 0 && !r->stream && !mc_res_started(r->req)) {
        mc_fail(&none, MC_EPOLICY, "the route's handler gave no answer");
        mc_http_fail(r, &none);
    }
    if (!r->stream)
        mc_edge_req_end(r);
}

static int start(lua_State *L)
{
    struct mc_edge_req *r = lua_touserdata(L, 1);

    push_api(L, "handle");
    mc_http_push(L, r);
    if (r->denied.code)
        mc_bind_push_err(L, &r->denied);
    else
        lua_pushnil(L);
    mc_task_init(&r->task, mc_tvm_of(L), L, 3);
    r->lives = true;
    return 0;
}

static void on_begin(struct mc_bell *b)
{
    struct mc_edge_req *r = (struct mc_edge_req *)((char *)b -
                                                   offsetof(struct mc_edge_req, begin));
    struct worker *w = r->task.user;
    char number[16];
    struct mc_err err;
    int rc;

    if (w->vm) {
        snprintf(number, sizeof number, "%u", w->vm->gen->number);
        mc_res_header(r->req, "x-mascon-generation", number);
    }
    r->task.ended = on_ended;
    r->timer.fire = on_late;
    if (atomic_load(&r->edge->stopped))
        rc = mc_fail(&err, MC_EDRAIN, "the server is shutting down");
    else if (w->vm)
        rc = mc_vm_protect(w->vm->tvm.vm, start, r, &err);
    else
        rc = mc_fail(&err, MC_EPOLICY, "no routes could be loaded");
    if (rc == 0)
        return;
    mc_scope_end(&r->task.scope);
    mc_http_fail(r, &err);
    mc_edge_req_end(r);
}

static void on_gone(struct mc_bell *b)
{
    struct mc_edge_req *r = (struct mc_edge_req *)((char *)b -
                                                   offsetof(struct mc_edge_req, gone));

    r->left = true;
    mc_debug("http", "request %s: the client is gone", mc_req_id(r->req));
    if (r->stream)
        mc_http_stream_gone(r->stream, r->req);
    else if (r->lives)
        mc_task_kill(&r->task);
}

/* One that has nothing to do, else the one with the fewest requests. */
static struct worker *choose(struct mc_edge *e)
{
    unsigned first = atomic_fetch_add(&e->turn, 1);
    struct worker *best = NULL;
    int i;

    for (i = 0; i < e->n_serving; i++) {
        struct worker *w = &e->worker[(first + (unsigned)i) % (unsigned)e->n_serving];

        if (!mc_loop_busy(w->loop))
            return w;
        if (!best || atomic_load(&w->n_req) < atomic_load(&best->n_req))
            best = w;
    }
    return best;
}

static int request(void *self, struct mc_req *req, struct mc_err *err)
{
    struct mc_edge *e = self;
    struct mc_edge_req *r = calloc(1, sizeof *r);
    struct worker *w;

    if (!r)
        return mc_fail(err, MC_ENOMEM, "no memory for a request");
    w = choose(e);
    r->edge = e;
    r->req = req;
    r->task.user = w;
    if (e->server->keys)
        mc_keys_check(e->server->keys, mc_req_header(req, "authorization"),
                      mc_req_header(req, "x-api-key"), &r->tenant, &r->denied);
    mc_req_set_tenant(req, mc_keys_tenant(e->server->keys, r->tenant));
    mc_bell_init(&r->begin, w->loop, on_begin);
    mc_bell_init(&r->gone, w->loop, on_gone);
    mc_req_set_user(req, r);
    atomic_fetch_add(&w->n_req, 1);
    mc_bell_ring(&r->begin);
    return 0;
}

static void gone(void *self, struct mc_req *req)
{
    struct mc_edge_req *r = mc_req_user(req);

    (void)self;
    mc_bell_ring(&r->gone);
}

const struct mc_edge_ops mc_edge_ops = {request, gone};

/* ---- stopping --------------------------------------------------------------------------- */

static void kill_idle(struct edge_vm *v)
{
    struct mc_task *t, *next;

    for (t = v ? v->tvm.first : NULL; t; t = next) {
        next = t->next;
        if (t->ended != on_ended || !((struct mc_edge_req *)t)->stream)
            mc_task_kill(t);
    }
}

static void on_quit(struct mc_bell *b)
{
    struct worker *w = (struct worker *)((char *)b - offsetof(struct worker, quit));
    struct edge_vm *v, *next;

    for (v = w->old; v; v = next) {
        next = v->next; /* one that is idle now goes */
        kill_idle(v);
    }
    kill_idle(w->vm);
    pthread_mutex_lock(&w->lock);
    w->quiet = true;
    pthread_cond_signal(&w->has_quit);
    pthread_mutex_unlock(&w->lock);
}

void mc_edge_stop(struct mc_edge *e)
{
    int i;

    atomic_store(&e->stopped, true);
    for (i = 0; i < e->n_worker; i++) {
        struct worker *w = &e->worker[i];

        mc_bell_ring(&w->quit);
        pthread_mutex_lock(&w->lock);
        while (!w->quiet)
            pthread_cond_wait(&w->has_quit, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
}

/* ---- opening and closing -------------------------------------------------------------- */

/* On the loop's thread, at its end. */
static void close_vms(void *ctx)
{
    struct worker *w = ctx;
    struct edge_vm *v;

    close_vm(w->next);
    while ((v = w->old)) {
        w->old = v->next;
        close_vm(v);
    }
    close_vm(w->vm);
    w->vm = w->next = NULL;
}

int mc_edge_open(struct mc_server *s, int threads, struct mc_edge **out, struct mc_err *err)
{
    struct mc_edge *e = calloc(1, sizeof *e + (size_t)(threads + 1) * sizeof *e->worker);
    char name[16];
    int rc = 0;

    assert(threads <= EDGES_MAX);
    if (!e)
        return mc_fail(err, MC_ENOMEM, "no memory for the edge");
    e->server = s;
    pthread_mutex_init(&e->slots_lock, NULL);
    e->n_serving = threads;
    while (e->n_worker <= threads && rc == 0) {
        struct worker *w = &e->worker[e->n_worker];

        w->edge = e;
        w->tasks = e->n_worker == threads;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->has_quit, NULL);
        snprintf(name, sizeof name, w->tasks ? "tasks" : "edge %d", e->n_worker);
        rc = mc_loop_open(name, NULL, close_vms, w, &w->loop, err);
        mc_bell_init(&w->swap, w->loop, on_swap);
        mc_bell_init(&w->quit, w->loop, on_quit);
        e->n_worker += rc == 0;
    }
    if (rc < 0) {
        mc_edge_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void mc_edge_close(struct mc_edge *e)
{
    int i;

    if (!e)
        return;
    for (i = 0; i < e->n_worker; i++) {
        mc_loop_close(e->worker[i].loop);
        pthread_cond_destroy(&e->worker[i].has_quit);
        pthread_mutex_destroy(&e->worker[i].lock);
    }
    pthread_mutex_destroy(&e->slots_lock);
    free(e);
}

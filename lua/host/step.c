/* step.c - building a step VM and calling its hooks through the gate.
 *
 * Owns what struct mc_stepvm holds. THREAD: one at a time (step.h).
 * Always true: outside a hook call io.epoch and io.picking are 0, so that no handle that a
 * script kept is valid; what a failed hook wrote stays in `shown`. */
#include "lua/host/step.h"

#include <assert.h>
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lua/host/gate.h"
#include "lua/host/leaf.h"
#include "lua/host/shown.h"

const char *const mc_hook_names[MC_N_HOOK] = {"plan", "evict", "admit", "chain", "pick",
                                            "keep"};

void mc_step_quiet(void *ctx, int level, const char *text)
{
    (void)ctx, (void)level, (void)text;
}

/* ---- opening ----------------------------------------------------------------------- */

/* Runs inside the gate: everything that scripts do at load. */
static int start(lua_State *L)
{
    struct mc_stepvm *s = lua_touserdata(L, lua_upvalueindex(1));

    mc_vm_push_module(L, "mc.policy");
    lua_getfield(L, -1, "build");
    lua_call(L, 0, 1);
    for (int h = 0; h < MC_N_HOOK; h++) {
        lua_getfield(L, -1, mc_hook_names[h]);
        if (lua_isnil(L, -1))
            lua_pop(L, 1);
        else
            s->ref[h] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    return 0;
}

/* Trusted modules and the environment; leaves registry references. */
static int set_up(lua_State *L)
{
    struct mc_stepvm *s = lua_touserdata(L, 1);

    mc_leaf_push_host(L, s);
    mc_vm_set_module(L, "mc.host");
    lua_newtable(L);
    mc_vm_push_module(L, "mc.mc");
    lua_setfield(L, -2, "mc");
    mc_env_push(L, MC_ENV_STEP);
    s->env = luaL_ref(L, LUA_REGISTRYINDEX);
    mc_vm_push_module(L, "mc.policy"); /* loads it outside the budget */
    lua_pushlightuserdata(L, s);
    lua_pushcclosure(L, start, 1);
    s->start = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int mc_stepvm_open(const struct mc_step_opts *o, struct mc_generation *g,
                   struct mc_stepvm **out, char *at, size_t n, struct mc_err *err)
{
    struct mc_stepvm *s = calloc(1, sizeof *s);
    int rc = MC_ENOMEM;

    *out = NULL;
    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory for a step VM");
    s->opts = *o;
    s->gen = mc_generation_ref(g);
    for (int h = 0; h < MC_N_HOOK; h++)
        s->ref[h] = LUA_NOREF;
    s->shown = mc_shown_new();
    if (!s->shown) {
        mc_fail(err, MC_ENOMEM, "no memory for what scripts see");
        goto fail;
    }
    s->vm = mc_vm_new(MC_ENV_STEP, o->mem, !o->no_jit && !o->follow, err);
    if (!s->vm)
        goto fail;
    s->shown->io.n_vocab = o->sets->vocab.n;
    s->shown->io.now = now();
    rc = mc_vm_protect(s->vm, set_up, s, err);
    if (rc < 0)
        goto fail;
    mc_vm_compile(s->vm);
    if (o->follow)
        mc_vm_follow(s->vm);
    s->shown->io.loading = 1;
    lua_rawgeti(s->vm->L, LUA_REGISTRYINDEX, s->start);
    rc = mc_gate_call(s->vm, 0, 0, o->load_us ? o->load_us : MC_GATE_LOAD_US, err);
    s->shown->io.loading = 0;
    if (rc < 0)
        goto fail;
    mc_generation_seal(g);
    *out = s;
    return 0;
fail:
    if (at && n > 0)
        snprintf(at, n, "%s", s->vm ? s->vm->at : "");
    mc_stepvm_close(s);
    return rc;
}

void mc_stepvm_close(struct mc_stepvm *s)
{
    if (!s)
        return;
    mc_vm_close(s->vm);
    mc_shown_free(s->shown);
    for (int i = 0; i < MC_N_WHY; i++)
        free(s->why[i]);
    mc_generation_unref(s->gen);
    free(s);
}

bool mc_stepvm_has(const struct mc_stepvm *s, enum mc_hook h)
{
    return s->ref[h] != LUA_NOREF;
}

/* ---- hooks ------------------------------------------------------------------------- */

static int call(struct mc_stepvm *s, enum mc_hook h, struct mc_err *err)
{
    bool picks = h == MC_HOOK_CHAIN || h == MC_HOOK_PICK;
    struct mc_hook_io *io = &s->shown->io;
    int rc;

    assert(!s->vm->lost && mc_stepvm_has(s, h));
    s->last = h;
    s->epoch += s->epoch == UINT32_MAX ? 2 : 1; /* never 0 */
    io->epoch = picks ? 0 : s->epoch;
    io->picking = picks;
    io->n_random = 0;
    io->n_block = h == MC_HOOK_KEEP ? io->n_block : 0;
    s->shown->n_list = 0;
    lua_rawgeti(s->vm->L, LUA_REGISTRYINDEX, s->ref[h]);
    rc = mc_gate_call(s->vm, 0, 0, s->opts.hook_us ? s->opts.hook_us : MC_GATE_HOOK_US,
                      err);
    io->epoch = 0;
    io->picking = 0;
    return rc;
}

/* plan and evict. */
static int call_plan(struct mc_stepvm *s, enum mc_hook h, struct mc_step_view *v,
                     struct mc_plan *p, double *state, struct mc_err *err)
{
    int rc = mc_shown_view(s->shown, v, err);

    if (rc < 0)
        return rc;
    mc_shown_plan(s->shown, p);
    s->shown->io.now = v->now;
    memcpy(s->shown->io.state, state, sizeof s->shown->io.state);
    rc = call(s, h, err);
    if (rc < 0)
        return rc;
    memcpy(state, s->shown->io.state, sizeof s->shown->io.state);
    mc_shown_users(s->shown, v);
    mc_shown_items(s->shown, p);
    return 0;
}

int mc_stepvm_plan(struct mc_stepvm *s, struct mc_step_view *v, struct mc_plan *p,
                   double *state, struct mc_err *err)
{
    return call_plan(s, MC_HOOK_PLAN, v, p, state, err);
}

int mc_stepvm_evict(struct mc_stepvm *s, struct mc_step_view *v, int32_t need,
                    struct mc_plan *p, double *state, struct mc_err *err)
{
    s->shown->io.need = need;
    return call_plan(s, MC_HOOK_EVICT, v, p, state, err);
}

int mc_stepvm_admit(struct mc_stepvm *s, const struct mc_row *row, double *state,
                    int *answer, struct mc_err *err)
{
    int rc;

    mc_shown_row(s->shown, row);
    memcpy(s->shown->io.state, state, sizeof s->shown->io.state);
    s->shown->io.answer = 0;
    rc = call(s, MC_HOOK_ADMIT, err);
    if (rc < 0)
        return rc;
    memcpy(state, s->shown->io.state, sizeof s->shown->io.state);
    *answer = s->shown->io.answer;
    return 0;
}

int mc_stepvm_chain(struct mc_stepvm *s, struct mc_pick_seq *seq,
                    const struct mc_params *want, struct mc_params *out,
                    struct mc_err *err)
{
    int rc;

    s->shown->seq = *seq;
    s->shown->seq.want = *want;
    s->shown->params = *want;
    rc = call(s, MC_HOOK_CHAIN, err);
    if (rc < 0)
        return rc;
    *out = s->shown->params;
    seq->want = *want;
    memcpy(seq->state, s->shown->seq.state, sizeof seq->state);
    return 0;
}

int mc_stepvm_pick(struct mc_stepvm *s, const struct mc_cands *c, struct mc_pick_seq *seq,
                   int32_t *id, struct mc_err *err)
{
    int rc;

    s->shown->cands = *c;
    s->shown->seq = *seq;
    if (c->n < 0 || c->n > MC_CAND_CAP || seq->n_tail < 0 || seq->n_tail > 32)
        return mc_fail(err, MC_EARG, "%d candidates, tail of %d", c->n, seq->n_tail);
    s->shown->io.answer = -1;
    rc = call(s, MC_HOOK_PICK, err);
    if (rc < 0)
        return rc;
    memcpy(seq->state, s->shown->seq.state, sizeof seq->state);
    *id = s->shown->io.answer;
    return 0;
}

int mc_stepvm_keep(struct mc_stepvm *s, struct mc_block *block, int32_t n,
                   struct mc_err *err)
{
    int rc;

    assert(n > 0 && n <= MC_KEEP_CAP);
    memcpy(s->shown->blocks, block, (size_t)n * sizeof *block);
    s->shown->io.n_block = n;
    rc = call(s, MC_HOOK_KEEP, err);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < n; i++)
        block[i].score = s->shown->blocks[i].score;
    return 0;
}

int mc_stepvm_replay(struct mc_stepvm *s, const struct mc_stepvm *from,
                     struct mc_err *err)
{
    mc_shown_again(s->shown, from->shown);
    memcpy(s->shown->io.state, from->shown->io.state, sizeof s->shown->io.state);
    return call(s, from->last, err);
}

/* render.c - the VM of one chat template. OWNS it. THREAD: one at a time. */
#include "lua/host/render.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lauxlib.h>

#include "lua/bind/bind.h"
#include "lua/bind/json.h"
#include "lua/host/vm.h"

enum { VM_MEM = 256 << 20 };

struct mc_render {
    struct mc_vm *vm;
    double now;
};

struct call {
    struct mc_render *r;
    const char *text, *bos, *eos;
    size_t n;
    const json_t *input;
    bool asis;
    json_t *pieces;
    struct mc_err err;
};

static int l_clock(lua_State *L)
{
    double now = lua_tonumber(L, lua_upvalueindex(1));

    lua_pushnumber(L, now >= 0 ? now : (double)time(NULL));
    return 1;
}

static int open_render(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    struct call *c = lua_touserdata(L, 1);

    mc_vm_push_module(L, "mc.data");
    mc_bind_json_init(L);
    mc_bind_table(L, none);
    mc_bind_json(L);
    lua_setfield(L, -2, "json");
    mc_vm_set_module(L, "mc.host");
    mc_vm_push_module(L, "mc.render");
    lua_getfield(L, -1, "open");
    lua_pushlstring(L, c->text, c->n);
    lua_pushstring(L, c->bos);
    lua_pushstring(L, c->eos);
    lua_pushnumber(L, c->r->now);
    lua_pushcclosure(L, l_clock, 1);
    lua_call(L, 4, 0);
    return 0;
}

static int run_render(lua_State *L)
{
    struct call *c = lua_touserdata(L, 1);

    mc_vm_push_module(L, "mc.render");
    lua_getfield(L, -1, "render");
    mc_json_push(L, c->input, MC_JSON_EXACT);
    lua_pushboolean(L, c->asis);
    lua_call(L, 2, 1);
    c->pieces = mc_json_pull(L, -1, &c->err);
    return 0;
}

int mc_render_open(const char *text, size_t n, const char *bos, const char *eos,
                   double now, struct mc_render **out, struct mc_err *err)
{
    struct mc_render *r = calloc(1, sizeof *r);
    struct call c = {.r = r, .text = text, .n = n, .bos = bos, .eos = eos};
    int rc;

    if (!r)
        return mc_fail(err, MC_ENOMEM, "no memory for a chat template");
    r->now = now;
    r->vm = mc_vm_new(MC_ENV_EDGE, VM_MEM, false, err);
    rc = r->vm ? mc_vm_protect(r->vm, open_render, &c, err) : err->code;
    if (rc < 0) {
        mc_render_close(r);
        return mc_err_while(err, "reading the chat template");
    }
    *out = r;
    return 0;
}

int mc_render_run(struct mc_render *r, const json_t *input, bool asis, json_t **pieces,
                  struct mc_err *err)
{
    struct call c = {.r = r, .input = input, .asis = asis};
    int rc = mc_vm_protect(r->vm, run_render, &c, err);

    if (rc < 0)
        return mc_err_while(err, "rendering the conversation");
    if (!c.pieces) {
        *err = c.err;
        return err->code;
    }
    *pieces = c.pieces;
    return 0;
}

void mc_render_close(struct mc_render *r)
{
    if (!r)
        return;
    mc_vm_close(r->vm);
    free(r);
}

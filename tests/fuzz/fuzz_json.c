/* fuzz_json.c - any bytes as a request's JSON: into a Lua VM and back gives the same value. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>

#include "core/base/json.h"
#include "lua/bind/json.h"
#include "lua/host/vm.h"

int mc_fuzz(const uint8_t *data, size_t n);

struct input {
    const char *text;
    size_t n;
};

static int set_up(lua_State *L)
{
    mc_vm_push_module(L, "mc.data");
    mc_bind_json_init(L);
    return 0;
}

static int round_trip(lua_State *L)
{
    struct input *in = lua_touserdata(L, 1);
    struct mc_err err;
    json_t *was, *is;

    if (mc_json_push_text(L, in->text, in->n, MC_JSON_EXACT, &err) < 0)
        return 0;
    is = mc_json_pull(L, -1, &err);
    was = mc_json_read(in->text, in->n, &err);
    if (!is || !was || !json_equal(is, was))
        abort();
    json_decref(is);
    json_decref(was);
    return 0;
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    static struct mc_vm *vm;
    static int uses;
    struct input in = {(const char *)data, n};

    if (uses++ % 4096 == 0) { /* a fresh one now and then: keys are kept by nobody */
        mc_vm_close(vm);
        vm = mc_vm_new(MC_ENV_EDGE, 0, false, NULL);
        if (!vm || mc_vm_protect(vm, set_up, NULL, NULL) < 0)
            abort();
    }
    mc_vm_protect(vm, round_trip, &in, NULL);
    return 0;
}

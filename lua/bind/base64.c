/* base64.c - host.base64: a tensor in host memory as clients take it. OWNS nothing.
 * THREAD: the VM's. */
#include "lua/bind/base64.h"

#include <lauxlib.h>
#include <nettle/base64.h>

#include "lua/bind/tensor.h"

/* base64(f32 tensor in host memory, its copy awaited) -> its numbers, little-endian as this
 * machine is */
static int l_base64(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    size_t n = (size_t)mc_tensor_count(t) * sizeof(float);
    size_t n_text = BASE64_ENCODE_RAW_LENGTH(n);
    char *text = lua_newuserdata(L, n_text);

    base64_encode_raw(text, n, t->v.p);
    lua_pushlstring(L, text, n_text);
    return 1;
}

void mc_bind_base64(lua_State *L)
{
    lua_pushcfunction(L, l_base64);
}

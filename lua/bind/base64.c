/* base64.c - host.base64: a tensor in host memory as clients take it. OWNS nothing.
 * THREAD: the VM's. */
#include "lua/bind/base64.h"

#include <lauxlib.h>

#include "lua/bind/tensor.h"

static const char DIGITS[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* The bytes of x, least first. */
static void put_f32(float x, unsigned char out[4])
{
    union {
        float f;
        unsigned u;
    } v = {x};

    for (int i = 0; i < 4; i++)
        out[i] = (unsigned char)(v.u >> 8 * i);
}

static void add_three(luaL_Buffer *b, const unsigned char *in, int n)
{
    unsigned v = (unsigned)in[0] << 16 | (unsigned)(n > 1 ? in[1] : 0) << 8 |
                 (unsigned)(n > 2 ? in[2] : 0);

    luaL_addchar(b, DIGITS[v >> 18]);
    luaL_addchar(b, DIGITS[v >> 12 & 63]);
    luaL_addchar(b, n > 1 ? DIGITS[v >> 6 & 63] : '=');
    luaL_addchar(b, n > 2 ? DIGITS[v & 63] : '=');
}

/* base64(f32 tensor in host memory, its copy awaited) -> its numbers, little-endian */
static int l_base64(lua_State *L)
{
    const struct mc_tensor *t = mc_tensor_check(L, 1);
    int64_t n = mc_tensor_count(t);
    unsigned char left[8];
    int n_left = 0;
    luaL_Buffer b;

    luaL_buffinit(L, &b);
    for (int64_t i = 0; i < n; i++) {
        put_f32(((const float *)t->v.p)[i], left + n_left);
        n_left += 4;
        while (n_left >= 3) {
            add_three(&b, left, 3);
            n_left -= 3;
            for (int k = 0; k < n_left; k++)
                left[k] = left[k + 3];
        }
    }
    if (n_left > 0)
        add_three(&b, left, n_left);
    luaL_pushresult(&b);
    return 1;
}

void mc_bind_base64(lua_State *L)
{
    lua_pushcfunction(L, l_base64);
}

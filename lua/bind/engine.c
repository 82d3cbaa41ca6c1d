/* engine.c - the verbs and the model's texts for Lua. OWNS nothing. THREAD: the VM's. */
#include "lua/bind/engine.h"

#include "core/base/utf8.h"
#include "core/serve/admin.h"
#include "lua/bind/bind.h"
#include "lua/bind/json.h"
#include "lua/host/task.h"

enum { ARGS_MAX = 5 };

/* verb(name, ...) -> what the verb answers, in plain tables; nil, error */
static int l_verb(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    int n = lua_gettop(L), i;
    json_t *args, *out = NULL;
    struct mc_err err;
    const char *s;
    size_t len;
    int rc;

    luaL_argcheck(L, n <= ARGS_MAX, n, "too many arguments");
    for (i = 2; i <= n; i++) {
        if (lua_isnil(L, i))
            continue;
        s = luaL_checklstring(L, i, &len); /* numbers become text here, where it may raise */
        luaL_argcheck(L, mc_utf8_valid(s, len), i, "not valid UTF-8");
    }
    args = json_array();
    for (i = 2; i <= n; i++)
        if (!lua_isnil(L, i))
            json_array_append_new(args, json_string(lua_tostring(L, i)));
    rc = mc_verb_run(mc_tvm_of(L)->server, name, args, &out, &err);
    json_decref(args);
    if (rc < 0)
        return mc_bind_fail(L, &err);
    mc_json_push_new(L, out, MC_JSON_PLAIN);
    return 1;
}

/* The table of verbs, as rows {name, lua, repl}. */
static void push_verbs(lua_State *L)
{
    int n = 0;

    lua_newtable(L);
    for (const struct mc_verb *v = mc_verbs; v->name; v++) {
        if (!v->lua)
            continue;
        lua_createtable(L, 0, 3);
        lua_pushstring(L, v->name);
        lua_setfield(L, -2, "name");
        lua_pushstring(L, v->lua);
        lua_setfield(L, -2, "lua");
        lua_pushboolean(L, (v->flags & MC_VERB_REPL) != 0);
        lua_setfield(L, -2, "repl");
        lua_rawseti(L, -2, ++n);
    }
}

/* template([model]) -> its chat template or nil; its BOS and EOS tokens' texts. nil, error */
static int l_template(lua_State *L)
{
    const struct mc_served *m;
    const struct mc_tok *tok;
    int32_t ids[2];
    const char *s;
    size_t n;
    bool special;
    int i;

    m = mc_bind_model(L, 1);
    if (!m)
        return 2;
    tok = mc_engine_tok(m->engine);
    ids[0] = mc_tok_bos(tok);
    ids[1] = mc_tok_eos(tok);
    s = mc_tok_chat_template(tok, &n);
    if (!s)
        return 0;
    lua_pushlstring(L, s, n);
    for (i = 0; i < 2; i++) {
        s = mc_tok_piece(tok, ids[i], &n, &special);
        lua_pushlstring(L, s, n);
    }
    return 3;
}

void mc_bind_engine(lua_State *L)
{
    static const luaL_Reg fns[] = {{"verb", l_verb}, {"template", l_template}, {NULL, NULL}};

    mc_bind_table(L, fns);
    push_verbs(L);
    lua_setfield(L, -2, "verbs");
}

/* test_reference.c - what step VMs show to scripts and what the reference says of it:
 * each field and method has its entry, each entry its field or method. */
#include "tests/c/test.h"

#include <lauxlib.h>

#include "lua/host/embed.h"
#include "tests/c/stepvm_util.h"

/* Names that the reference leaves out on purpose: room for what is not built yet. */
static const char chunk[] =
    "local names, docs, hidden = ...\n"
    "local bad = {}\n"
    "for kind, have in pairs(names) do\n"
    "  local said = {}\n"
    "  for _, e in ipairs(docs) do\n"
    "    if e.name == 'mc.' .. kind then\n"
    "      for _, f in ipairs(e.fields) do said[f.name] = true end\n"
    "    end\n"
    "    local method = e.name:match('^' .. kind .. ':(.*)$')\n"
    "    if method then said[method] = true end\n"
    "  end\n"
    "  for k in pairs(have) do\n"
    "    if not said[k] and not hidden:find(' ' .. kind .. '.' .. k .. ' ', 1, true) "
    "then\n"
    "      bad[#bad + 1] = kind .. '.' .. k .. ' has no entry'\n"
    "    end\n"
    "  end\n"
    "  for k in pairs(said) do\n"
    "    if not have[k] then bad[#bad + 1] = kind .. '.' .. k .. ' is only in the "
    "reference' end\n"
    "  end\n"
    "end\n"
    "table.sort(bad)\n"
    "return table.concat(bad, '\\n')\n";

/* Fields of the block without a meaning yet: drafts and swapping are not built. */
static const char hidden[] =
    " Row.n_draft Row.n_draft_max Row.accept Row.us_swap Row.us_redo Row.p_host"
    " View.draft_cap View.swap_bytes_us View.swap_queue_us View.p_host_free View.p_free"
    " View.p_evict View.p_total View.n_lane View.n_tenant "
    " Lane.n_wait Lane.n_run Tenant.n_wait Tenant.n_run ";

static void push_docs(lua_State *L)
{
    const struct mc_embed *e = mc_embedded;

    while (strcmp(e->path, "lua/mc/meta/step.lua") != 0)
        e++;
    mc_vm_push_module(L, "mc.doc");
    lua_getfield(L, -1, "read");
    lua_pushlstring(L, e->text, e->n);
    lua_call(L, 1, 1);
}

static int check(lua_State *L)
{
    static const char *const modules[] = {"mc.step", "mc.pick", "mc.cache"};
    const char *bad;

    for (int i = 0; i < 3; i++) {
        assert_int_equal(luaL_loadstring(L, chunk), 0);
        mc_vm_push_module(L, modules[i]);
        lua_getfield(L, -1, "names");
        lua_call(L, 0, 1);
        lua_remove(L, -2);
        push_docs(L);
        lua_remove(L, -2);
        lua_pushstring(L, hidden);
        lua_call(L, 3, 1);
        bad = lua_tostring(L, -1);
        if (*bad)
            fail_msg("%s:\n%s", modules[i], bad);
    }
    return 0;
}

static void reference_has_what_scripts_see(void **unused)
{
    struct mc_stepvm *s = open_plan("", "");
    struct mc_err err = {0};

    (void)unused;
    assert_ok(mc_vm_protect(s->vm, check, NULL, &err), err);
    mc_stepvm_close(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(reference_has_what_scripts_see),
};
MC_TEST_MAIN(tests)

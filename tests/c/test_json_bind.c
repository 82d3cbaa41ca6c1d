/* test_json_bind.c - JSON to Lua and back: order, arrays, numbers, null, what is refused. */
#include "tests/c/test.h"

#include <lauxlib.h>
#include <string.h>

#include "lua/bind/bind.h"
#include "lua/bind/json.h"
#include "lua/host/gate.h"
#include "lua/host/vm.h"

/* Globals of a trusted chunk: json, null, eq (raises unless equal). */
static int set_up(lua_State *L)
{
    mc_vm_push_module(L, "mc.data");
    mc_bind_json_init(L);
    mc_bind_json(L);
    lua_setglobal(L, "json");
    return luaL_dostring(L,
                         "null = json.null\n"
                         "function eq(a, b) if a ~= b then error(tostring(a) .. ' ~= ' .. "
                         "tostring(b), 2) end end\n"
                         "function again(s) return (json.encode(json.decode(s, true))) end\n"
                         "function why(s) local v, e = json.decode(s) eq(v, nil) "
                         "return e.code .. ': ' .. tostring(e) end\n");
}

struct code {
    const char *text;
    size_t n;
};

static int run_code(lua_State *L)
{
    struct code *c = lua_touserdata(L, 1);

    if (luaL_loadbuffer(L, c->text, c->n, "=test"))
        return lua_error(L);
    lua_call(L, 0, 0);
    return 0;
}

static void run(const char *text)
{
    struct mc_err err = {0};
    struct mc_vm *vm = mc_vm_new(MC_ENV_EDGE, 0, false, &err);
    struct code c = {text, strlen(text)};

    assert_non_null(vm);
    assert_ok(mc_vm_protect(vm, set_up, NULL, &err), err);
    assert_ok(mc_vm_protect(vm, run_code, &c, &err), err);
    mc_vm_close(vm);
}

static void json_keeps_order_arrays_and_null(void **state)
{
    (void)state;
    run("eq(again '{\"z\":1,\"a\":{\"y\":[],\"b\":{}},\"m\":null}', "
        "'{\"z\":1,\"a\":{\"y\":[],\"b\":{}},\"m\":null}')\n"
        "local v = json.decode '{\"z\":1,\"a\":[null,false]}'\n"
        "eq(v.z, 1) eq(#v.a, 2) eq(v.a[1], null) eq(v.a[2], false)\n"
        "eq(table.concat(json.keys(v), ' '), 'z a')\n"
        "eq(again '[]', '[]') eq(again '{}', '{}') eq(again '\"x\"', '\"x\"')\n"
        "eq(again 'null', 'null')");
}

static void json_sorts_what_scripts_make(void **state)
{
    (void)state;
    run("eq(json.encode { b = 1, a = { 3, 2 }, c = 'x' }, '{\"a\":[3,2],\"b\":1,\"c\":\"x\"}')\n"
        "eq(json.encode {}, '{}') eq(json.encode(json.array {}), '[]')\n"
        "eq(json.encode { 1, { x = null } }, '[1,{\"x\":null}]')\n"
        "local v = json.decode '{\"z\":1}'\n"
        "v.a = 2 eq(json.encode(v), '{\"z\":1,\"a\":2}')\n"
        "v.z = nil eq(json.encode(v), '{\"a\":2}')");
}

static void json_keeps_numbers_exact(void **state)
{
    (void)state;
    run("for _, s in ipairs { '9007199254740993', '-9223372036854775808', '1.0', '0.1', "
        "'9223372036854775807', '-0.5', '9007199254740992', '1e300' } do\n"
        "  local t = again(s)\n"
        "  if s == '0.1' then eq(tonumber(t), 0.1) elseif s == '1e300' then "
        "eq(tonumber(t), 1e300) else eq(t, s) end\n"
        "end\n"
        "eq(json.decode '1.0', 1) eq(json.decode('[1.0]', true)[1].value, 1)\n"
        "eq(tostring(json.decode '9007199254740993'), '9007199254740993')");
}

static void json_keeps_nul_and_refuses_lone_surrogates(void **state)
{
    (void)state;
    run("eq(json.decode '\"a\\\\u0000b\"', 'a\\0b')\n"
        "eq(again '\"a\\\\u0000b\"', '\"a\\\\u0000b\"')\n"
        "why '\"\\\\ud800\"' why '\"\\\\ud800x\"' why '\"\\\\udc00\"'\n"
        "eq(json.decode '\"\\\\ud83d\\\\ude00\"', '\\xf0\\x9f\\x98\\x80')");
}

static void json_refuses_malformed_text(void **state)
{
    (void)state;
    run("for _, s in ipairs { '', ' ', '{', '[1,]', '{\"a\":1,}', 'nul', '1 2', "
        "'{\"a\":1 \"b\"}', "
        "'NaN', 'Infinity', '1e999', '\\xff\\xfe', '\"\\xff\"', '\"\\xed\\xa0\\x80\"', "
        "'\\xef\\xbb\\xbf{}', \"{'a':1}\", '[1', '123456789012345678901234567890' } do\n"
        "  local e = why(s)\n"
        "  if not e:find('^invalid_format: ') then error(s .. ' gives ' .. e) end\n"
        "end\n"
        "if not why('{\"a\":1,\"a\":2}'):find('duplicate', 1, true) then error 'no "
        "duplicate' end");
}

static void json_checks_depth_and_size_before_parsing(void **state)
{
    (void)state;
    run("local function nest(n) return ('['):rep(n) .. (']'):rep(n) end\n"
        "assert(json.decode(nest(64)))\n"
        "if not why(nest(65)):find('depth', 1, true) then error 'depth' end\n"
        "if not why(('['):rep(200000)):find('depth', 1, true) then error 'open' end\n"
        "if not why(('{\"a\":'):rep(3000)):find('depth', 1, true) then error 'objects' end\n"
        "local many = ('1,'):rep(2 * 1024 * 1024)\n"
        "if not why('[' .. many .. '1]'):find('values', 1, true) then error 'values' end\n"
        "assert(json.decode('\"' .. many .. '\"'))\n"
        "assert(json.decode('\"' .. ('['):rep(1000) .. '\"'))\n"
        "assert(json.decode('\"' .. ('\\\\\"['):rep(1000) .. '\"'))");
}

static void json_refuses_values_that_have_no_place_in_it(void **state)
{
    (void)state;
    run("local loop = {} loop.x = loop\n"
        "local list = {} list[1] = list\n"
        "for i, v in ipairs { loop, list, { x = print }, { [1.5] = 1 }, { [{}] = 1 }, 0/0, "
        "1/0, -1/0, '\\xff', { ['\\xff'] = 1 }, { ['a\\0b'] = 1 }, "
        "setmetatable({ value = 1, text = 'x' }, getmetatable(json.decode '9007199254740993')), "
        "coroutine.create(print) } do\n"
        "  local s, e = json.encode(v)\n"
        "  if s ~= nil or e.code ~= 'invalid_value' then error('value ' .. i) end\n"
        "end");
}

static void json_survives_want_of_memory_at_every_step(void **state)
{
    struct mc_err err = {0};
    size_t mem;

    (void)state;
    for (mem = 400 << 10; mem < 900 << 10; mem += 4 << 10) {
        struct mc_vm *vm = mc_vm_new(MC_ENV_EDGE, mem, false, &err);
        static const char text[] =
            "local t = {} for i = 1, 500 do t[i] = { a = i, b = 'text ' .. i } end\n"
            "local s = json.encode(t) for i = 1, 3 do t[#t + 1] = json.decode(s) end";
        struct code c = {text, sizeof text - 1};

        if (!vm)
            continue;
        if (mc_vm_protect(vm, set_up, NULL, &err) == 0)
            mc_vm_protect(vm, run_code, &c, &err);
        mc_vm_close(vm);
    }
}

static void error_values_of_any_kind_become_errors(void **state)
{
    struct mc_err err = {0};
    struct mc_vm *vm = mc_vm_new(MC_ENV_EDGE, 0, false, &err);

    (void)state;
    assert_non_null(vm);
    lua_pushnil(vm->L);
    mc_bind_pull_err(vm->L, -1, &err);
    assert_int_equal(err.code, MC_EPOLICY);
    lua_pushliteral(vm->L, "plain");
    mc_bind_pull_err(vm->L, -1, &err);
    assert_string_equal(err.text, "plain");
    lua_newtable(vm->L);
    lua_pushliteral(vm->L, "overloaded");
    lua_setfield(vm->L, -2, "code");
    mc_bind_pull_err(vm->L, -1, &err);
    assert_int_equal(err.code, MC_EAGAIN);
    assert_string_equal(err.text, mc_code_text(MC_EAGAIN));
    mc_fail_param(&err, MC_EARG, "n", "n is wrong");
    mc_bind_push_err(vm->L, &err);
    memset(&err, 0, sizeof err);
    mc_bind_pull_err(vm->L, -1, &err);
    assert_int_equal(err.code, MC_EARG);
    assert_string_equal(err.param, "n");
    assert_string_equal(err.text, "n is wrong");
    mc_vm_close(vm);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(json_keeps_order_arrays_and_null),
    cmocka_unit_test(json_sorts_what_scripts_make),
    cmocka_unit_test(json_keeps_numbers_exact),
    cmocka_unit_test(json_keeps_nul_and_refuses_lone_surrogates),
    cmocka_unit_test(json_refuses_malformed_text),
    cmocka_unit_test(json_checks_depth_and_size_before_parsing),
    cmocka_unit_test(json_refuses_values_that_have_no_place_in_it),
    cmocka_unit_test(json_survives_want_of_memory_at_every_step),
    cmocka_unit_test(error_values_of_any_kind_become_errors),
};

MC_TEST_MAIN(tests)

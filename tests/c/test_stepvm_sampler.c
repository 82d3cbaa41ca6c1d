/* test_stepvm_sampler.c - what sampler hooks see and answer. */
#include "tests/c/test.h"

#include <math.h>

#include "tests/c/stepvm_util.h"

/* ---- samplers ---------------------------------------------------------------------- */

/* A sampler with this pick body (locals c, seq); chain as wanted. */
static struct mc_stepvm *open_pick(const char *body, const char *more)
{
    char *dir = dir_new(), text[4096];
    struct mc_stepvm *s;
    struct mc_err err = {0};

    snprintf(text, sizeof text, "local S = { api = 1, kind = 'sampler' }\n%s\n"
             "S.chain = S.chain or function(seq, want) return want end\n"
             "function S.pick(c, seq)\n%s\nend\nreturn S\n", more, body);
    dir_write(dir, "t.lua", text);
    dir_write(dir, "init.lua", "return { sampler = 't' }");
    assert_ok(open_dir(dir, &s, &err), err);
    dir_free(dir);
    return s;
}

static struct mc_cands cands(void)
{
    struct mc_cands c = {.n = 4, .rest = 0.25f, .lse = 3, .drawn = 9};

    for (int i = 0; i < 4; i++) {
        c.id[i] = 4 + i;
        c.p[i] = 0.1f * (float)(i + 1);
        c.logit[i] = (float)-i;
    }
    return c;
}

static const struct mc_params as_wanted = {.temperature = 0.7, .top_p = 0.95,
                                           .repetition_penalty = 1, .ban = {-1, -1}};

static void stepvm_pick_sees_candidates_and_its_sequence(void **st)
{
    struct mc_stepvm *s = open_pick(
        "assert(c.n == 4 and c:id(1) == 4 and c:id(4) == 7 and c.rest == 0.25 and c.lse == 3)\n"
        "assert(c:p(2) > 0.19 and c:p(2) < 0.21 and c:logit(3) == -2)\n"
        "assert(c:text(1) == ' the' and c:text(3) == '.' and c:draw() == 9)\n"
        "assert(seq.id == 42 and seq.done == 3 and seq.n_prompt == 5)\n"
        "assert(seq.want.temperature == 0.7 and seq.want.top_k == 0)\n"
        "assert(seq:ends_with('more') and seq:ends_with('re') and seq:ends_with('') and\n"
        "  seq:ends_with('xmore') and not seq:ends_with('yxmore') and not seq:ends_with('mor'))\n"
        "local r = seq:random() assert(r >= 0 and r < 1 and seq:random() ~= r)\n"
        "local bad = { -1, 0, 5, 1e9, 0/0, 1/0, 1.5, 'x', true, {}, c, seq }\n"
        "for i = 1, #bad + 1 do\n"
        "  for _, m in ipairs { 'id', 'p', 'logit', 'text' } do\n"
        "    assert(not pcall(c[m], c, bad[i]), m .. ' ' .. tostring(bad[i])) end\n"
        "  assert(not pcall(seq.ends_with, seq, type(bad[i]) ~= 'string' and bad[i] or nil))\n"
        "  assert(not pcall(function() return seq[bad[i]] end))\n"
        "  assert(not pcall(function() return c[bad[i]] end))\n"
        "  assert(not pcall(function() return seq.state[bad[i]] end))\n"
        "  assert(not pcall(function() seq.state.seen = bad[i] ~= nil and\n"
        "    type(bad[i]) ~= 'number' and bad[i] or nil end))\n"
        "  assert(not pcall(function() return seq.want[bad[i]] end))\n"
        "  assert(not pcall(set.has, set, bad[i] ~= 0 and bad[i] ~= 5 and bad[i] or nil))\n"
        "  assert(not pcall(set.has, bad[i], 1))\n"
        "end\n"
        "assert(not pcall(seq.ends_with, seq, ('x'):rep(33)))\n"
        "assert(not pcall(function() seq.done = 1 end))\n"
        "assert(not pcall(function() c.n = 64 end)) assert(not pcall(mc.vocab.set, 'x'))\n"
        "assert(set:has(6) and not set:has(5) and not set:has(0) and tostring(set):find('set'))\n"
        "seq.state.seen = seq.state.seen + 1\n"
        "return c:id(2)\n",
        "S.state = { seen = 2, other = 1 }\n"
        "local set function S.init() set = mc.vocab.set('[.<]') end");
    struct mc_pick_seq q = {.seq = 42, .gen = 1, .done = 3, .n_prompt = 5, .seed_lo = 9,
                            .n_tail = 3, .tail = {10, 13, 14}, .want = as_wanted,
                            .state = {1, 2}};
    struct mc_cands c = cands();
    struct mc_err err = {0};
    int32_t id = 0;

    (void)st;
    assert_string_equal(s->layout[1].name[0], "other");
    assert_string_equal(s->layout[1].name[1], "seen");
    for (int i = 0; i < 100; i++)
        assert_ok(mc_stepvm_pick(s, &c, &q, &id, &err), err);
    assert_int_equal(id, 5);
    assert_true(q.state[0] == 1 && q.state[1] == 102);
    mc_stepvm_close(s);
}

static void stepvm_pick_answers_are_checked(void **st)
{
    static const struct {
        const char *code;
        int rc, id;
    } cases[] = {
        {"return 3", 0, 3},          {"return nil", 0, -1},        {"return", 0, -1},
        {"return 15", 0, 15},        {"return 16", MC_EPOLICY, 0}, {"return -1", MC_EPOLICY, 0},
        {"return 0", 0, 0},          {"return 1.5", MC_EPOLICY, 0}, {"return '3'", MC_EPOLICY, 0},
        {"return 0/0", MC_EPOLICY, 0}, {"return {}", MC_EPOLICY, 0}, {"return 1e9", MC_EPOLICY, 0},
    };
    struct mc_cands c = cands();

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mc_stepvm *s = open_pick(cases[i].code, "");
        struct mc_pick_seq q = {.seq = 1};
        struct mc_err err = {0};
        int32_t id = 0;

        assert_int_equal(mc_stepvm_pick(s, &c, &q, &id, &err), cases[i].rc);
        if (cases[i].rc == 0)
            assert_int_equal(id, cases[i].id);
        mc_stepvm_close(s);
    }
}

static void stepvm_random_depends_on_seed_and_place_alone(void **st)
{
    struct mc_stepvm *s =
        open_pick("seq.state.a, seq.state.b = seq:random(), seq:random()",
                  "S.state = { a = 0, b = 0 }");
    struct mc_cands c = cands();
    struct mc_err err = {0};
    double sum = 0, first = 0;
    int32_t id;

    (void)st;
    for (int i = 0; i < 4000; i++) {
        struct mc_pick_seq q = {.done = i, .seed_lo = 7, .seed_hi = 1}, again = q, other = q;

        other.seed_hi = 2;
        assert_ok(mc_stepvm_pick(s, &c, &q, &id, &err), err);
        assert_ok(mc_stepvm_pick(s, &c, &other, &id, &err), err);
        assert_ok(mc_stepvm_pick(s, &c, &again, &id, &err), err);
        assert_memory_equal(q.state, again.state, sizeof q.state);
        assert_true(q.state[0] != q.state[1] && q.state[0] != other.state[0]);
        assert_true(q.state[0] != first);
        first = q.state[0];
        sum += q.state[0] + q.state[1];
    }
    assert_true(fabs(sum / 8000 - 0.5) < 0.01); /* 3 sigma of 8,000 uniform draws */
    mc_stepvm_close(s);
}

static void stepvm_chain_sets_parameters_in_range(void **st)
{
    static const struct {
        const char *table, *error;
    } cases[] = {
        {"{ temperature = 0 }", NULL},
        {"{}", NULL},
        {"want", NULL},
        {"seq.want", NULL},
        {"{ temperature = -1 }", "temperature must be"},
        {"{ temperature = 0/0 }", "temperature must be"},
        {"{ top_p = 2 }", "top_p must be"},
        {"{ top_k = 1.5 }", "top_k must be a whole number"},
        {"{ keep = 65 }", "keep must be"},
        {"{ keep = 0 }", "keep must be"},
        {"{ temperatur = 1 }", "unknown parameter 'temperatur' (did you mean 'temperature'?)"},
        {"{ ban = 1 }", "ban must be"},
        {"{ ban = { a, a, a } }", "ban must be"},
        {"{ ban = { 1 } }", "ban must be"},
        {"nil", "must return a table"},
        {"3", "must return a table"},
        {"{ [1] = 2 }", "unknown parameter '1'"},
    };

    (void)st;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[400];
        struct mc_stepvm *s;
        struct mc_pick_seq q = {.seq = 1};
        struct mc_params out;
        struct mc_err err = {0};
        int rc;

        snprintf(more, sizeof more, "local a = mc.vocab.set('a')\n"
                 "function S.chain(seq, want) return %s end", cases[i].table);
        s = open_pick("", more);
        rc = mc_stepvm_chain(s, &q, &as_wanted, &out, &err);
        if (!cases[i].error) {
            assert_ok(rc, err);
            assert_int_equal(out.flags & MC_PARAM_PICK, MC_PARAM_PICK);
            assert_int_equal(out.keep, 64);
            assert_true(out.top_p == 0.95 && out.temperature == (i == 0 ? 0 : 0.7));
            assert_true(q.want.temperature == 0.7 && out.ban[0] == -1);
        } else if (rc != MC_EPOLICY || !strstr(err.text, cases[i].error)) {
            fail_msg("%s: %d %s", cases[i].table, rc, err.text);
        }
        mc_stepvm_close(s);
    }
}

static void stepvm_no_e_example_bans_and_ends(void **st)
{
    char *dir = dir_new(), cmd[200];
    struct mc_stepvm *s;
    struct mc_pick_seq q = {.seq = 1, .done = 10};
    struct mc_params out;
    struct mc_cands c = cands();
    struct mc_err err = {0};
    const uint32_t *bits;
    int32_t id;

    (void)st;
    snprintf(cmd, sizeof cmd, "cp examples/sampler_no_e.lua %s/", dir);
    assert_int_equal(system(cmd), 0);
    dir_write(dir, "init.lua", "return { sampler = 'sampler_no_e' }");
    assert_ok(open_dir(dir, &s, &err), err);
    assert_ok(mc_stepvm_chain(s, &q, &as_wanted, &out, &err), err);
    assert_true(out.min_p == 0.05 && out.keep == 32 && out.temperature == 0.7);
    bits = mc_sets_bits(&sets, out.ban[0]);
    for (int i = 0; i < N_TEST_WORD; i++) /* control tokens are text to nobody */
        assert_int_equal(bits[0] >> i & 1, i > 1 && strpbrk(test_words[i], "eE") != NULL);
    assert_ok(mc_stepvm_pick(s, &c, &q, &id, &err), err);
    assert_int_equal(id, 9);
    q.done = 61;
    assert_ok(mc_stepvm_pick(s, &c, &q, &id, &err), err);
    assert_int_equal(id, 6);
    assert_true(q.state[0] == 1);
    mc_stepvm_close(s);
    dir_free(dir);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(stepvm_pick_sees_candidates_and_its_sequence),
    cmocka_unit_test(stepvm_pick_answers_are_checked),
    cmocka_unit_test(stepvm_random_depends_on_seed_and_place_alone),
    cmocka_unit_test(stepvm_chain_sets_parameters_in_range),
    cmocka_unit_test(stepvm_no_e_example_bans_and_ends),
};
MC_TEST_MAIN(tests)

/* test_arena.c - the capped heap of a Lua VM. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "lua/host/arena.h"

enum { N = 2000, CAP = 4 << 20 };

struct block {
    unsigned char *p;
    size_t n;
    unsigned char fill;
};

static unsigned rnd(unsigned *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 17;
    return *s ^= *s << 5;
}

static void check(const struct block *b)
{
    for (size_t i = 0; i < b->n; i++)
        assert_int_equal(b->p[i], b->fill);
}

/* Random sizes, small ones more often, as Lua asks for them. */
static size_t any_size(unsigned *s)
{
    return rnd(s) % 8 ? rnd(s) % 200 + 1 : rnd(s) % 40000 + 1;
}

static void arena_keeps_every_block_whole(void **state)
{
    static struct block b[N];
    struct mc_arena *a = mc_arena_new(CAP);
    unsigned seed = 12345;
    size_t refused = 0;

    (void)state;
    print_message("seed %u\n", seed);
    for (int step = 0; step < 400000; step++) {
        struct block *x = &b[rnd(&seed) % N];
        size_t want = rnd(&seed) % 3 ? any_size(&seed) : 0;
        unsigned char *p;

        check(x);
        p = mc_arena_realloc(a, x->p, want);
        if (want && !p) {
            refused++;
            assert_true(want > x->n); /* shrinking never fails */
            check(x);
            continue;
        }
        for (size_t i = 0; i < x->n && i < want; i++)
            assert_int_equal(p[i], x->fill);
        assert_int_equal((uintptr_t)p % 16, 0);
        x->p = p;
        x->n = want;
        x->fill = (unsigned char)rnd(&seed);
        if (want)
            memset(p, x->fill, want);
        assert_true(mc_arena_used(a) <= CAP);
    }
    print_message("%zu refused\n", refused);
    for (int i = 0; i < N; i++) {
        mc_arena_realloc(a, b[i].p, 0);
        b[i] = (struct block){0};
    }
    assert_int_equal(mc_arena_used(a), 0);
    /* All is one piece again. */
    assert_non_null(mc_arena_realloc(a, NULL, CAP - 8192));
    mc_arena_release(a);
}

static void arena_refuses_more_than_its_cap(void **state)
{
    struct mc_arena *a = mc_arena_new(1 << 20);
    void *p;

    (void)state;
    assert_null(mc_arena_realloc(a, NULL, 2 << 20));
    assert_null(mc_arena_realloc(a, NULL, SIZE_MAX));
    assert_null(mc_arena_realloc(a, NULL, SIZE_MAX - 4));
    p = mc_arena_realloc(a, NULL, 600000);
    assert_non_null(p);
    assert_null(mc_arena_realloc(a, p, 1 << 20));
    assert_null(mc_arena_realloc(a, NULL, 600000));
    assert_ptr_equal(mc_arena_realloc(a, p, 1000), p);
    assert_non_null(mc_arena_realloc(a, NULL, 600000));
    mc_arena_release(a);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(arena_keeps_every_block_whole),
    cmocka_unit_test(arena_refuses_more_than_its_cap),
};
MC_TEST_MAIN(tests)

/* test_pin.c - prefixes whose pages stay: kept, dropped, over in time, given up for want. */
#include "core/base/clock.h"
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

static const uint64_t PAGE = 4 * 2 * 2 * MC_PAGE * 32 * 4; /* tiny-llama, f32 */

static int32_t held(struct mc_engine *e)
{
    struct mc_engine_status s;

    mc_engine_status(e, &s);
    return s.p_held;
}

static void wait_held(struct mc_engine *e, int32_t n)
{
    double until = mc_now() + 20;

    while (held(e) != n && mc_now() < until)
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    assert_int_equal(held(e), n);
}

static struct mc_engine *open_read(const int32_t *ids, int32_t n, int pages)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){
        .kv = "f32", .kv_bytes = (uint64_t)pages * PAGE, .max_seqs = 4}, NULL);

    got_free(run_one(e, ids, n, 1));
    return e;
}

static void pin_keeps_pages_until_it_is_dropped(void **state)
{
    struct mc_pin_info pin, list[MC_MAX_PINS];
    struct mc_err err = {0};
    struct mc_engine *e;
    int32_t ids[200], other[400];

    (void)state;
    some_ids(ids, 200, 1);
    e = open_read(ids, 200, 10);
    assert_int_equal(mc_engine_cached(e, ids, 200, 0, ""), 192);
    assert_int_equal(mc_engine_cached(e, ids, 200, 1, ""), 0);
    assert_int_equal(mc_engine_cached(e, ids, 200, 0, "salt"), 0);
    assert_int_equal(mc_engine_pin(e, ids, 200, 1, "", 0, &pin, &err), MC_ENOENT);
    assert_ok(mc_engine_pin(e, ids, 200, 0, "", 0, &pin, &err), err);
    assert_int_equal(pin.n_page, 3);
    assert_true(pin.bytes == 3.0 * (double)PAGE && pin.until == 0);
    wait_held(e, 3);
    for (uint32_t k = 2; k < 6; k++) { /* others use up all that there is */
        some_ids(other, 400, k);
        got_free(run_one(e, other, 400, 2));
    }
    assert_int_equal(mc_engine_cached(e, ids, 200, 0, ""), 192);
    assert_int_equal(mc_engine_pins(e, list), 1);
    assert_int_equal(list[0].id, pin.id);
    assert_ok(mc_engine_unpin(e, pin.id, &err), err);
    assert_int_equal(mc_engine_unpin(e, pin.id, &err), MC_ENOENT);
    wait_held(e, 0);
    assert_idle(e);
    mc_engine_close(e);
}

static void pin_ends_with_its_time(void **state)
{
    struct mc_pin_info pin;
    struct mc_err err = {0};
    struct mc_engine *e;
    int32_t ids[130];

    (void)state;
    some_ids(ids, 130, 1);
    e = open_read(ids, 130, 10);
    assert_ok(mc_engine_pin(e, ids, 130, 0, "", 0.05, &pin, &err), err);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
    got_free(run_one(e, ids, 10, 2)); /* an engine that does nothing looks at no clock */
    wait_held(e, 0);
    mc_engine_close(e);
}

static void pins_hold_half_of_the_pool_and_give_way(void **state)
{
    struct mc_pin_info pin, list[MC_MAX_PINS];
    struct mc_err err = {0};
    struct mc_engine *e;
    struct got *g;
    int32_t ids[400], big[600];

    (void)state;
    some_ids(ids, 400, 1);
    some_ids(big, 600, 2);
    e = open_read(ids, 400, 10);
    assert_int_equal(mc_engine_pin(e, ids, 400, 0, "", 0, &pin, &err), MC_ELIMIT);
    assert_ok(mc_engine_pin(e, ids, 330, 0, "", 0, &pin, &err), err);
    assert_int_equal(pin.n_page, 5);
    g = run_one(e, big, 600, 20); /* wants all ten pages */
    assert_int_equal(g->n, 20);
    got_free(g);
    assert_int_equal(mc_engine_pins(e, list), 0);
    assert_idle(e);
    assert_ok(mc_engine_pin(e, big, 100, 0, "", 0, &pin, &err), err);
    mc_engine_close(e); /* with a pin */
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pin_keeps_pages_until_it_is_dropped),
    cmocka_unit_test(pin_ends_with_its_time),
    cmocka_unit_test(pins_hold_half_of_the_pool_and_give_way),
};

MC_TEST_MAIN(tests)

/* test_kv_random.c - random use of pages and the prefix table against a model that is
 * plain counting, compared after each operation. OPS and SEED in the environment: how
 * many (50,000), and another run. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/kv.h"

enum { N = 23, KEYS = 40, HELD_MAX = 4 * N };
enum state { FREE, HELD, CACHED, PENDING };

struct model {
    enum state state[N];
    int32_t refs[N], key[N]; /* key -1: not findable */
    uint64_t ticket[N], stamp[N]; /* stamp: the order in which pages were given back */
};

static struct mc_pages *kv;
static struct model m;
static struct mc_hash hash[KEYS];
static int32_t ids[KEYS][MC_PAGE], held[HELD_MAX], n_held;
static uint64_t ticket, done, stamp;

static uint32_t roll(uint32_t n)
{
    static uint32_t dice;

    if (dice == 0)
        dice = getenv("SEED") ? (uint32_t)atoi(getenv("SEED")) | 1 : 1;
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % n;
}

static int32_t count(enum state s)
{
    int32_t n = 0;

    for (int i = 0; i < N; i++)
        n += m.state[i] == s;
    return n;
}

static int32_t page_of(int32_t key)
{
    for (int32_t i = 0; i < N; i++)
        if (m.key[i] == key)
            return i;
    return -1;
}

static int32_t oldest_cached(void)
{
    int32_t best = -1;

    for (int32_t i = 0; i < N; i++)
        if (m.state[i] == CACHED && (best < 0 || m.stamp[i] < m.stamp[best]))
            best = i;
    return best;
}

static void hold(int32_t page)
{
    m.refs[page]++;
    m.state[page] = HELD;
    held[n_held++] = page;
}

/* ---- operations -------------------------------------------------------------------- */

static void take(void)
{
    uint32_t tag = 0, old;
    int32_t want = count(FREE) ? -1 : oldest_cached(), page;

    if (n_held == HELD_MAX)
        return;
    old = want >= 0 ? mc_kv_tag(kv, want) : 0;
    page = mc_kv_take(kv, -1, &tag);
    if (count(FREE)) {
        assert_true(page >= 0 && m.state[page] == FREE);
    } else {
        assert_int_equal(page, want);
        assert_true(page < 0 || tag != old);
    }
    if (page < 0)
        return;
    m.key[page] = -1;
    hold(page);
}

static void find(void)
{
    int32_t key = (int32_t)roll(KEYS), want = page_of(key);
    bool keep = roll(2) && n_held < HELD_MAX;

    assert_int_equal(mc_kv_find(kv, hash[key], ids[key], keep), want);
    if (keep && want >= 0)
        hold(want);
}

static void publish(void)
{
    int32_t page = n_held ? held[roll((uint32_t)n_held)] : -1, key = (int32_t)roll(KEYS);
    bool free_key = page_of(key) < 0;

    if (page < 0)
        return;
    assert_int_equal(mc_kv_publish(kv, page, hash[key], ids[key]),
                     m.key[page] >= 0 || free_key);
    if (m.key[page] < 0 && free_key)
        m.key[page] = key;
}

static void share(void)
{
    int32_t page = n_held && n_held < HELD_MAX ? held[roll((uint32_t)n_held)] : -1;

    if (page < 0)
        return;
    mc_kv_ref(kv, page);
    hold(page);
}

static void give(void)
{
    int32_t at = n_held ? (int32_t)roll((uint32_t)n_held) : -1, page;

    if (at < 0)
        return;
    page = held[at];
    held[at] = held[--n_held];
    mc_kv_give(kv, page, ticket);
    if (--m.refs[page] > 0)
        return;
    m.state[page] = PENDING;
    m.ticket[page] = ticket;
    m.stamp[page] = ++stamp;
}

static void settle(void)
{
    ticket += roll(3);
    done += roll((uint32_t)(ticket - done) + 1);
    mc_kv_settle(kv, done);
    for (int i = 0; i < N; i++)
        if (m.state[i] == PENDING && m.ticket[i] <= done)
            m.state[i] = m.key[i] >= 0 ? CACHED : FREE;
}

/* ---- comparison -------------------------------------------------------------------- */

static void agree(void)
{
    int32_t shared = 0;

    assert_int_equal(mc_kv_n_free(kv), count(FREE));
    assert_int_equal(mc_kv_n_held(kv), count(HELD));
    assert_int_equal(mc_kv_n_cached(kv), count(CACHED));
    assert_int_equal(mc_kv_n_pending(kv), count(PENDING));
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(mc_kv_refs(kv, i), m.refs[i]);
        shared += m.refs[i] > 1;
    }
    assert_int_equal(mc_kv_n_shared(kv), shared);
}

static void kv_random_operations_equal_the_model(void **state)
{
    static void (*const op[])(void) = {take,  take, find, publish, publish,
                                       share, give, give, give,    settle};
    long ops = getenv("OPS") ? atol(getenv("OPS")) : 50000;

    (void)state;
    kv = mc_kv_new(N, 1);
    for (int i = 0; i < N; i++)
        m.key[i] = -1;
    for (int k = 0; k < KEYS; k++) {
        for (int i = 0; i < MC_PAGE; i++)
            ids[k][i] = k * 1000 + i;
        hash[k] = mc_kv_chain(mc_kv_root("", 0), ids[k]);
    }
    for (long i = 0; i < ops; i++) {
        op[roll(sizeof op / sizeof *op)]();
        agree();
    }
    while (n_held > 0)
        give();
    mc_kv_settle(kv, ticket);
    assert_int_equal(mc_kv_n_free(kv) + mc_kv_n_cached(kv), N);
    mc_kv_free(kv);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kv_random_operations_equal_the_model),
};

MC_TEST_MAIN(tests)

/* test_kv_random.c - random use of pages and the prefix table against a model that is
 * plain counting, compared after each operation: of one rank, and of pages spread over
 * three. Texts are a tree, the same for two tenants. OPS and SEED in the environment: how
 * many (50,000), and another run. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/kv.h"

enum { N = 24, TEXTS = 20, KEYS = 2 * TEXTS, HELD_MAX = 4 * N, WHO = 5 };
enum state { FREE, HELD, CACHED, PENDING, RETIRED };

struct model {
    enum state state[N];
    int32_t holds[N][WHO + 1]; /* who: 0 may hold a page often, others once */
    int32_t key[N];            /* -1: not findable */
    uint64_t ticket[N], stamp[N]; /* stamp: the order in which pages were given back */
};

struct hold {
    int32_t page, who;
};

static struct mc_pages *kv;
static struct model m;
static int32_t n_shard, n_held;
static struct mc_hash hash[KEYS];
static int32_t ids[KEYS][MC_PAGE];
static struct hold held[HELD_MAX];
static uint64_t ticket, done, stamp;

static uint32_t roll(uint32_t n)
{
    static uint32_t dice;

    if (dice == 0)
        dice = getenv("SEED") ? (uint32_t)atoi(getenv("SEED")) | 1 : 1;
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % n;
}

/* ---- the model --------------------------------------------------------------------- */

/* Of a shard, or (-1) of all. */
static int32_t count(enum state s, int32_t shard)
{
    int32_t n = 0;

    for (int32_t i = 0; i < N; i++)
        n += m.state[i] == s && (shard < 0 || i % n_shard == shard);
    return n;
}

static int32_t refs(int32_t page)
{
    int32_t n = 0;

    for (int32_t w = 0; w <= WHO; w++)
        n += m.holds[page][w];
    return n;
}

static int32_t page_of(int32_t key)
{
    for (int32_t i = 0; i < N; i++)
        if (m.key[i] == key)
            return i;
    return -1;
}

static int32_t oldest_cached(int32_t shard)
{
    int32_t best = -1;

    for (int32_t i = shard; i < N; i += n_shard)
        if (m.state[i] == CACHED && (best < 0 || m.stamp[i] < m.stamp[best]))
            best = i;
    return best;
}

/* The first shard with most pages to be had. */
static int32_t roomiest(void)
{
    int32_t best = 0;

    for (int32_t s = 1; s < n_shard; s++)
        if (count(FREE, s) + count(CACHED, s) > count(FREE, best) + count(CACHED, best))
            best = s;
    return best;
}

static void hold(int32_t page, int32_t who)
{
    m.holds[page][who]++;
    m.state[page] = HELD;
    held[n_held++] = (struct hold){page, who};
}

/* Who may take the page, or -1: there is no room for another hold. */
static int32_t anyone(int32_t page)
{
    int32_t who = (int32_t)roll(WHO + 1);

    return n_held == HELD_MAX || (who > 0 && page >= 0 && m.holds[page][who]) ? -1 : who;
}

/* ---- operations -------------------------------------------------------------------- */

static void take(void)
{
    int32_t shard = (int32_t)roll((uint32_t)n_shard + 1) - 1, who = anyone(-1);
    int32_t at = shard < 0 ? roomiest() : shard;
    int32_t want = count(FREE, at) ? -1 : oldest_cached(at), page;
    bool is_free = count(FREE, at) > 0;
    uint32_t tag = 0, old;

    if (who < 0)
        return;
    assert_int_equal(mc_kv_must_evict(kv, shard), !is_free && want >= 0);
    old = want >= 0 ? mc_kv_tag(kv, want) : 0;
    page = mc_kv_take(kv, shard, who, &tag);
    if (is_free) {
        assert_true(page >= 0 && m.state[page] == FREE && page % n_shard == at);
    } else {
        assert_int_equal(page, want);
        assert_true(page < 0 || tag != old);
    }
    if (page < 0)
        return;
    m.key[page] = -1;
    hold(page, who);
}

static void find(void)
{
    int32_t key = (int32_t)roll(KEYS), want = page_of(key), who = anyone(want);

    assert_int_equal(mc_kv_find(kv, hash[key], ids[key]), want);
    if (who < 0 || roll(2))
        return;
    assert_int_equal(mc_kv_find_take(kv, hash[key], ids[key], who), want);
    if (want >= 0)
        hold(want, who);
}

static int32_t parent_of(int32_t key) /* -1: the root */
{
    int32_t text = key % TEXTS;

    return text == 0 ? -1 : key - text + (text - 1) / 2;
}

/* All pages of a text from its root on, as far as they are there; who takes them is 0. */
static void find_all(void)
{
    int32_t path[8], n = 0, want = 0, key = (int32_t)roll(KEYS), page[8];
    int32_t text[8 * MC_PAGE], part = (int32_t)roll(MC_PAGE); /* of a page more */
    bool keep = roll(2) && n_held + 8 <= HELD_MAX;
    uint32_t tenant = (uint32_t)(key / TEXTS);

    for (int32_t k = key; k >= 0; k = parent_of(k))
        path[n++] = k;
    for (int32_t i = 0; i < n; i++)
        memcpy(text + i * MC_PAGE, ids[path[n - 1 - i]], sizeof ids[0]);
    memset(text + n * MC_PAGE, 0, (size_t)part * sizeof *text);
    while (want < n && page_of(path[n - 1 - want]) >= 0)
        want++;
    assert_int_equal(mc_kv_find_all(kv, mc_kv_root(&tenant, sizeof tenant), text,
                                    n * MC_PAGE + part, keep ? page : NULL), want);
    for (int32_t i = 0; i < want && keep; i++) {
        assert_int_equal(page[i], page_of(path[n - 1 - i]));
        hold(page[i], 0);
    }
}

static void publish(void)
{
    int32_t page = n_held ? held[roll((uint32_t)n_held)].page : -1;
    int32_t key = (int32_t)roll(KEYS);
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
    int32_t page = n_held ? held[roll((uint32_t)n_held)].page : -1, who = anyone(page);

    if (page < 0 || who < 0)
        return;
    mc_kv_ref(kv, page, who);
    hold(page, who);
}

static void give(void)
{
    int32_t at = n_held ? (int32_t)roll((uint32_t)n_held) : -1;
    struct hold h;

    if (at < 0)
        return;
    h = held[at];
    held[at] = held[--n_held];
    mc_kv_give(kv, h.page, h.who, ticket);
    m.holds[h.page][h.who]--;
    if (refs(h.page) > 0)
        return;
    m.state[h.page] = PENDING;
    m.ticket[h.page] = ticket;
    m.stamp[h.page] = ++stamp;
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

/* A page leaves the pool, of the shard that lost fewest; at most half of them do. */
static void retire(void)
{
    int32_t at = 0, want, page;

    if (roll(4) || count(RETIRED, -1) >= N / 2)
        return;
    for (int32_t s = 1; s < n_shard; s++)
        at = count(RETIRED, s) < count(RETIRED, at) ? s : at;
    want = count(FREE, at) ? -1 : oldest_cached(at);
    page = mc_kv_retire(kv);
    if (page < 0 || m.state[page] != FREE)
        assert_int_equal(page, want);
    if (page < 0)
        return;
    assert_int_equal(page % n_shard, at);
    m.state[page] = RETIRED;
    m.key[page] = -1;
}

static void restore(void)
{
    int32_t n = (int32_t)roll(4), was = count(RETIRED, -1);

    if (roll(4))
        return;
    mc_kv_restore(kv, n);
    for (int32_t i = 0; i < N; i++)
        if (m.state[i] == RETIRED && strcmp(mc_kv_state(kv, i), "free") == 0)
            m.state[i] = FREE;
    assert_int_equal(was - count(RETIRED, -1), n < was ? n : was);
}

/* ---- comparison -------------------------------------------------------------------- */

static void agree(void)
{
    int32_t own[WHO + 1] = {0};

    assert_int_equal(mc_kv_total(kv), N - count(RETIRED, -1));
    assert_int_equal(mc_kv_n_free(kv), count(FREE, -1));
    assert_int_equal(mc_kv_n_held(kv), count(HELD, -1));
    assert_int_equal(mc_kv_n_cached(kv), count(CACHED, -1));
    assert_int_equal(mc_kv_n_pending(kv), count(PENDING, -1));
    for (int32_t s = 0; s < n_shard; s++)
        assert_int_equal(mc_kv_n_ready(kv, s), count(FREE, s) + count(CACHED, s));
    for (int32_t i = 0; i < N; i++) {
        int32_t n = refs(i);

        assert_int_equal(mc_kv_refs(kv, i), n);
        for (int32_t w = 0; w <= WHO && n == 1; w++)
            own[w] += m.holds[i][w];
    }
    for (int32_t w = 0; w <= WHO; w++)
        assert_int_equal(mc_kv_own(kv, w), own[w]);
}

static void make_texts(void)
{
    for (int32_t k = 0; k < KEYS; k++) {
        uint32_t tenant = (uint32_t)(k / TEXTS);
        int32_t up = parent_of(k);

        for (int32_t i = 0; i < MC_PAGE; i++)
            ids[k][i] = k % TEXTS * 1000 + i;
        hash[k] = up < 0 ? mc_kv_root(&tenant, sizeof tenant) : hash[up];
        hash[k] = mc_kv_chain(hash[k], ids[k]);
    }
}

static void play(int32_t shards, long ops)
{
    static void (*const op[])(void) = {take,    take,  take, find, find_all, publish,
                                       publish, share, give, give, give,     settle,
                                       retire,  restore};

    n_shard = shards;
    n_held = 0;
    ticket = done = 0;
    m = (struct model){0};
    kv = mc_kv_new(N, shards, WHO);
    for (int i = 0; i < N; i++)
        m.key[i] = -1;
    for (long i = 0; i < ops; i++) {
        op[roll(sizeof op / sizeof *op)]();
        agree();
    }
    while (n_held > 0)
        give();
    mc_kv_settle(kv, ticket);
    mc_kv_restore(kv, N);
    assert_int_equal(mc_kv_n_free(kv) + mc_kv_n_cached(kv), N);
    mc_kv_free(kv);
}

static void kv_random_operations_equal_the_model(void **state)
{
    long ops = getenv("OPS") ? atol(getenv("OPS")) : 50000;

    (void)state;
    make_texts();
    play(1, ops / 2);
    play(3, ops - ops / 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kv_random_operations_equal_the_model),
};

MC_TEST_MAIN(tests)

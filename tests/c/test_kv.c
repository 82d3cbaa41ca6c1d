/* test_kv.c - KV pages: counts, sharing, quarantine, tags. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/engine/kv.h"

static void sums_hold(const struct mc_pages *kv)
{
    assert_int_equal(mc_kv_n_free(kv) + mc_kv_n_held(kv) + mc_kv_n_cached(kv) +
                         mc_kv_n_pending(kv),
                     mc_kv_total(kv));
}

static void fill(int32_t *ids, int32_t seed)
{
    for (int i = 0; i < MC_PAGE; i++)
        ids[i] = seed * 1000 + i;
}

static void kv_given_page_waits_for_its_ticket(void **state)
{
    struct mc_pages *kv = mc_kv_new(2, 1, 0);
    uint32_t tag;
    int32_t a = mc_kv_take(kv, -1, 0, &tag), b = mc_kv_take(kv, -1, 0, &tag);

    (void)state;
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), -1);
    mc_kv_give(kv, a, 0, 7);
    mc_kv_give(kv, b, 0, 9);
    mc_kv_settle(kv, 6);
    assert_int_equal(mc_kv_n_pending(kv), 2);
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), -1);
    mc_kv_settle(kv, 7);
    assert_int_equal(mc_kv_n_pending(kv), 1);
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), a);
    sums_hold(kv);
    mc_kv_free(kv);
}

static void kv_each_taking_stamps_a_new_tag(void **state)
{
    struct mc_pages *kv = mc_kv_new(1, 1, 0);
    uint32_t first, second;
    int32_t a = mc_kv_take(kv, -1, 0, &first);

    (void)state;
    mc_kv_give(kv, a, 0, 1);
    mc_kv_settle(kv, 1);
    assert_int_equal(mc_kv_take(kv, -1, 0, &second), a);
    assert_int_not_equal(first, 0);
    assert_int_not_equal(first, second);
    assert_int_equal(mc_kv_tag(kv, a), second);
    mc_kv_free(kv);
}

static void kv_shared_page_survives_one_owner(void **state)
{
    struct mc_pages *kv = mc_kv_new(4, 1, 0);
    int32_t ids[MC_PAGE], a;
    uint32_t tag;
    struct mc_hash h;

    (void)state;
    fill(ids, 1);
    h = mc_kv_chain(mc_kv_root("", 0), ids);
    a = mc_kv_take(kv, -1, 0, &tag);
    assert_true(mc_kv_publish(kv, a, h, ids));
    assert_int_equal(mc_kv_find_take(kv, h, ids, 0), a);
    mc_kv_give(kv, a, 0, 1);
    assert_int_equal(mc_kv_n_held(kv), 1);
    mc_kv_give(kv, a, 0, 2);
    mc_kv_settle(kv, 2);
    assert_int_equal(mc_kv_n_cached(kv), 1);
    assert_int_equal(mc_kv_find_take(kv, h, ids, 0), a);
    assert_int_equal(mc_kv_n_held(kv), 1);
    assert_int_equal(mc_kv_tag(kv, a), tag);
    sums_hold(kv);
    mc_kv_free(kv);
}

static void kv_pending_page_is_found_again(void **state)
{
    struct mc_pages *kv = mc_kv_new(2, 1, 0);
    int32_t ids[MC_PAGE], a;
    uint32_t tag;
    struct mc_hash h;

    (void)state;
    fill(ids, 3);
    h = mc_kv_chain(mc_kv_root("", 0), ids);
    a = mc_kv_take(kv, -1, 0, &tag);
    mc_kv_publish(kv, a, h, ids);
    mc_kv_give(kv, a, 0, 5);
    assert_int_equal(mc_kv_find_take(kv, h, ids, 0), a);
    mc_kv_settle(kv, 5);
    assert_int_equal(mc_kv_n_held(kv), 1);
    sums_hold(kv);
    mc_kv_free(kv);
}

static void kv_equal_hash_with_other_ids_is_a_miss(void **state)
{
    struct mc_pages *kv = mc_kv_new(2, 1, 0);
    int32_t ids[MC_PAGE], other[MC_PAGE], a;
    uint32_t tag;
    struct mc_hash h;

    (void)state;
    fill(ids, 1);
    fill(other, 2);
    h = mc_kv_chain(mc_kv_root("", 0), ids);
    a = mc_kv_take(kv, -1, 0, &tag);
    mc_kv_publish(kv, a, h, ids);
    assert_int_equal(mc_kv_find_take(kv, h, other, 0), -1);
    assert_int_equal(mc_kv_find(kv, h, ids), a);
    mc_kv_free(kv);
}

static void kv_other_salt_or_length_gives_another_root(void **state)
{
    struct mc_hash a = mc_kv_root("ab", 2), b = mc_kv_root("a", 1),
                   c = mc_kv_root("ab\0", 3);

    (void)state;
    assert_true(a.lo != b.lo && a.lo != c.lo && b.lo != c.lo);
}

static void kv_cached_pages_go_oldest_first_and_free_ones_before(void **state)
{
    struct mc_pages *kv = mc_kv_new(3, 1, 0);
    int32_t ids[3][MC_PAGE], page[3];
    struct mc_hash h[3];
    uint32_t tag;

    (void)state;
    for (int i = 0; i < 3; i++) {
        fill(ids[i], i);
        h[i] = mc_kv_chain(mc_kv_root("", 0), ids[i]);
        page[i] = mc_kv_take(kv, -1, 0, &tag);
    }
    mc_kv_publish(kv, page[0], h[0], ids[0]);
    mc_kv_publish(kv, page[1], h[1], ids[1]);
    for (int i = 0; i < 3; i++)
        mc_kv_give(kv, page[i], 0, 1);
    mc_kv_settle(kv, 1);
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), page[2]);
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), page[0]);
    assert_int_equal(mc_kv_find(kv, h[0], ids[0]), -1);
    assert_int_equal(mc_kv_find(kv, h[1], ids[1]), page[1]);
    sums_hold(kv);
    mc_kv_free(kv);
}

/* Random takes, shares and gives against plain counting. */
static void kv_random_use_keeps_the_sums_and_the_table(void **state)
{
    enum { N = 37, STEPS = 20000, KEYS = 64 };
    struct mc_pages *kv = mc_kv_new(N, 1, 0);
    int32_t held[4 * N], n_held = 0, ids[KEYS][MC_PAGE];
    struct mc_hash h[KEYS];
    uint64_t ticket = 0;
    uint32_t tag;

    (void)state;
    srand(1);
    for (int i = 0; i < KEYS; i++) {
        fill(ids[i], i);
        h[i] = mc_kv_chain(mc_kv_root("", 0), ids[i]);
    }
    for (int i = 0; i < STEPS; i++) {
        int what = rand() % 4, key = rand() % KEYS;

        if (what == 0 && n_held < 4 * N) {
            int32_t p = mc_kv_take(kv, -1, 0, &tag);

            if (p >= 0) {
                held[n_held++] = p;
                mc_kv_publish(kv, p, h[key], ids[key]);
            }
        } else if (what == 1 && n_held < 4 * N) {
            int32_t p = mc_kv_find_take(kv, h[key], ids[key], 0);

            if (p >= 0)
                held[n_held++] = p;
        } else if (what == 2 && n_held > 0) {
            int j = rand() % n_held;

            mc_kv_give(kv, held[j], 0, ++ticket);
            held[j] = held[--n_held];
        } else {
            mc_kv_settle(kv, ticket > 3 ? ticket - 3 : 0);
        }
        sums_hold(kv);
    }
    while (n_held > 0)
        mc_kv_give(kv, held[--n_held], 0, ++ticket);
    mc_kv_settle(kv, ticket);
    assert_int_equal(mc_kv_n_held(kv) + mc_kv_n_pending(kv), 0);
    for (int i = 0; i < N; i++) /* cached ones too: the table empties */
        assert_true(mc_kv_take(kv, -1, 0, &tag) >= 0);
    for (int i = 0; i < KEYS; i++)
        assert_int_equal(mc_kv_find(kv, h[i], ids[i]), -1);
    mc_kv_free(kv);
}

/* Six pages of two shards in the cache, oldest first. */
static struct mc_pages *cached(int32_t *page, struct mc_hash *h, int32_t (*ids)[MC_PAGE])
{
    struct mc_pages *kv = mc_kv_new(6, 2, 0);
    uint32_t tag;

    for (int i = 0; i < 6; i++) {
        fill(ids[i], i);
        h[i] = mc_kv_chain(mc_kv_root("", 0), ids[i]);
        page[i] = mc_kv_take(kv, i % 2, 0, &tag);
        mc_kv_publish(kv, page[i], h[i], ids[i]);
        mc_kv_note(kv, page[i], 7, i);
    }
    for (int i = 0; i < 6; i++)
        mc_kv_give(kv, page[i], 0, 1);
    mc_kv_settle(kv, 1);
    return kv;
}

static void kv_the_lowest_score_goes_first_and_a_held_page_never(void **state)
{
    static const double score[6] = {50, 9, 30, 40, 10, 20}; /* shard 0: 50 30 10 */
    int32_t ids[6][MC_PAGE], page[6], at[6];
    struct mc_block block[6];
    struct mc_hash h[6];
    struct mc_pages *kv = cached(page, h, ids);
    uint32_t tag;

    (void)state;
    assert_true(mc_kv_must_evict(kv, 0));
    assert_int_equal(mc_kv_unscored(kv, at, block, 6), 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(block[i].tenant, 7);
        assert_int_equal(at[i], page[block[i].depth]);
        block[i].score = score[block[i].depth];
    }
    mc_kv_score(kv, at, block, 6);
    assert_int_equal(mc_kv_unscored(kv, at, block, 6), 0);
    assert_int_equal(mc_kv_find_take(kv, h[4], ids[4], 0), page[4]); /* was the lowest */
    assert_int_equal(mc_kv_take(kv, 0, 0, &tag), page[2]);
    assert_int_equal(mc_kv_take(kv, 0, 0, &tag), page[0]);
    assert_int_equal(mc_kv_take(kv, 0, 0, &tag), -1);
    mc_kv_give(kv, page[4], 0, 9);
    mc_kv_settle(kv, 9);
    assert_int_equal(mc_kv_unscored(kv, at, block, 6), 1); /* it is cached anew */
    assert_int_equal(block[0].hits, 1);
    mc_kv_unscore(kv);
    assert_int_equal(mc_kv_take(kv, 1, 0, &tag), page[1]); /* the oldest again */
    assert_int_equal(mc_kv_unscored(kv, at, block, 6), 3);
    sums_hold(kv);
    mc_kv_free(kv);
}

static void kv_random_scores_go_in_order(void **state)
{
    enum { N = 300 };
    struct mc_pages *kv = mc_kv_new(N, 1, 0);
    static int32_t ids[N][MC_PAGE], at[N];
    static struct mc_block block[N];
    struct mc_hash h[N];
    double of[N], last = -1;
    uint32_t tag;
    int n;

    (void)state;
    srand(5);
    for (int i = 0; i < N; i++) {
        int32_t p = mc_kv_take(kv, -1, 0, &tag);

        fill(ids[i], i);
        h[i] = mc_kv_chain(mc_kv_root("", 0), ids[i]);
        mc_kv_publish(kv, p, h[i], ids[i]);
        mc_kv_give(kv, p, 0, 1);
    }
    mc_kv_settle(kv, 1);
    while ((n = mc_kv_unscored(kv, at, block, 64)) > 0) {
        for (int i = 0; i < n; i++)
            of[at[i]] = block[i].score = rand() % 50;
        mc_kv_score(kv, at, block, n);
    }
    for (int i = 0; i < N; i += 3) /* holes in the heap's middle */
        assert_true(mc_kv_find_take(kv, h[i], ids[i], 0) >= 0);
    for (int i = 0; i < N - N / 3; i++) {
        int32_t p = mc_kv_take(kv, -1, 0, &tag);

        assert_true(p >= 0 && of[p] >= last);
        last = of[p];
    }
    assert_int_equal(mc_kv_take(kv, -1, 0, &tag), -1);
    mc_kv_free(kv);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kv_given_page_waits_for_its_ticket),
    cmocka_unit_test(kv_each_taking_stamps_a_new_tag),
    cmocka_unit_test(kv_shared_page_survives_one_owner),
    cmocka_unit_test(kv_pending_page_is_found_again),
    cmocka_unit_test(kv_equal_hash_with_other_ids_is_a_miss),
    cmocka_unit_test(kv_other_salt_or_length_gives_another_root),
    cmocka_unit_test(kv_cached_pages_go_oldest_first_and_free_ones_before),
    cmocka_unit_test(kv_the_lowest_score_goes_first_and_a_held_page_never),
    cmocka_unit_test(kv_random_scores_go_in_order),
    cmocka_unit_test(kv_random_use_keeps_the_sums_and_the_table),
};

MC_TEST_MAIN(tests)

/* test_vocab.c - loops over a row of logits: selection against sorts, sums to the bit. */
#include "tests/c/test.h"

#include "kernels/host/vocab.h"
#include "tests/c/kern.h"

static void vocab_selection_equals_a_sort(void **state)
{
    uint64_t seed = 99, keys[MC_LIST], all[6000], cut;
    float x[6000], block[6000 / MC_VBLOCK + 1];
    int round, i, j, n, k, m;

    (void)state;
    for (round = 0; round < 60; round++) {
        n = 1 + (int)(kern_rand(&seed) % 6000);
        for (i = 0; i < n; i++) {
            x[i] = kern_randn(&seed) * (round % 3 ? 1e3f : 1);
            if (round % 4 == 1)
                x[i] = floorf(x[i] / 100); /* ties, and both zeros */
            if (round % 4 == 2 && i % 3)
                x[i] = -INFINITY;
        }
        for (m = 0, i = 0; i < n; i++) {
            uint64_t key = mc_key(x[i], i);

            if (x[i] == -INFINITY)
                continue;
            for (j = m++; j > 0 && all[j - 1] > key; j--)
                all[j] = all[j - 1];
            all[j] = key;
        }
        mc_vocab_max(x, n, block);
        for (k = 1; k <= MC_LIST && k <= n; k += k / 2 + 1) {
            int got = mc_vocab_top(x, n, k, block, keys);

            assert_int_equal(got, k < m ? k : m);
            assert_memory_equal(keys, all, (size_t)got * sizeof keys[0]);
        }
        k = 1 + (int)(kern_rand(&seed) % (unsigned)m);
        cut = mc_vocab_cut(x, n, NAN, k, UINT64_MAX);
        assert_true(cut == all[k - 1]);
        assert_true(mc_vocab_cut(x, n, NAN, k, all[0]) == all[0]);
        for (i = 0; i < m; i++) { /* a shuffle, undone */
            uint64_t t = all[i];

            j = (int)(kern_rand(&seed) % (unsigned)(i + 1));
            all[i] = all[j];
            all[j] = t;
        }
        mc_vocab_sort(all, m);
        assert_true(all[0] == mc_vocab_cut(x, n, NAN, 1, UINT64_MAX));
        for (i = 1; i < m; i++)
            assert_true(all[i - 1] < all[i]);
        assert_true(mc_vocab_cut(x, n, NAN, 1e9, UINT64_MAX) == all[m - 1]);
    }
}

/* The documented order, one value after the other: what any width of vector must give. */
static double tree_sum(const float *x, int n, float max, struct mc_vset set, float *block)
{
    double sum = 0;
    int i, j, s;

    for (i = 0; i < n; i += MC_VBLOCK) {
        float w[MC_VBLOCK] = {0};

        for (j = 0; j < MC_VBLOCK && i + j < n; j++) {
            float e = mc_vocab_exp(x[i + j] - max);

            w[j] = mc_vset_has(set, x[i + j], i + j, e) ? e : 0;
        }
        for (s = MC_VBLOCK / 2; s > 0; s /= 2)
            for (j = 0; j < s; j++)
                w[j] += w[j + s];
        block[i / MC_VBLOCK] = w[0];
        sum += (double)w[0];
    }
    return sum;
}

static void vocab_sums_have_the_bits_of_the_scalar_order(void **state)
{
    static const int size[] = {1, 63, 64, 65, 200, 1000};
    float x[1000], w[1000], block[2][1000 / MC_VBLOCK + 1];
    struct mc_vset all = {-INFINITY, 0, -1}, set = {0, 0.02f, 0};
    uint64_t seed = 13;
    int i, n;
    size_t k;

    (void)state;
    for (i = 0; i < 1000; i++)
        x[i] = i % 3 ? 3 * kern_randn(&seed) : 0; /* ties at the set's edge */
    for (k = 0; k < sizeof size / sizeof size[0]; k++) {
        n = size[k];
        assert_true(mc_vocab_sum(x, n, 9, block[0]) == tree_sum(x, n, 9, all, block[1]));
        assert_memory_equal(block[0], block[1], (size_t)mc_vblocks(n) * sizeof(float));
        for (i = -1; i <= n; i++) {
            set.last = i;
            assert_true(mc_vocab_sum_set(x, n, 3, set, block[0]) ==
                        tree_sum(x, n, 3, set, block[1]));
            assert_memory_equal(block[0], block[1],
                                (size_t)mc_vblocks(n) * sizeof(float));
        }
        mc_vocab_weights(x, n, 9, w);
        for (i = 0; i < n; i++)
            assert_true(w[i] == mc_vocab_exp(x[i] - 9));
    }
}

static void vocab_exp_is_close(void **state)
{
    double worst = 0;
    float x;

    (void)state;
    for (x = 0; x > -87; x -= 0.00137f) {
        double e = exp((double)x);

        worst = fmax(worst, fabs(mc_vocab_exp(x) - e) / e);
    }
    assert_true(worst < 0x1p-22); /* 2 ulp */
    assert_true(mc_vocab_exp(0) == 1);
    assert_true(mc_vocab_exp(-INFINITY) == 0 && mc_vocab_exp(-88) == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(vocab_selection_equals_a_sort),
    cmocka_unit_test(vocab_sums_have_the_bits_of_the_scalar_order),
    cmocka_unit_test(vocab_exp_is_close),
};

MC_TEST_MAIN(tests)

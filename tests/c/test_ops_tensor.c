/* test_ops_tensor.c - tensor: every body of the CPU backend against the oracle, over
 * types, ragged shapes and strides. Tolerances: see tensor_help.h. */
#include "tests/c/test.h"

#include "tests/c/ops.h"
#include "tests/c/tensor_help.h"

static void check(struct kern *ref, const struct mc_tensor_p *p)
{
    struct kern cpu;

    kern_run(ref, tensor, *p);
    ops_each_body (cpu, 2) {
        struct mc_tensor_p q = *p;

        q.out = like(&p->out);
        if (p->ids.p)
            q.ids = like(&p->ids);
        kern_run(&cpu, tensor, q);
        compare(p, &q, cpu.b->what);
        free(q.out.p);
        if (q.ids.p)
            free(q.ids.p);
    }
}

static void tensor_elements_have_the_oracles_bits(void **state)
{
    static const int32_t shapes[][4] = {
        {1, 1, 1, 1}, {1, 1, 3, 65}, {2, 3, 4, 7}, {1, 2, 2, 300}};
    struct kern ref = kern_ref(1, -1);
    uint64_t seed = 211;

    (void)state;
    for (size_t s = 0; s < 4; s++)
        for (int what = MC_T_COPY; what <= MC_T_DIV; what++)
            for (int c = 0; c < 9 * N_LIE; c++) {
                struct mc_tensor_p p = {.what = what, .scale = 1.7f};
                enum lie lie = (enum lie)(c / 9);

                p.a = view(types[c % 3], shapes[s], lie);
                p.out = view(types[c / 3 % 3], shapes[s], lie == GAPS ? TURNED : DENSE);
                fill(&p.a, &seed);
                if (what != MC_T_COPY && c % 2) {
                    p.b = view(types[c % 2], shapes[s], (enum lie)((lie + 1) % N_LIE));
                    fill(&p.b, &seed);
                }
                check(&ref, &p);
                done(&p);
            }
    kern_close(&ref);
}

static void tensor_ids_are_moved_and_cast(void **state)
{
    struct kern ref = kern_ref(1, -1);
    const int32_t n[4] = {1, 1, 1, 4};
    struct mc_tensor_p p = {.what = MC_T_COPY, .a = view(MC_I32, n, DENSE),
                            .out = view(MC_I32, n, DENSE)};
    static const int32_t ids[4] = {0x1000001, -5, INT32_MAX, INT32_MIN};
    float *f;

    (void)state;
    memcpy(p.a.p, ids, sizeof ids);
    check(&ref, &p);
    assert_memory_equal(p.out.p, ids, sizeof ids); /* all 32 bits */
    done(&p);
    p.a = view(MC_F32, n, DENSE);
    p.out = view(MC_I32, n, DENSE);
    f = p.a.p;
    f[0] = 2.5f, f[1] = NAN, f[2] = 1e20f, f[3] = -INFINITY;
    check(&ref, &p);
    assert_memory_equal(p.out.p, ((int32_t[]){2, 0, INT32_MAX, INT32_MIN}), sizeof ids);
    done(&p);
    kern_close(&ref);
}

static void tensor_products_agree(void **state)
{
    static const struct {
        int32_t y, z, m, n, k;
    } shapes[] = {{1, 1, 1, 1, 1},
                  {1, 1, 17, 65, 63},
                  {1, 1, 3, 130, 129},
                  {2, 3, 5, 7, 66}};
    struct kern ref = kern_ref(1, -1);
    uint64_t seed = 223;

    (void)state;
    for (size_t s = 0; s < 4; s++)
        for (int c = 0; c < 3 * N_LIE; c++) {
            int32_t y = shapes[s].y, z = shapes[s].z, m = shapes[s].m, n = shapes[s].n;
            int32_t k = shapes[s].k;
            struct mc_tensor_p p = {.what = MC_T_MATMUL};

            p.a = view(types[c % 3], (int32_t[]){y, z, m, k},
                       c / 3 == REPEATS ? DENSE : GAPS);
            p.b = view(types[(c + 1) % 3], (int32_t[]){y, z, k, n},
                       c / 3 == REPEATS ? DENSE : (enum lie)(c / 3));
            p.out = view(types[c / 3 % 3], (int32_t[]){y, z, m, n}, DENSE);
            fill(&p.a, &seed);
            fill(&p.b, &seed);
            check(&ref, &p);
            done(&p);
        }
    kern_close(&ref);
}

static void tensor_rows_fold_alike(void **state)
{
    static const int32_t lengths[] = {1, 5, 64, 255, 256, 257, 1000};
    struct kern ref = kern_ref(1, -1);
    uint64_t seed = 227;

    (void)state;
    for (size_t s = 0; s < 7; s++)
        for (int what = MC_T_SUM; what < MC_N_T; what++)
            for (int c = 0; c < 9; c++) {
                int32_t n = lengths[s], k = n < 20 ? n : 20;
                struct mc_tensor_p p = {.what = what};

                p.a = view(types[c % 3], (int32_t[]){1, 2, 3, n}, (enum lie)(c % N_LIE));
                fill(&p.a, &seed);
                if (what == MC_T_TOPK || what == MC_T_MAX) { /* ties, a NaN */
                    mc_strided_put(&p.a, 0,
                                   mc_strided_get(&p.a, n > 2 ? 2 * p.a.step[3] : 0));
                    if (n > 5)
                        mc_strided_put(&p.a, 4 * p.a.step[3], NAN);
                }
                p.out = view(types[c / 3],
                             (int32_t[]){1, 2, 3,
                                         what == MC_T_SOFTMAX ? n
                                         : what == MC_T_TOPK  ? k
                                                              : 1},
                             DENSE);
                if (what == MC_T_TOPK)
                    p.ids = view(MC_I32, p.out.n, DENSE);
                check(&ref, &p);
                done(&p);
            }
    kern_close(&ref);
}

static void tensor_refuses_what_does_not_fit(void **state)
{
    struct kern ref = kern_ref(1, -1);
    struct mc_strided a = view(MC_F32, (int32_t[]){1, 1, 2, 3}, DENSE);
    struct mc_strided b = view(MC_F32, (int32_t[]){1, 1, 3, 2}, DENSE);
    struct mc_strided ids = view(MC_I32, (int32_t[]){1, 1, 2, 3}, DENSE), bad = a,
                      empty = a;

    (void)state;
    bad.dt = MC_E4M3;
    empty.n[1] = 0;
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_N_T, .out = a, .a = a}));
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_T_COPY, .out = a, .a = b}));
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_T_COPY, .out = bad, .a = a}));
    assert_non_null(
        kern_refuses(&ref, tensor, {.what = MC_T_ADD, .out = a, .a = a, .b = b}));
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_T_ADD, .out = a, .a = ids}));
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_T_ADD, .out = a, .a = empty}));
    assert_non_null(
        kern_refuses(&ref, tensor, {.what = MC_T_MATMUL, .out = a, .a = a, .b = a}));
    assert_non_null(kern_refuses(&ref, tensor, {.what = MC_T_SUM, .out = a, .a = a}));
    assert_non_null(
        kern_refuses(&ref, tensor, {.what = MC_T_TOPK, .out = a, .a = a, .ids = a}));
    assert_null(
        kern_refuses(&ref, tensor, {.what = MC_T_TOPK, .out = a, .a = a, .ids = ids}));
    free(a.p), free(b.p), free(ids.p);
    kern_close(&ref);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tensor_elements_have_the_oracles_bits),
    cmocka_unit_test(tensor_ids_are_moved_and_cast),
    cmocka_unit_test(tensor_products_agree),
    cmocka_unit_test(tensor_rows_fold_alike),
    cmocka_unit_test(tensor_refuses_what_does_not_fit),
};

MC_TEST_MAIN(tests)

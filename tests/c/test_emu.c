/* test_emu.c - the emulator itself: fragment layouts one element at a time, orders, and
 * faults planted in small kernels (tests/emu), each of which must be found.
 *
 * What needs the compiler's hooks is skipped in sanitizer builds: there AddressSanitizer
 * ends the process at an access outside, and ThreadSanitizer reports races. */
#include "tests/c/test.h"

#include <pthread.h>
#include <string.h>

#include "kernels/emu/emu.h"
#include "kernels/host/cast.h"
#include "tests/emu/kernels.h"

#define LAUNCH(k, n, bytes, params)          \
    (&(struct emu_launch){.run = k,          \
                          .name = #k,        \
                          .grid = {1, 1, 1}, \
                          .threads = n,      \
                          .smem = bytes,     \
                          .p = &(params),    \
                          .p_bytes = sizeof(params)})

static void run(const struct emu_launch *l)
{
    const char *why = "";

    if (emu_launch(l, &why) != 0)
        fail_msg("%s", why);
}

/* ---- fragments --------------------------------------------------------------------- */

/* Row and column of element i of a lane's fragment, from the PTX manual's text. */
static void a16_at(int l, int i, int *r, int *c)
{
    *r = l / 4 + (i % 4 >= 2 ? 8 : 0);
    *c = l % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0);
}

static void b16_at(int l, int i, int *k, int *n)
{
    *k = l % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0);
    *n = l / 4;
}

static void a8_at(int l, int i, int *r, int *c)
{
    *r = l / 4 + (i / 4 % 2 ? 8 : 0);
    *c = l % 4 * 4 + i % 4 + (i >= 8 ? 16 : 0);
}

static void b8_at(int l, int i, int *k, int *n)
{
    *k = l % 4 * 4 + i % 4 + (i >= 4 ? 16 : 0);
    *n = l / 4;
}

typedef void (*at_fn)(int l, int i, int *r, int *c);

/* One element of A and all of B, then one of B and all of A: d must be the row or column.
 */
static void one_hot(emu_kernel k, int kk, int bits, uint32_t one, at_fn a_at, at_fn b_at)
{
    int per = 32 / bits, na = 4 * per, nb = 2 * per;

    for (int side = 0; side < 2; side++)
        for (int hot = 0; hot < (side ? 8 : 16) * kk; hot++) {
            uint32_t a[128] = {0}, b[64] = {0};
            float d[128] = {0};
            struct wrap_p p = {a, b, d};
            int hr = hot / kk, hk = hot % kk, r, c;

            for (int l = 0; l < 32; l++) {
                for (int i = 0; i < na; i++) {
                    a_at(l, i, &r, &c);
                    if (side ? c == hk : r == hr && c == hk)
                        a[l * 4 + i / per] |= one << bits * (i % per);
                }
                for (int i = 0; i < nb; i++) {
                    b_at(l, i, &r, &c);
                    if (side ? r == hk && c == hr : r == hk)
                        b[l * 2 + i / per] |= one << bits * (i % per);
                }
            }
            run(LAUNCH(k, 32, 0, p));
            for (int l = 0; l < 32; l++)
                for (int i = 0; i < 4; i++) {
                    int row = l / 4 + (i >= 2 ? 8 : 0), col = l % 4 * 2 + i % 2;

                    assert_true(d[l * 4 + i] == ((side ? col : row) == hr));
                }
        }
}

static void emu_fragments_are_laid_out_as_ptx_says(void **state)
{
    (void)state;
    one_hot(w_mma_bf16, 16, 16, 0x3f80, a16_at, b16_at);
    one_hot(w_mma_f16, 16, 16, 0x3c00, a16_at, b16_at);
    one_hot(w_mma_e4m3, 32, 8, 0x38, a8_at, b8_at);
}

static void emu_mma_sums_products_onto_d(void **state)
{
    uint32_t a[128], b[64], rng = 1;
    float d[128], want[128];
    struct wrap_p p = {a, b, d};

    (void)state;
    for (int i = 0; i < 192; i++) {
        rng = rng * 1664525 + 1013904223;
        *(i < 128 ? &a[i] : &b[i - 128]) = (rng & 0x807f807f) | 0x3f003f00; /* +-0.5..1 */
    }
    for (int i = 0; i < 128; i++)
        d[i] = want[i] = (float)i;
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            int row = l / 4 + (i >= 2 ? 8 : 0), col = l % 4 * 2 + i % 2, r, c, k, n;

            for (int la = 0; la < 32; la++)
                for (int ia = 0; ia < 8; ia++)
                    for (int lb = 0; lb < 32; lb++)
                        for (int ib = 0; ib < 4; ib++) {
                            a16_at(la, ia, &r, &c);
                            b16_at(lb, ib, &k, &n);
                            if (r == row && n == col && c == k)
                                want[l * 4 + i] +=
                                    mc_f32_of_bf16(
                                        (uint16_t)(a[la * 4 + ia / 2] >> ia % 2 * 16)) *
                                    mc_f32_of_bf16(
                                        (uint16_t)(b[lb * 2 + ib / 2] >> ib % 2 * 16));
                        }
        }
    run(LAUNCH(w_mma_bf16, 32, 0, p));
    for (int i = 0; i < 128; i++)
        assert_true(d[i] - want[i] < 1e-4 && want[i] - d[i] < 1e-4);
}

static void emu_ldmatrix_gives_rows_or_columns(void **state)
{
    uint16_t m[4][8][8];
    float d[128];
    uint32_t bits[128];
    struct wrap_p p = {NULL, (uint32_t *)(void *)m, d};

    (void)state;
    for (int i = 0; i < 256; i++)
        (&m[0][0][0])[i] = (uint16_t)i;
    for (int trans = 0; trans < 2; trans++) {
        run(LAUNCH(trans ? w_ldsm_t : w_ldsm, 32, 512, p));
        memcpy(bits, d, sizeof bits);
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 2; j++) {
                    int r = l / 4, c = l % 4 * 2 + j;

                    assert_int_equal(bits[l * 4 + i] >> 16 * j & 0xffff,
                                     trans ? m[i][c][r] : m[i][r][c]);
                }
    }
}

static void emu_converts_as_the_host_does(void **state)
{
    static const float some[] = {0,     -0.0f,   1,        -1.5f,    448,    500,
                                 1e-3f, 0x1p-9f, 0x1p-10f, 3.3e38f,  -17.3f, 0.0625f,
                                 1e30f, 208,     216,      0x1.01p0f};
    uint32_t a[128], b[128], out[128];
    float d[128];
    struct wrap_p p = {a, b, d};

    (void)state;
    for (int l = 0; l < 32; l++) {
        a[l * 4] = mc_bits_of_f32(some[l % 16]);
        a[l * 4 + 1] = mc_bits_of_f32(some[(l + 5) % 16]);
        a[l * 4 + 2] = mc_bits_of_f32(some[(l + 9) % 16]);
        b[l] = l % 2 ? 0x7614 : 0x0325;
    }
    run(LAUNCH(w_convert, 32, 0, p));
    memcpy(out, d, sizeof out);
    for (int l = 0; l < 32; l++) {
        float x = mc_f32_of_bits(a[l * 4]), y = mc_f32_of_bits(a[l * 4 + 1]);
        uint32_t q = a[l * 4], r = a[l * 4 + 1];

        assert_int_equal(out[l * 4],
                         mc_bf16_of_f32(x) | (uint32_t)mc_bf16_of_f32(y) << 16);
        assert_int_equal(out[l * 4 + 1],
                         mc_e4m3_of_f32(x) | (uint32_t)mc_e4m3_of_f32(y) << 8);
        for (int i = 0; i < 4; i++) {
            uint32_t from = b[l] >> 4 * i & 7;

            assert_int_equal(out[l * 4 + 2] >> 8 * i & 0xff,
                             (from < 4 ? q >> 8 * from : r >> 8 * (from - 4)) & 0xff);
        }
        assert_int_equal(out[l * 4 + 3] >> 16,
                         mc_bf16_of_f32(mc_f32_of_bits(q & 0xffff0000) *
                                            mc_f32_of_bits(r & 0xffff0000) +
                                        mc_f32_of_bits(a[l * 4 + 2] & 0xffff0000)));
    }
}

/* ---- meeting ----------------------------------------------------------------------- */

static void emu_warp_operations_see_lanes(void **state)
{
    float d[128];
    struct wrap_p p = {NULL, NULL, d};
    uint32_t third = 0;

    (void)state;
    run(LAUNCH(w_warp, 32, 0, p));
    for (int l = 0; l < 32; l++)
        third |= (uint32_t)(l % 3 == 0) << l;
    for (int l = 0; l < 32; l++) {
        assert_true(d[l] == 5);
        assert_true(d[32 + l] == (l ^ 3));
        assert_true(d[64 + l] == (l < 2 ? l + 30 : l));
        assert_int_equal(mc_bits_of_f32(d[96 + l]), third);
    }
}

static void emu_clusters_share_memory(void **state)
{
    float d[64];
    struct wrap_p p = {NULL, NULL, d};
    struct emu_launch l = *LAUNCH(w_cluster, 32, 128, p);

    (void)state;
    l.grid.x = l.cluster = 2;
    run(&l);
    for (int i = 0; i < 64; i++)
        assert_true(d[i] == (float)((i < 32) * 100 + i % 32));
}

static void *rank_main(void *p)
{
    struct wrap_p *w = p;
    const char *why = NULL;

    return emu_launch(LAUNCH(w_ranks, 64, 0, *w), &why) == 0 ? p : NULL;
}

/* Each rank on its own thread, waiting for the other's word fifty times. */
static void emu_ranks_run_at_the_same_time(void **state)
{
    uint32_t word[2] = {0};
    float d[2][64];
    struct wrap_p p[2] = {{&word[0], &word[1], d[0]}, {&word[1], &word[0], d[1]}};
    pthread_t t[2];
    void *ok;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, rank_main, &p[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &ok);
        assert_non_null(ok);
        assert_true(d[i][63] == 63);
    }
}

/* ---- planted faults ---------------------------------------------------------------- */

static float in[1024 + 4] __attribute__((aligned(128)));
static float out[1024] __attribute__((aligned(128)));

/* Runs in many orders; the last text, or NULL when none found a fault. */
static const char *try(emu_kernel k, const char *name, int fault, uint32_t smem)
{
    static char text[1000];
    struct fault_p p = {in, out, fault};
    struct emu_launch l = {.run = k, .name = name, .grid = {1, 1, 1}, .threads = 128,
                           .smem = smem, .p = &p, .p_bytes = sizeof p};

    for (int i = 0; i < 1024; i++)
        in[i] = (float)(i % 7);
    for (uint32_t seed = 1; seed <= 8; seed++) {
        const char *why;

        emu_seed(seed);
        if (emu_launch(&l, &why) != 0) {
            snprintf(text, sizeof text, "%s", why);
            return text;
        }
    }
    return NULL;
}

static const struct plant {
    emu_kernel run;
    const char *name;
    int fault;
    uint32_t smem;
    const char *says;
    bool hooks; /* found through the compiler's hooks only */
} plants[] = {
    {f_sum, "f_sum", FAULT_NO_BARRIER, 16, "planted.cu", true},
    {f_sum, "f_sum", FAULT_OFF_BY_ONE, 16, "outside of", true},
    {f_loop, "f_loop", FAULT_NO_BARRIER, 512, "races", true},
    {f_warp, "f_warp", FAULT_NO_BARRIER, 512, "races", true},
    {f_pipe, "f_pipe", FAULT_NO_WAIT, 1024, "cp.async", true},
    {f_pipe, "f_pipe", FAULT_STAGE, 1024, "cp.async", true},
    {f_diverge, "f_diverge", FAULT_DIVERGE, 0, "divergent barrier", false},
    {f_diverge, "f_diverge", FAULT_EXIT, 0, "ended", false},
    {f_diverge, "f_diverge", FAULT_LANES, 0, "warp diverges", false},
    {f_vector, "f_vector", FAULT_MISALIGNED, 0, "misaligned", false},
};

static void emu_finds_planted_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        const struct plant *q = &plants[i];
        const char *said;

        if (q->hooks && !emu_watches())
            continue;
        said = try(q->run, q->name, FAULT_NONE, q->smem);
        if (said)
            fail_msg("%s without a fault: %s", q->name, said);
        said = try(q->run, q->name, q->fault, q->smem);
        if (!said || !strstr(said, q->says))
            fail_msg("%s fault %d: %s", q->name, q->fault, said ? said : "not found");
        print_message("%s\n", said);
    }
}

static const float *reachable; /* of 128 floats */

static bool reaches(const void *p, uint32_t bytes)
{
    const char *at = p, *from = (const char *)reachable;

    return at >= from && at + bytes <= from + 128 * 4;
}

/* What a card could not reach: memory that is neither the device's nor pinned. */
static void emu_strict_kernels_touch_device_memory_only(void **state)
{
    float mem[128] = {0}, other[128];
    struct fault_p p = {mem, mem, FAULT_NONE};
    const char *why = "";

    (void)state;
    if (!emu_watches()) {
        print_message("a sanitizer build has no hooks\n");
        skip();
    }
    reachable = mem;
    emu_strict(reaches);
    run(LAUNCH(f_warp, 128, 128 * 4, p));
    p.out = other;
    assert_int_equal(emu_launch(LAUNCH(f_warp, 128, 128 * 4, p), &why), -1);
    assert_non_null(strstr(why, "no device reaches"));
    emu_strict(NULL);
    run(LAUNCH(f_warp, 128, 128 * 4, p));
}

static struct emu_traffic traffic(int fault)
{
    emu_count(true);
    assert_null(try(f_coalesce, "f_coalesce", fault, 33 * 32 * 4));
    emu_count(false);
    return emu_counted();
}

static void emu_counts_sectors_and_bank_waves(void **state)
{
    struct emu_traffic t;

    (void)state;
    if (!emu_watches()) {
        print_message("a sanitizer build counts nothing\n");
        skip();
    }
    t = traffic(FAULT_NONE); /* eight runs of 32 rows of 128 bytes, in and out */
    assert_int_equal(t.sectors, 8 * 32 * 4 * 2);
    assert_int_equal(t.sectors_min, t.sectors);
    assert_int_equal(t.global_bytes, 8 * 2 * 4096);
    assert_int_equal(t.waves, t.waves_min);
    t = traffic(FAULT_UNCOALESCED); /* a sector a lane */
    assert_int_equal(t.sectors, 8 * 32 * (32 + 4));
    t = traffic(FAULT_BANKS); /* a column in one bank */
    assert_int_equal(t.waves, 8 * 32 * (1 + 32));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(emu_fragments_are_laid_out_as_ptx_says),
    cmocka_unit_test(emu_mma_sums_products_onto_d),
    cmocka_unit_test(emu_ldmatrix_gives_rows_or_columns),
    cmocka_unit_test(emu_converts_as_the_host_does),
    cmocka_unit_test(emu_warp_operations_see_lanes),
    cmocka_unit_test(emu_clusters_share_memory),
    cmocka_unit_test(emu_ranks_run_at_the_same_time),
    cmocka_unit_test(emu_finds_planted_faults),
    cmocka_unit_test(emu_strict_kernels_touch_device_memory_only),
    cmocka_unit_test(emu_counts_sectors_and_bank_waves),
};

MC_TEST_MAIN(tests)

/* test_wrappers.c - each wrapper of an instruction on a card against its emulation, on
 * random bits (make test-gpu): what everything else that was shown without a card rests
 * on.
 *
 * Conversions, ldmatrix, shuffles and votes must agree to the bit, NaNs in being NaNs.
 * Products are of finite numbers: exact, but summed in the tensor core's own order and
 * rounding, which keeps some 14 bits below the largest term for e4m3 and 23 otherwise. */
#include "tests/c/test.h"

#include <math.h>

#include "kernels/cuda/cuda.h"
#include "kernels/emu/emu.h"
#include "kernels/host/cast.h"
#include "tests/emu/kernels.h"

enum { ROUNDS = 64, LANES = 32 };

extern const unsigned char _binary_wrappers_cu_fatbin_start[];

static struct mc_cu_api api;
static void *ctx, *module;
static uint64_t seed = 1;

static uint32_t bits(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static void open_card(void)
{
    const char *why = "";
    int dev = 0;

    if (module)
        return;
    assert_true(mc_cu_platform.load(&api, &why));
    assert_int_equal(api.Init(0), 0);
    assert_int_equal(api.DeviceGet(&dev, 0), 0);
    assert_int_equal(api.PrimaryCtxRetain(&ctx, dev), 0);
    assert_int_equal(api.CtxSetCurrent(ctx), 0);
    assert_int_equal(api.ModuleLoadData(&module, _binary_wrappers_cu_fatbin_start), 0);
}

/* The kernel on the card and emulated, over the same pinned memory. */
static void both(const char *name, emu_kernel emulated, uint32_t *a, uint32_t *b,
                 float *card, float *emu)
{
    struct wrap_p p = {a, b, card};
    void *args[] = {&p}, *fn = NULL;
    const char *why = "";
    struct emu_launch l = {.run = emulated,
                           .name = name,
                           .grid = {1, 1, 1},
                           .threads = LANES,
                           .smem = 2048,
                           .p = &p,
                           .p_bytes = sizeof p};

    open_card();
    assert_int_equal(api.CtxSetCurrent(ctx), 0);
    assert_int_equal(api.ModuleGetFunction(&fn, module, name), 0);
    assert_int_equal(api.LaunchKernel(fn, 1, 1, 1, LANES, 1, 1, 2048, NULL, args, NULL),
                     0);
    assert_int_equal(api.StreamSynchronize(NULL), 0);
    p.d = emu;
    if (emu_launch(&l, &why) != 0)
        fail_msg("%s", why);
}

static void same_bits(const char *name, emu_kernel k, bool nan_is_nan, bool sane_sel)
{
    uint32_t *a = malloc(LANES * 16), *b = malloc(LANES * 16);
    uint32_t *card = malloc(LANES * 16), *emu = malloc(LANES * 16);

    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < LANES * 4; i++) {
            a[i] = bits();
            b[i] = sane_sel ? bits() & 0x7777 : bits();
            card[i] = emu[i] = 0;
        }
        both(name, k, a, b, (float *)(void *)card, (float *)(void *)emu);
        for (int i = 0; i < LANES * 4; i++) {
            bool half_nan = nan_is_nan && ((card[i] & 0x7fff) > 0x7f80 ||
                                           (card[i] & 0x7fff0000) > 0x7f800000 ||
                                           (card[i] & 0x7f) == 0x7f ||
                                           (card[i] & 0x7f00) == 0x7f00);

            if (card[i] != emu[i] && !half_nan)
                fail_msg("%s: word %d is %08x, emulated %08x (a %08x %08x)", name, i,
                         card[i], emu[i], a[i / 4 * 4], a[i / 4 * 4 + 1]);
        }
    }
    free(a), free(b), free(card), free(emu);
}

/* Numbers of 16 or 8 bits between 2^-6 and 2^6 or so, two or four a word. */
static uint32_t number(int kind)
{
    uint32_t v = bits();

    if (kind == 0) /* bf16: exponents 121..132 */
        return (v & 0x807f807f) | (121 + bits() % 12) << 7 | (121 + bits() % 12) << 23;
    if (kind == 1) /* f16: exponents 9..20 */
        return (v & 0x83ff83ff) | (9 + bits() % 12) << 10 | (9 + bits() % 12) << 26;
    for (int i = 0; i < 32; i += 8) /* e4m3: no NaN */
        v = (v >> i & 0x7f) == 0x7f ? v ^ 1u << i : v;
    return v;
}

static void products(const char *name, emu_kernel k, int kind, double rel)
{
    uint32_t *a = malloc(LANES * 16), *b = malloc(LANES * 8);
    float *card = malloc(LANES * 16), *emu = malloc(LANES * 16);
    double scale = kind == 2 ? 448.0 * 448 * 32
                             : 4096.0 * 16; /* bounds a sum of magnitudes */

    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < LANES * 4; i++) {
            a[i] = number(kind);
            b[i / 2] = number(kind);
            card[i] = emu[i] = (float)(int32_t)bits() * 0x1p-24f;
        }
        both(name, k, a, b, card, emu);
        for (int i = 0; i < LANES * 4; i++)
            if (!(fabs((double)card[i] - emu[i]) <= rel * scale + rel * fabs(emu[i])))
                fail_msg("%s: sum %d is %.9g, emulated %.9g", name, i, card[i], emu[i]);
    }
    free(a), free(b), free(card), free(emu);
}

static void wrappers_convert_as_emulated(void **state)
{
    (void)state;
    same_bits("w_convert", w_convert, true, true);
}

static void wrappers_move_as_emulated(void **state)
{
    (void)state;
    same_bits("w_ldsm", w_ldsm, false, false);
    same_bits("w_ldsm_t", w_ldsm_t, false, false);
    same_bits("w_warp", w_warp, false, false);
}

static void wrappers_multiply_as_emulated(void **state)
{
    (void)state;
    products("w_mma_bf16", w_mma_bf16, 0, 0x1p-21);
    products("w_mma_f16", w_mma_f16, 1, 0x1p-21);
    products("w_mma_e4m3", w_mma_e4m3, 2, 0x1p-12);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(wrappers_convert_as_emulated),
    cmocka_unit_test(wrappers_move_as_emulated),
    cmocka_unit_test(wrappers_multiply_as_emulated),
};

MC_TEST_MAIN(tests)

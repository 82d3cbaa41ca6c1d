/* tensor.cu - what scripts compute over strided views (mc.tensor); never in a pass.
 *
 * Shapes are the caller's: up to four axes, any steps, f32, f16, bf16, i32. A row is the
 * last axis. Plans: an element a thread, neighbours along the row; a product in tiles of
 * 16 x 16 elements, a thread each, 16 of k at a time through f32 [2][16][17] of shared
 * memory, whose sum is one with k rising as the oracle's is: equal bits; a fold or a
 * softmax a block, thread i taking elements i, i + 256, ..; the k largest by k passes
 * over the row. Bound: bytes for contiguous views; no tensor cores, since operands are
 * read as f32; topk reads its row k times, from L2. Owns nothing. THREAD: device code. */
#include "kernels/cuda/dev.cuh"
#include "kernels/host/strided.h"

enum { T = 256, N_WARP = T / WARP, SIDE = 16, PITCH = SIDE + 1 };

/* ---- elements ---------------------------------------------------------------------- */

MC_DEV float both(int32_t what, float a, float b)
{
    return what == MC_T_ADD   ? a + b
           : what == MC_T_SUB ? a - b
           : what == MC_T_MUL ? a * b
                              : a / b;
}

MC_DEV void element(const struct mc_tensor_p &p, int64_t r, int32_t i)
{
    int64_t a = mc_strided_row(&p.a, &p.out, r) + i * p.a.step[3];
    int64_t out = mc_strided_row(&p.out, &p.out, r) + i * p.out.step[3];
    float b = p.scale;

    if (p.what == MC_T_COPY) {
        if (p.a.dt == MC_I32 && p.out.dt == MC_I32)
            static_cast<int32_t *>(p.out.p)[out] = static_cast<int32_t *>(p.a.p)[a];
        else
            mc_strided_put(&p.out, out, mc_strided_get(&p.a, a));
        return;
    }
    if (p.b.p)
        b = mc_strided_get(&p.b, mc_strided_row(&p.b, &p.out, r) + i * p.b.step[3]);
    mc_strided_put(&p.out, out, both(p.what, mc_strided_get(&p.a, a), b));
}

MC_KERNEL(k_tensor_map, struct mc_tensor_p)
{
    int32_t cols = p.out.n[3];
    int64_t n = mc_strided_rows(&p.out) * cols;

    for (int64_t e = static_cast<int64_t>(blockIdx.x) * T + threadIdx.x; e < n;
         e += static_cast<int64_t>(gridDim.x) * T)
        element(p, e / cols, static_cast<int32_t>(e % cols));
}

/* ---- products ---------------------------------------------------------------------- */

/* blockIdx.x: tiles of columns, of rows, then the batch. */
MC_KERNEL(k_tensor_matmul, struct mc_tensor_p)
{
    int32_t m = p.out.n[2], n = p.out.n[3], k = p.a.n[3];
    int32_t across = (n + SIDE - 1) / SIDE, down = (m + SIDE - 1) / SIDE;
    int32_t b = static_cast<int32_t>(blockIdx.x), batch = b / across / down;
    int32_t y = static_cast<int32_t>(threadIdx.x) / SIDE,
            x = static_cast<int32_t>(threadIdx.x) % SIDE;
    int32_t row = b / across % down * SIDE + y, col = b % across * SIDE + x;
    int64_t r = static_cast<int64_t>(batch) * m;
    int64_t a0 = mc_strided_row(&p.a, &p.out, r) + row * p.a.step[2];
    int64_t b0 = batch / p.out.n[1] * p.b.step[0] + batch % p.out.n[1] * p.b.step[1] +
                 col * p.b.step[3];
    float *ta = mc_shared<float>(), *tb = ta + SIDE * PITCH, sum = 0;

    for (int32_t k0 = 0; k0 < k; k0 += SIDE) {
        ta[y * PITCH + x] = row < m && k0 + x < k
                                ? mc_strided_get(&p.a, a0 + (k0 + x) * p.a.step[3])
                                : 0;
        tb[y * PITCH + x] = col < n && k0 + y < k
                                ? mc_strided_get(&p.b, b0 + (k0 + y) * p.b.step[2])
                                : 0;
        __syncthreads();
        for (int32_t i = 0; i < SIDE && k0 + i < k; i++)
            sum += ta[y * PITCH + i] * tb[i * PITCH + x];
        __syncthreads(); /* the tiles have been read */
    }
    if (row < m && col < n)
        mc_strided_put(&p.out,
                       mc_strided_row(&p.out, &p.out, r + row) + col * p.out.step[3],
                       sum);
}

/* ---- rows -------------------------------------------------------------------------- */

/* The larger; a NaN stays. */
MC_DEV float larger(float a, float b)
{
    return b > a || isnan(b) ? b : a;
}

MC_DEV float block_max(float x, float *buf)
{
    return mc_block_fold(mc_warp_max(x), buf, N_WARP, larger);
}

MC_DEV float at(const struct mc_tensor_p &p, int64_t row, int32_t i)
{
    return mc_strided_get(&p.a, row + i * p.a.step[3]);
}

MC_DEV float fold_row(const struct mc_tensor_p &p, int64_t row, float *buf)
{
    int32_t n = p.a.n[3];
    float sum = 0, most = -INFINITY;

    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += T) {
        float x = at(p, row, i);

        sum += p.what == MC_T_NORM ? x * x : x;
        most = larger(most, x);
    }
    if (p.what == MC_T_MAX)
        return block_max(most, buf);
    sum = mc_block_sum(sum, buf, N_WARP);
    return p.what == MC_T_SUM    ? sum
           : p.what == MC_T_MEAN ? sum / static_cast<float>(n)
                                 : sqrtf(sum);
}

MC_DEV void softmax_row(const struct mc_tensor_p &p, int64_t row, int64_t out, float *buf)
{
    int32_t n = p.a.n[3], me = static_cast<int32_t>(threadIdx.x);
    float most = -INFINITY, sum = 0;

    for (int32_t i = me; i < n; i += T)
        most = larger(most, at(p, row, i));
    most = block_max(most, buf);
    for (int32_t i = me; i < n; i += T)
        sum += expf(at(p, row, i) - most);
    sum = mc_block_sum(sum, buf, N_WARP);
    for (int32_t i = me; i < n; i += T)
        mc_strided_put(&p.out, out + i * p.out.step[3],
                       expf(at(p, row, i) - most) / sum);
}

MC_KERNEL(k_tensor_rows, struct mc_tensor_p)
{
    float *buf = mc_shared<float>();

    for (int64_t r = blockIdx.x; r < mc_strided_rows(&p.out); r += gridDim.x) {
        int64_t row = mc_strided_row(&p.a, &p.out, r),
                out = mc_strided_row(&p.out, &p.out, r);

        if (p.what == MC_T_SOFTMAX) {
            softmax_row(p, row, out, buf);
        } else {
            float x = fold_row(p, row, buf);

            if (threadIdx.x == 0)
                mc_strided_put(&p.out, out, x);
        }
    }
}

/* ---- topk -------------------------------------------------------------------------- */

/* Larger for a larger value, then for a lower place; a NaN as -inf, 0 for nothing. */
MC_DEV uint64_t key_of(float x, int32_t i)
{
    uint32_t u = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f); /* -0 is 0 */

    u = u & 0x80000000 ? ~u : u | 0x80000000;
    return static_cast<uint64_t>(u) << 32 | (0x7fffffffu - static_cast<uint32_t>(i));
}

MC_DEV uint64_t warp_most(uint64_t x)
{
    for (int by = 16; by > 0; by /= 2) {
        uint64_t y = __shfl_xor_sync(FULL, x, by);

        x = y > x ? y : x;
    }
    return x;
}

/* Each pass finds the largest below the one before. */
MC_KERNEL(k_tensor_topk, struct mc_tensor_p)
{
    uint64_t *buf = mc_shared<uint64_t>();

    for (int64_t r = blockIdx.x; r < mc_strided_rows(&p.out); r += gridDim.x) {
        int64_t row = mc_strided_row(&p.a, &p.out, r);
        int64_t out = mc_strided_row(&p.out, &p.out, r);
        int64_t ids = mc_strided_row(&p.ids, &p.out, r);
        uint64_t last = UINT64_MAX;

        for (int32_t k = 0; k < p.out.n[3]; k++) {
            uint64_t best = 0;

            for (int32_t i = static_cast<int32_t>(threadIdx.x); i < p.a.n[3]; i += T) {
                uint64_t x = key_of(at(p, row, i), i);

                best = x < last && x > best ? x : best;
            }
            last = mc_block_fold(warp_most(best), buf, N_WARP,
                                 [](uint64_t a, uint64_t b) { return a > b ? a : b; });
            if (threadIdx.x == 0) {
                int32_t i = static_cast<int32_t>(0x7fffffffu -
                                                 static_cast<uint32_t>(last));

                mc_strided_put(&p.out, out + k * p.out.step[3], at(p, row, i));
                static_cast<int32_t *>(p.ids.p)[ids + k * p.ids.step[3]] = i;
            }
        }
    }
}

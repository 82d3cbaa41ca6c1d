/* mla_tile.cuh - what a block of mla_attn works on: its shared memory, the limits of its
 * rows, and tiles of 32 tokens, fetched from their pages and unpacked to bf16. See
 * mla_attn.cuh. Owns nothing. THREAD: device code. */
#ifndef MC_CUDA_MLA_TILE_CUH
#define MC_CUDA_MLA_TILE_CUH

#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

static constexpr int L_WARPS = 8, L_THREADS = L_WARPS * WARP,
                     KT = 32 /* positions of a tile */, SP = KT + 4, PP = KT + 8;

template <int C_, int R_, int LAYOUT_, int M_> struct latent {
    static constexpr int C = C_, R = R_, LAYOUT = LAYOUT_, D = C + R;
    static constexpr int M = M_, MT = M / 16; /* rows of a tile, of a warp's O */
    static constexpr bool SHARDS = M == 64;   /* tokens may be sharded */
    static constexpr int P = D + 8; /* of a row of bf16: 4 banks off its neighbour */
    static constexpr int BYTES = LAYOUT == MC_KV_BF16        ? 2 * D
                                 : LAYOUT == MC_KV_FP8_PLAIN ? D
                                                             : C + C / 128 * 4 + 2 * R;
    static constexpr int RAW = LAYOUT == MC_KV_BF16 ? P * 2 : (BYTES + 15) / 16 * 16;
    static constexpr int PACKED = LAYOUT != MC_KV_BF16; /* copied raw, then unpacked */
    static constexpr int CW = C / L_WARPS;              /* columns of o a warp has */

    static_assert(C % 128 == 0 && D % 32 == 0);
};

/* What a row of the tile is: entries [lo, hi] of its list; hi < lo: nothing. */
template <int M> struct limits {
    int32_t lo[M], hi[M], row[M]; /* row: its index in q, t*h + head; -1: none */
};

template <class L> struct tile {
    uint16_t *q, *k;     /* [M][P]; [KT][P], bf16 pages: two of them */
    unsigned char *raw;  /* [2][KT][RAW], or k */
    float *s;            /* [2][M][SP] scores over half of the columns each */
    uint16_t *p;         /* [2][M][PP] high halves, low halves */
    float *factor;       /* [M] on what was summed before this tile */
    float *ml;           /* [M][2] of the split */
    int32_t *count;      /* [8] */
    limits<L::M> *lim;
};

template <class L> MC_DEV tile<L> mc_tile_of()
{
    unsigned char *s = mc_shared<unsigned char>();
    tile<L> t;

    t.q = reinterpret_cast<uint16_t *>(s);
    s += L::M * L::P * 2;
    t.k = reinterpret_cast<uint16_t *>(s);
    s += KT * L::P * 2;
    t.raw = L::PACKED ? s : reinterpret_cast<unsigned char *>(t.k);
    s += L::PACKED ? 2 * KT * L::RAW : KT * L::P * 2;
    t.s = reinterpret_cast<float *>(s);
    s += 2 * L::M * SP * 4;
    t.p = reinterpret_cast<uint16_t *>(s);
    s += 2 * L::M * PP * 2;
    t.factor = reinterpret_cast<float *>(s);
    t.ml = t.factor + L::M;
    t.count = reinterpret_cast<int32_t *>(t.ml + 2 * L::M);
    t.lim = reinterpret_cast<limits<L::M> *>(t.count + L_WARPS);
    return t;
}

/* Whose tokens are read. */
struct where {
    const int32_t *list; /* positions, or NULL: an entry is one of the rank's own */
    int32_t slot, lo, hi; /* entries that any row sees */
};

/* How many of a slot's first n tokens are the rank's own, and the position of the i-th:
 * all and its number in the body of 16 rows, which has no registers to spare. */
template <class L> MC_DEV int32_t mc_own(const struct mc_kv &kv, int32_t slot, int32_t n)
{
    if constexpr (L::SHARDS)
        return mc_kv_own(&kv, slot, n);
    else
        return n;
}

template <class L>
MC_DEV int32_t mc_place(const struct mc_kv &kv, int32_t slot, int32_t i)
{
    if constexpr (L::SHARDS)
        return mc_kv_pos(&kv, slot, i);
    else
        return i;
}

/* ---- a tile of positions ----------------------------------------------------------- */

template <class L>
MC_DEV const uint8_t *mc_token(const struct mc_mla_attn_p &p, int32_t slot, int32_t pos)
{
    if constexpr (L::SHARDS) {
        return mc_kv_page(&p.kv, p.layer, slot, pos) + pos % MC_PAGE * L::BYTES;
    } else {
        int64_t page = p.kv.table[static_cast<int64_t>(slot) * p.kv.pitch +
                                  pos / MC_PAGE];

        return p.kv.base + page * p.kv.page_stride + p.layer * p.kv.layer_stride +
               pos % MC_PAGE * L::BYTES;
    }
}

/* Entries e0..e0+31 to stage `to`; zeros for those that nobody sees. */
template <class L>
MC_DEV void mc_fetch(const struct mc_mla_attn_p &p, const where &w, int32_t e0,
                     unsigned char *to)
{
    constexpr int UNIT = L::BYTES % 16 == 0 ? 16 : 4;

#pragma unroll
    for (int j = 0; j < KT / L_WARPS; j++) {
        int32_t r = mc_warp() * (KT / L_WARPS) + j, e = e0 + r;
        bool seen = e >= w.lo && e <= w.hi;
        const uint8_t *from = p.kv.base;

        if (seen)
            from = mc_token<L>(p, w.slot,
                               w.list ? w.list[e] : mc_place<L>(p.kv, w.slot, e));
        for (int32_t i = UNIT * mc_lane(); i < L::BYTES; i += UNIT * WARP)
            if constexpr (UNIT == 16)
                mc_cp_async16(to + r * L::RAW + i, seen ? from + i : from, seen ? 16 : 0);
            else
                mc_st4(to + r * L::RAW + i, seen ? mc_ld4(from + i) : 0);
    }
}

/* Eight e4m3 codes as bf16, times a power of two as a pair of bf16. */
MC_DEV uint4 mc_widen(uint2 q, uint32_t scale)
{
    uint2 a = mc_e4m3_bf16(q.x), b = mc_e4m3_bf16(q.y);

    return {mc_fma_bf16x2(a.x, scale, 0x80008000), mc_fma_bf16x2(a.y, scale, 0x80008000),
            mc_fma_bf16x2(b.x, scale, 0x80008000), mc_fma_bf16x2(b.y, scale, 0x80008000)};
}

/* A warp's four tokens become rows of bf16. */
template <class L> MC_DEV void mc_unpack(uint16_t *k, const unsigned char *raw)
{
    constexpr int CODES = L::LAYOUT == MC_KV_FP8_PLAIN ? L::D : L::C, EIGHTS = CODES / 8;
    int32_t r0 = mc_warp() * (KT / L_WARPS);

    for (int32_t i = mc_lane(); i < KT / L_WARPS * EIGHTS; i += WARP) {
        int32_t r = r0 + i / EIGHTS, c = i % EIGHTS * 8;
        uint2 q = mc_ld8(raw + r * L::RAW + c);

        if constexpr (L::LAYOUT == MC_KV_FP8_656) {
            uint32_t s = mc_ld4(raw + r * L::RAW + L::C + c / 128 * 4) >> 16;

            mc_st16(k + r * L::P + c, mc_widen(q, s * 0x10001u));
        } else {
            uint2 a = mc_e4m3_bf16(q.x), b = mc_e4m3_bf16(q.y);

            mc_st16(k + r * L::P + c, {a.x, a.y, b.x, b.y});
        }
    }
    if constexpr (L::LAYOUT == MC_KV_FP8_656) /* the key is bf16 already */
        for (int32_t i = mc_lane(); i < KT / L_WARPS * (L::R / 2); i += WARP) {
            int32_t r = r0 + i / (L::R / 2), c = i % (L::R / 2) * 2;

            mc_st4(k + r * L::P + L::C + c,
                   mc_ld4(raw + r * L::RAW + L::C + L::C / 128 * 4 + 2 * c));
        }
}

#endif

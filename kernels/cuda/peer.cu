/* peer.cu - the collectives that are operations of their own: agree, all_gather,
 * all_to_all.
 *
 * Ranks meet and then read what the others brought where it lies: see rule 6 of kernels.h
 * for how long it lies there. Owns nothing. */
#include "kernels/cuda/peer.cuh"

enum { THREADS = 256 };

struct meet_mem { /* shared */
    uint64_t all[MC_MAX_RANKS];
    uint64_t sum[THREADS / WARP];
    int32_t met;
};

/* ---- agree ------------------------------------------------------------------------- */

/* A sum of words, each mixed with its place, so that it does not matter who adds what. */
struct digest {
    uint64_t sum;
    uint32_t place;
};

MC_DEV uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

MC_DEV void add_words(digest &d, const void *p, int32_t n)
{
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += THREADS)
        d.sum += mixed(static_cast<const uint32_t *>(p)[i] |
                       static_cast<uint64_t>(d.place + static_cast<uint32_t>(i) + 1)
                           << 32);
    d.place += static_cast<uint32_t>(n);
}

/* What all ranks must have alike before a step. */
MC_DEV uint64_t digest_of(const struct mc_agree_p &p, uint64_t *shared)
{
    const struct mc_rows &r = p.rows;
    int32_t rows = r.live[MC_LIVE_ROWS], seqs = r.live[MC_LIVE_SEQS];
    int32_t outs = r.live[MC_LIVE_OUT];
    digest d = {};

    add_words(d, r.live, 4);
    add_words(d, r.tok, rows);
    add_words(d, r.pos, rows);
    add_words(d, r.row_seq, rows);
    add_words(d, r.q0, seqs + 1);
    add_words(d, r.kv_len, seqs);
    add_words(d, r.slot, seqs);
    add_words(d, r.out_row, outs);
    add_words(d, r.target, r.target ? outs : 0);
    for (int32_t i = 0; i < seqs; i++) {
        int64_t at = static_cast<int64_t>(r.slot[i]) * p.kv.pitch;
        int32_t n = (r.kv_len[i] + MC_PAGE - 1) / MC_PAGE;

        add_words(d, p.kv.table + at, n);
        add_words(d, p.kv.want_tag + at, n);
        add_words(d, &p.slots[r.slot[i]], sizeof *p.slots / 4);
    }
    for (int by = 16; by > 0; by /= 2)
        d.sum += __shfl_xor_sync(FULL, d.sum, by);
    return mc_block_fold(d.sum, shared, THREADS / WARP,
                         [](uint64_t a, uint64_t b) { return a + b; });
}

MC_KERNEL(k_agree, struct mc_cu_agree)
{
    meet_mem *s = mc_shared<meet_mem>();
    uint64_t mine = 0;
    uint32_t e, n = 0;

    if (p.p.fault == MC_FAULT_ERROR && threadIdx.x == 0)
        mc_st_shared_word(&p.g.words->fault, MC_CU_ASKED);
    while (p.p.fault == MC_FAULT_STALL && !mc_parted(p.g, n))
        ;
    if (p.p.fault != MC_FAULT_NONE || p.g.n < 2)
        return;
    if (p.p.rows.live)
        mine = digest_of(p.p, s->sum);
    e = mc_come(p.g);
    mc_meet(p.g, e, mine, s->all);
    if (mc_met(p.g, &s->met) && threadIdx.x == 0)
        for (int32_t r = p.g.n - 1; r > 0; r--)
            if (s->all[r] != s->all[0])
                mc_st_shared_word(&p.g.words->fault,
                                  static_cast<uint32_t>(MC_CU_DIGEST + r));
    mc_go(p.g, e, 1);
}

/* ---- rows -------------------------------------------------------------------------- */

/* A block copies words. */
MC_DEV void copy_words(void *to, const void *from, int32_t n)
{
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < n; i += THREADS)
        mc_st4(static_cast<uint32_t *>(to) + i,
               mc_ld4(static_cast<const uint32_t *>(from) + i));
}

MC_KERNEL(k_all_gather, struct mc_cu_all_gather)
{
    meet_mem *s = mc_shared<meet_mem>();
    uint32_t e = mc_come(p.g);
    int32_t bytes = p.p.row_bytes;

    mc_meet(p.g, e, reinterpret_cast<uint64_t>(p.p.in), s->all);
    if (mc_met(p.g, &s->met))
        for (int32_t i = static_cast<int32_t>(blockIdx.x); i < *p.p.n_live;
             i += static_cast<int32_t>(gridDim.x))
            copy_words(static_cast<uint8_t *>(p.p.out) + static_cast<int64_t>(i) * bytes,
                       reinterpret_cast<const uint8_t *>(s->all[i % p.g.n]) +
                           static_cast<int64_t>(i / p.g.n) * bytes,
                       bytes / 4);
    mc_go(p.g, e, gridDim.x);
}

/* Block x takes its row of this rank's, block y the columns of rank y. */
MC_KERNEL(k_all_to_all, struct mc_cu_all_to_all)
{
    meet_mem *s = mc_shared<meet_mem>();
    uint32_t e = mc_come(p.g);
    int32_t i = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y);
    int32_t c0 = p.p.col0[r];

    mc_meet(p.g, e, reinterpret_cast<uint64_t>(p.p.in), s->all);
    if (mc_met(p.g, &s->met) && i < mc_peer_rows(&p.p.peer, *p.p.n_live))
        copy_words(p.p.out + static_cast<int64_t>(i) * p.p.out_pitch + c0,
                   reinterpret_cast<const float *>(s->all[r]) +
                       static_cast<int64_t>(mc_peer_row(&p.p.peer, i)) * p.p.pitch,
                   p.p.col0[r + 1] - c0);
    mc_go(p.g, e, gridDim.x * gridDim.y);
}

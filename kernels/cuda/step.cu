/* step.cu - pages, tables, slots and drafts: what changes device state around a step. */
#include "kernels/cuda/dev.cuh"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

/* ---- pages ------------------------------------------------------------------------- */

/* Page p of a table as this rank's own, -1: another rank has it, n_page: nobody. */
MC_DEV int32_t own_page(const struct mc_kv &kv, int32_t p)
{
    if (p < 0 || p >= mc_kv_pages(&kv))
        return kv.n_page;
    if (kv.n_shard <= 1)
        return p;
    return p % kv.n_shard == kv.rank ? p / kv.n_shard : -1;
}

/* blockIdx.x: the page of the list; blockIdx.y: a slice of it. */
MC_KERNEL(k_page_init, struct mc_cu_page_init)
{
    const struct mc_kv &kv = p.p.kv;
    uint32_t i = blockIdx.x;
    int64_t at = (static_cast<int64_t>(blockIdx.y) * 256 + threadIdx.x) * 16;
    int32_t page;

    if (i >= static_cast<uint32_t>(*p.p.n_list))
        return;
    page = own_page(kv, static_cast<int32_t>(p.p.list[2 * i]));
    if (*p.p.n_list > p.p.cap || page == kv.n_page) {
        *p.fault = MC_OP_page_init + 1;
        return;
    }
    if (page < 0)
        return;
    for (; at < kv.page_stride; at += static_cast<int64_t>(gridDim.y) * 256 * 16)
        mc_st16(kv.base + page * kv.page_stride + at, {0, 0, 0, 0});
    if (blockIdx.y == 0 && threadIdx.x == 0)
        kv.tag[page] = p.p.list[2 * i + 1];
}

MC_KERNEL(k_page_copy, struct mc_cu_page_copy)
{
    int64_t i = blockIdx.x, n = p.p.kv.page_stride;
    int64_t at = (static_cast<int64_t>(blockIdx.y) * 256 + threadIdx.x) * 16;
    int32_t page = own_page(p.p.kv, p.p.pages[i]);
    uint8_t *buf = p.p.buf + i * n, *to = p.p.kv.base + page * n;

    if (page == p.p.kv.n_page) {
        *p.fault = MC_OP_page_copy + 1;
        return;
    }
    if (page < 0)
        return;
    for (; at < n; at += static_cast<int64_t>(gridDim.y) * 256 * 16)
        mc_st16((p.p.to_buf ? buf : to) + at, mc_ld16((p.p.to_buf ? to : buf) + at));
}

/* A warp a sequence. */
MC_KERNEL(k_page_check, struct mc_page_check_p)
{
    int32_t s = static_cast<int32_t>(blockIdx.x), slot, n;
    const struct mc_kv &kv = p.kv;
    bool bad = false;

    if (s >= p.rows.live[MC_LIVE_SEQS])
        return;
    slot = p.rows.slot[s];
    n = (p.rows.kv_len[s] + MC_PAGE - 1) / MC_PAGE;
    for (int32_t i = mc_lane(); i < n; i += WARP) {
        int64_t at = static_cast<int64_t>(slot) * kv.pitch + i;
        int32_t page = kv.table[at];

        bad |= page < 0 || page >= kv.n_page || kv.tag[page] != kv.want_tag[at];
    }
    if (__ballot_sync(FULL, bad) && mc_lane() == 0)
        p.slots[slot].bad |= MC_BAD_PAGE;
}

/* ---- slots ------------------------------------------------------------------------- */

MC_DEV void count_add(uint16_t *c, int32_t by)
{
    int32_t n = (*c & MC_COUNT_OUT) + by;

    n = n < 0 ? 0 : n > MC_COUNT_OUT ? MC_COUNT_OUT : n;
    *c = static_cast<uint16_t>((*c & MC_COUNT_SEEN) | n);
}

MC_DEV bool delta_ok(const struct mc_table_apply_p &p, const struct mc_delta &d)
{
    if (d.slot < 0 || d.slot >= p.kv.n_slot)
        return false;
    switch (d.what) {
    case MC_DELTA_PAGE:
        return d.at >= 0 && d.at < p.kv.pitch && d.value < mc_kv_pages(&p.kv);
    case MC_DELTA_SLOT:
        return d.value >= 0;
    case MC_DELTA_BIAS:
        return d.at >= 0 && d.at < MC_MAX_BIAS;
    case MC_DELTA_SEEN:
    case MC_DELTA_GEN:
    case MC_DELTA_TOK:
        return d.value >= 0 && d.value < p.vocab;
    default:
        return false;
    }
}

/* All but MC_DELTA_SLOT, by the one thread that has the slot. */
MC_DEV void delta_apply(const struct mc_table_apply_p &p, const struct mc_delta &d)
{
    struct mc_slot &slot = p.slots[d.slot];
    uint16_t *counts = p.counts + static_cast<int64_t>(d.slot) * p.vocab;
    bool keep = slot.samp.flags & MC_SAMP_PENALTY;
    int64_t at = static_cast<int64_t>(d.slot) * p.kv.pitch + d.at;

    switch (d.what) {
    case MC_DELTA_PAGE:
        p.kv.table[at] = d.value;
        p.kv.want_tag[at] = d.tag;
        break;
    case MC_DELTA_SEEN:
        if (keep)
            counts[d.value] |= MC_COUNT_SEEN;
        break;
    case MC_DELTA_GEN:
        if (keep)
            count_add(&counts[d.value], 1);
        break;
    case MC_DELTA_BIAS:
        p.bias[static_cast<int64_t>(d.slot) * MC_MAX_BIAS + d.at] = {d.value,
                                                                     __uint_as_float(
                                                                         d.tag)};
        break;
    case MC_DELTA_TOK:
        if (keep && slot.tok >= 0 && slot.tok < p.vocab)
            count_add(&counts[slot.tok], -1);
        if (keep)
            count_add(&counts[d.value], 1);
        slot.tok = d.value;
        break;
    default:
        break;
    }
}

/* One block, since deltas of a slot are in order: each thread has the slots that leave
 * its number as remainder. A new slot's counts are cleared by all. */
MC_KERNEL(k_table_apply, struct mc_cu_table_apply)
{
    const struct mc_table_apply_p &a = p.p;
    const uint32_t *from = static_cast<const uint32_t *>(a.rows_from);
    uint32_t *to = static_cast<uint32_t *>(a.rows_to), me = threadIdx.x;

    for (size_t i = me; i < a.rows_bytes / 4; i += MC_T_k_table_apply)
        to[i] = from[i];
    for (int32_t i = 0; i < a.n_delta; i++) {
        const struct mc_delta &d = a.delta[i];
        bool mine = static_cast<uint32_t>(d.slot) % MC_T_k_table_apply == me;

        if (!delta_ok(a, d)) {
            *p.fault = MC_OP_table_apply + 1;
            return;
        }
        if (d.what != MC_DELTA_SLOT) {
            if (mine)
                delta_apply(a, d);
            continue;
        }
        __syncthreads(); /* what came before it in the list is done */
        if (mine)
            a.slots[d.slot] = a.slots_in[d.value];
        if (a.slots_in[d.value].samp.flags & MC_SAMP_PENALTY)
            for (int32_t v = static_cast<int32_t>(me); v < a.vocab;
                 v += MC_T_k_table_apply)
                a.counts[static_cast<int64_t>(d.slot) * a.vocab + v] = 0;
        __syncthreads();
    }
}

/* ---- tokens ------------------------------------------------------------------------ */

MC_DEV int32_t seq_of(const struct mc_rows &r, int32_t i)
{
    return r.row_seq[r.out_row[i]];
}

/* A sequence's sampled rows from the i-th on: its drafts stand up to the first that is
 * not what the row before drew. */
MC_DEV void verify_seq(const struct mc_verify_p &p, int32_t i, int32_t n)
{
    const struct mc_rows &r = p.rows;
    int32_t s = seq_of(r, i), stand = 0;

    for (i++; i < n && seq_of(r, i) == s; i++, stand++) {
        int32_t t = r.out_row[i], drawn = p.out[i - 1].tok;

        if (t != r.out_row[i - 1] + 1 || drawn < 0 || r.tok[t] != drawn)
            break;
    }
    p.accepted[s] = stand;
    p.next[s] = p.out[i - 1].tok;
}

/* One block; a thread has the sequences whose first sampled row is its own. */
MC_KERNEL(k_verify, struct mc_verify_p)
{
    const struct mc_rows &r = p.rows;
    int32_t me = static_cast<int32_t>(threadIdx.x), n = r.live[MC_LIVE_OUT];

    for (int32_t s = me; s < r.live[MC_LIVE_SEQS]; s += MC_T_k_verify) {
        p.accepted[s] = 0;
        p.next[s] = -1;
    }
    __syncthreads(); /* those that have sampled rows are written again */
    for (int32_t i = me; i < n; i += MC_T_k_verify)
        if (i == 0 || seq_of(r, i) != seq_of(r, i - 1))
            verify_seq(p, i, n);
}

/* A sampled row a thread: no two rows that move a slot are of the same one. */
MC_KERNEL(k_commit, struct mc_commit_p)
{
    int32_t n = p.rows.live[MC_LIVE_OUT];

    for (int32_t r = static_cast<int32_t>(threadIdx.x); r < n; r += MC_T_k_commit) {
        const struct mc_out &out = p.out[r];
        struct mc_slot &slot = p.slots[out.slot];

        if (out.bad)
            atomicOr(&slot.bad, out.bad);
        if (out.tok < 0 || (p.rows.target && p.rows.target[r] >= 0))
            continue;
        slot.tok = out.tok;
        slot.pos = out.pos;
        slot.n_gen++;
        if (slot.samp.flags & MC_SAMP_PENALTY)
            count_add(&p.counts[static_cast<int64_t>(out.slot) * p.vocab + out.tok], 1);
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); /* to the host, in words */
         p.ring && i < n * static_cast<int32_t>(sizeof(struct mc_out) / 4);
         i += MC_T_k_commit)
        reinterpret_cast<uint32_t *>(p.ring)[i] = reinterpret_cast<const uint32_t *>(
            p.out)[i];
}

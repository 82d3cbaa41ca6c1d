/* ops.c - the collectives that are operations of their own: all_gather, all_to_all, agree.
 *
 * Ranks read each other's memory where it lies; what each may touch and when is local.c's
 * rule 2. Owns nothing; bodies run on a stream's threads. */
#include <string.h>
#include <unistd.h>

#include "kernels/comm/comm.h"
#include "kernels/host/host.h"

/* ---- all_gather -------------------------------------------------------------------- */

struct gather {
    const struct mc_all_gather_p *p;
    const void *const *all;
};

/* Rows [i0, i1) of the parts that a group's ranks made. */
static void side_by_side(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct gather *g = ctx;
    const struct mc_all_gather_p *p = g->p;
    int32_t group = p->peer.rank / p->n_shard * p->n_shard, r;
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++)
        for (r = 0; r < p->n_shard; r++)
            memcpy((char *)p->out + (i * p->n_shard + r) * p->row_bytes,
                   (const char *)g->all[group + r] + i * p->row_bytes,
                   (size_t)p->row_bytes);
}

static int all_gather(struct mc_par *par, const struct mc_all_gather_p *p)
{
    int32_t n = *p->n_live, i;
    const void *const *all;
    int rc = mc_comm_meet(&p->peer, MC_OP_all_gather, (uint64_t)n, p->in, &all);

    if (rc == 0 && p->n_shard > 0) {
        mc_par_for(par, n, 8, side_by_side, &(struct gather){p, all});
        return 0;
    }
    for (i = 0; i < n && rc == 0; i++)
        memcpy((char *)p->out + (int64_t)i * p->row_bytes,
               (const char *)all[i % p->peer.n] + (int64_t)(i / p->peer.n) * p->row_bytes,
               (size_t)p->row_bytes);
    return rc;
}

static int all_gather_need(const struct mc_all_gather_p *p, struct mc_need *need,
                           const char **why)
{
    (void)need;
    if (p->n_shard > 0 && p->peer.n % p->n_shard != 0)
        return mc_refuse(why, "all_gather: groups that do not divide the ranks");
    return p->peer.n > 1 ? 0 : mc_refuse(why, "all_gather: there is one rank");
}

MC_HOST_OP(mc_host_all_gather, all_gather, all_gather_need, all_gather);

/* ---- all_to_all -------------------------------------------------------------------- */

struct exchange {
    const struct mc_all_to_all_p *p;
    const void *const *all;
};

static void take_rows(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct exchange *x = ctx;
    const struct mc_all_to_all_p *p = x->p;
    int64_t i;
    int32_t r;

    (void)lane;
    for (i = i0; i < i1; i++)
        for (r = 0; r < p->peer.n; r++)
            memcpy(p->out + i * p->out_pitch + p->col0[r],
                   (const float *)x->all[r] +
                       (int64_t)mc_peer_row(&p->peer, (int32_t)i) * p->pitch,
                   (size_t)(p->col0[r + 1] - p->col0[r]) * sizeof *p->out);
}

static int all_to_all(struct mc_par *par, const struct mc_all_to_all_p *p)
{
    struct exchange x = {.p = p};
    int32_t n = *p->n_live;
    int rc = mc_comm_meet(&p->peer, MC_OP_all_to_all, (uint64_t)n, p->in, &x.all);

    if (rc == 0)
        mc_par_for(par, mc_peer_rows(&p->peer, n), 1, take_rows, &x);
    return rc;
}

static int all_to_all_need(const struct mc_all_to_all_p *p, struct mc_need *need,
                           const char **why)
{
    (void)need;
    if (p->peer.n < 2)
        return mc_refuse(why, "all_to_all: there is one rank");
    if (p->col0[0] != 0 || p->col0[p->peer.n] > p->out_pitch)
        return mc_refuse(why, "all_to_all: the columns do not make a row");
    return 0;
}

MC_HOST_OP(mc_host_all_to_all, all_to_all, all_to_all_need, all_to_all);

/* ---- agree ------------------------------------------------------------------------- */

/* FNV-1a over words. */
static uint64_t add(uint64_t h, const void *p, int64_t n)
{
    const uint32_t *w = p;
    int64_t i;

    for (i = 0; i < n; i++)
        h = (h ^ w[i]) * 0x100000001b3u;
    return h;
}

static uint64_t digest(const struct mc_agree_p *p)
{
    const struct mc_rows *r = &p->rows;
    int32_t rows = r->live[MC_LIVE_ROWS], seqs = r->live[MC_LIVE_SEQS], s;
    int32_t outs = r->live[MC_LIVE_OUT];
    uint64_t h = add(0xcbf29ce484222325u, r->live, 4);

    h = add(h, r->tok, rows);
    h = add(h, r->pos, rows);
    h = add(h, r->row_seq, rows);
    h = add(h, r->q0, seqs + 1);
    h = add(h, r->kv_len, seqs);
    h = add(h, r->slot, seqs);
    h = add(h, r->out_row, outs);
    h = add(h, r->target, r->target ? outs : 0);
    for (s = 0; s < seqs; s++) {
        const struct mc_slot *slot = &p->slots[r->slot[s]];
        int64_t at = (int64_t)r->slot[s] * p->kv.pitch;
        int64_t n = (r->kv_len[s] + MC_PAGE - 1) / MC_PAGE;

        h = add(h, p->kv.table + at, n);
        h = add(h, p->kv.want_tag + at, n);
        h = add(h, slot, sizeof *slot / sizeof(uint32_t));
    }
    return h;
}

static int agree(struct mc_par *par, const struct mc_agree_p *p)
{
    uint64_t key = p->peer.n > 1 && p->rows.live ? digest(p) : 0;
    const void *const *all;

    (void)par;
    if (p->fault == MC_FAULT_ERROR)
        return MC_K_ERANK;
    while (p->fault == MC_FAULT_STALL)
        pause();
    return p->peer.n > 1 ? mc_comm_meet(&p->peer, MC_OP_agree, key, NULL, &all) : 0;
}

_Static_assert(sizeof(struct mc_slot) % sizeof(uint32_t) == 0,
               "slots are hashed by words");
MC_HOST_NEEDS_NOTHING(agree)
MC_HOST_OP(mc_host_agree, agree, agree_need, agree);

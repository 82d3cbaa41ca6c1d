/* launch_peer.c - need and run of join and of the other collectives on CUDA.
 *
 * A join of more rows than a seat has room for goes in two shots (join.cu). Owns nothing.
 * THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"

enum {
    JOIN_SMEM = 256, /* join_mem of join.cu */
    MEET_SMEM = 256, /* meet_mem of peer.cu */
    GATHER_BLOCKS = 32,
};

static int join_need(const struct mc_join_p *p, struct mc_need *n, const char **why)
{
    const char *no = p->w && p->act.x ? mc_cu_act_refuse(&p->act) : NULL;

    (void)n;
    if (p->h % 8 != 0)
        no = "join: columns in multiples of 8";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int join_ranks(struct mc_stream *s, const struct mc_join_p *p)
{
    struct mc_cu_join k = {.p = *p};
    int rc = mc_cu_peers_of(s, &k.g);

    if (rc == 0 && p->rows.cap <= MC_CU_ROOM / (4 * p->h))
        return mc_cu_launch(s, MC_CU_k_join_ranks,
                            (struct mc_cu_grid){p->rows.cap, 1, JOIN_SMEM}, &k);
    if (rc == 0)
        rc = mc_cu_launch(
            s, MC_CU_k_join_sum,
            (struct mc_cu_grid){mc_cu_blocks(p->rows.cap, k.g.n), 1, JOIN_SMEM}, &k);
    if (rc == 0)
        rc = mc_cu_launch(s, MC_CU_k_join_take,
                          (struct mc_cu_grid){p->rows.cap, 1, JOIN_SMEM}, &k);
    return rc;
}

static int join_run(struct mc_stream *s, const struct mc_join_p *p)
{
    if (p->peer.n > 1)
        return join_ranks(s, p);
    return mc_cu_launch(s, MC_CU_k_join, (struct mc_cu_grid){p->rows.cap, 1, JOIN_SMEM},
                        p);
}
MC_CU_OP(join);

static int agree_need(const struct mc_agree_p *p, struct mc_need *n, const char **why)
{
    (void)p;
    (void)n;
    (void)why;
    return 0;
}

static int agree_run(struct mc_stream *s, const struct mc_agree_p *p)
{
    struct mc_cu_agree k = {.p = *p};
    int rc = mc_cu_peers_of(s, &k.g);

    return rc < 0 ? rc
                  : mc_cu_launch(s, MC_CU_k_agree, (struct mc_cu_grid){1, 1, MEET_SMEM},
                                 &k);
}
MC_CU_OP(agree);

static int all_gather_need(const struct mc_all_gather_p *p, struct mc_need *n,
                           const char **why)
{
    (void)n;
    if (p->n_shard > 0)
        return mc_cu_refuse(why, "cuda: tokens are not sharded over ranks");
    if (p->row_bytes % 4 != 0)
        return mc_cu_refuse(why, "all_gather: rows in words of 4 bytes");
    return p->peer.n > 1 ? 0 : mc_cu_refuse(why, "all_gather: there is one rank");
}

static int all_gather_run(struct mc_stream *s, const struct mc_all_gather_p *p)
{
    struct mc_cu_all_gather k = {.p = *p};
    int64_t blocks = p->cap < 1 ? 1 : p->cap < GATHER_BLOCKS ? p->cap : GATHER_BLOCKS;
    int rc = mc_cu_peers_of(s, &k.g);

    return rc < 0 ? rc
                  : mc_cu_launch(s, MC_CU_k_all_gather,
                                 (struct mc_cu_grid){blocks, 1, MEET_SMEM}, &k);
}
MC_CU_OP(all_gather);

static int all_to_all_need(const struct mc_all_to_all_p *p, struct mc_need *n,
                           const char **why)
{
    (void)n;
    if (p->peer.n < 2)
        return mc_cu_refuse(why, "all_to_all: there is one rank");
    if (p->col0[0] != 0 || p->col0[p->peer.n] > p->out_pitch)
        return mc_cu_refuse(why, "all_to_all: the columns do not make a row");
    return 0;
}

static int all_to_all_run(struct mc_stream *s, const struct mc_all_to_all_p *p)
{
    struct mc_cu_all_to_all k = {.p = *p};
    int rc = mc_cu_peers_of(s, &k.g);

    return rc < 0 ? rc
                  : mc_cu_launch(s, MC_CU_k_all_to_all,
                                 (struct mc_cu_grid){mc_cu_blocks(p->cap, p->peer.n),
                                                     p->peer.n, MEET_SMEM},
                                 &k);
}
MC_CU_OP(all_to_all);

/* launch_mla.c - need and run of MLA's and DSA's operations on CUDA; see launch.c. Owns
 * nothing. THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

enum { WARPS = 8, MAX_LATENT = 1024 };

/* Of a pool of latents: mla_prep writes any, mla_attn reads the sizes that models have.
 */
static const char *latent_refuse(const struct mc_kv *kv)
{
    const char *no = mc_mla_refuse(kv);

    if (!no && kv->layout == MC_KV_F32)
        no = "cuda: KV in f32 is for ref and cpu";
    if (!no && kv->c + kv->r > MAX_LATENT)
        no = "a latent above 1024 values";
    if (!no && (kv->page_stride % 16 != 0 || kv->layer_stride % 16 != 0 ||
                kv->index_off % 16 != 0 || kv->index_stride % 16 != 0))
        no = "cuda: page strides are multiples of 16";
    return no;
}

static bool rotates(const struct mc_rope *rope, int32_t off, int32_t r)
{
    return rope->dim == r && rope->off == off && r % 2 == 0;
}

/* ---- mla_prep ---------------------------------------------------------------------- */

static int mla_prep_need(const struct mc_mla_prep_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)n;
    if (!no && p->fresh)
        no = MC_CU_NO_FRESH;
    if (!no && p->q_a && p->act.x)
        no = mc_cu_act_refuse(&p->act);
    if (!no && p->q_a && (p->q_lora % 4 != 0 || (p->act.x && p->act.k != p->q_lora)))
        no = "mla_prep: the query's latent is no row of its activation, or no multiple "
             "of 4";
    if (!no && !rotates(&p->rope, 0, p->kv.r))
        no = "mla_prep: the rotated dims are not the key";
    if (!no && p->fresh)
        no = "cuda: --prefill-kv";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int mla_prep_run(struct mc_stream *s, const struct mc_mla_prep_p *p)
{
    uint32_t smem = 4 * (uint32_t)(16 + p->kv.c + p->kv.r);

    return mc_cu_launch(s, MC_CU_k_mla_prep, (struct mc_cu_grid){p->rows.cap, 1, smem},
                        p);
}
MC_CU_OP(mla_prep);

/* ---- products of heads ------------------------------------------------------------- */

static const char *heads_refuse(const struct mc_ws *w, int32_t h, int32_t n, int32_t k)
{
    if (w->w.layout != MC_W_BF16)
        return "cuda: the heads' matrices are bf16";
    if (h < 1 || w->n < h || w->w.n != n || w->w.k != k)
        return "cuda: not a matrix a head, or of other sizes than the head's";
    return NULL;
}

/* Panels of a head's matrix, as many to a block as there are groups of warps, for each
 * head and 64 rows. */
static struct mc_cu_grid heads_grid(const struct mc_w *w, int32_t h, int32_t cap)
{
    int32_t units = (w->k + MC_CU_TILE - 1) / MC_CU_TILE;
    int32_t of = units > 4 ? 8 : units > 2 ? 4 : units; /* mc_warps_of */
    uint32_t tokens = cap <= 8 ? 8 : cap <= 16 ? 16 : cap <= 32 ? 32 : MC_CU_CHUNK;

    return (struct mc_cu_grid){mc_cu_blocks(w->n, 16 * WARPS / of),
                               h * mc_cu_blocks(cap, MC_CU_CHUNK), 8 * 20 * 4 * tokens};
}

static int mla_q_need(const struct mc_mla_q_p *p, struct mc_need *n, const char **why)
{
    int32_t r = p->rope.dim, tail = MC_CU_TILES(p->nope) * MC_CU_TILE - p->nope;
    const char *no = NULL;

    (void)n;
    if (p->nope < 0 || r < 0 || !rotates(&p->rope, p->nope, r) || (p->nope + r) % 8 != 0)
        no = "mla_q: the rotated dims are not the end of a head, or it is no multiple of "
             "8";
    if (!no && p->w_uk.n > 0)
        no = heads_refuse(&p->w_uk, p->h, p->c, p->nope);
    if (!no && p->w_uk.n > 0 && tail > r)
        no = "cuda: mla_q: a tile of 32 columns reaches into the next head";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int mla_q_run(struct mc_stream *s, const struct mc_mla_q_p *p)
{
    struct mc_cu_grid g = {0, p->h * mc_cu_blocks(p->rows.cap, MC_CU_CHUNK), 0};

    if (p->w_uk.n > 0)
        g = heads_grid(&p->w_uk.w, p->h, p->rows.cap);
    g.x++; /* the block that rotates */
    return mc_cu_launch(s, MC_CU_k_mla_q, g, p);
}
MC_CU_OP(mla_q);

static int mla_out_need(const struct mc_mla_out_p *p, struct mc_need *n, const char **why)
{
    const char *no = mc_cu_act_refuse(&p->act);

    (void)n;
    if (!no && p->act.layout != MC_A_BF16)
        no = "cuda: mla_out: activations are bf16";
    if (!no)
        no = heads_refuse(&p->w_uv, p->h, p->v, p->c);
    if (!no && p->act.k != p->h * p->v)
        no = "mla_out: columns that are not h*v";
    if (!no && p->c % 32 != 0)
        no = "cuda: latents in multiples of 32";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int mla_out_run(struct mc_stream *s, const struct mc_mla_out_p *p)
{
    return mc_cu_launch(s, MC_CU_k_mla_out, heads_grid(&p->w_uv.w, p->h, p->rows.cap), p);
}
MC_CU_OP(mla_out);

/* ---- mla_attn ---------------------------------------------------------------------- */

static bool has_body(const struct mc_kv *kv)
{
    return (kv->c == 512 && kv->r == 64) || (kv->c == 128 && kv->r == 32);
}

static int mla_attn_need(const struct mc_mla_attn_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)n;
    if (!no && p->fresh)
        no = MC_CU_NO_FRESH;
    if (!no && !has_body(&p->kv))
        no = "cuda: latents are 512 + 64 or 128 + 32";
    if (!no && (p->h < 1 || p->n_part < 1 || p->first < 0 || (p->idx && p->topk < 1)))
        no = "mla_attn: h, n_part or topk below 1, or positions below 0";
    return no ? mc_cu_refuse(why, no) : 0;
}

/* tile of mla_attn.cuh, of m rows */
static uint32_t attn_bytes(const struct mc_kv *kv, uint32_t m)
{
    uint32_t pitch = 2 * (uint32_t)(kv->c + kv->r + 8);
    uint32_t raw = (uint32_t)mc_mla_token_bytes(kv->layout, kv->c, kv->r);
    uint32_t stages = kv->layout == MC_KV_BF16 ? 32 * pitch
                                               : 2 * 32 * ((raw + 15) / 16 * 16);

    return m * pitch + 32 * pitch + stages + 2 * m * (36 * 4 + 40 * 2) +
           4 * (m + 2 * m + 8 + 3 * m);
}

/* The body of 16 rows; or the one of 64, for more heads than two of those serve, where its
 * shared memory is there, and for sharded tokens (which sm_80 has no room for: the launch
 * fails). */
static enum mc_kernel_id attn_body(const struct mc_kv *kv, bool of_64)
{
#define BODIES(kv)                                                              \
    {                                                                           \
        {MC_CU_k_mla_attn_##kv##_128_32, MC_CU_k_mla_attn_##kv##_512_64},       \
            {MC_CU_k_mla_attn64_##kv##_128_32, MC_CU_k_mla_attn64_##kv##_512_64} \
    }
    static const enum mc_kernel_id bf16[2][2] = BODIES(bf16), plain[2][2] = BODIES(plain),
                                   f656[2][2] = BODIES(656);
#undef BODIES

    return (kv->layout == MC_KV_BF16        ? bf16
            : kv->layout == MC_KV_FP8_PLAIN ? plain
                                            : f656)[of_64][kv->c == 512];
}

static int mla_attn_run(struct mc_stream *s, const struct mc_mla_attn_p *p)
{
    bool of_64 = p->kv.n_shard > 1 ||
                 (p->h > 32 && attn_bytes(&p->kv, 64) <= mc_cu_smem(s));
    int32_t m = of_64 ? 64 : 16;
    struct mc_cu_mla_attn k = {*p, p->idx || p->h >= m ? 1 : m / p->h, mc_cu_fault(s)};
    int64_t x = (int64_t)p->n_part * p->cap_decode + mc_cu_blocks(p->rows.cap, k.n_tok);

    return mc_cu_launch(s, attn_body(&p->kv, of_64),
                        (struct mc_cu_grid){x, mc_cu_blocks(p->h, m),
                                            attn_bytes(&p->kv, (uint32_t)m)},
                        &k);
}
MC_CU_OP(mla_attn);

/* ---- the indexer ------------------------------------------------------------------- */

static const char *index_refuse(const struct mc_kv *kv, int32_t index, int32_t hi)
{
    const char *no = latent_refuse(kv);

    if (!no && (index < 0 || index >= kv->n_index || hi < 1 || hi > 128))
        no = "the pool has no such index, or the index no head or above 128";
    if (!no && (kv->index_d % 64 != 0 || kv->index_d > 256))
        no = "cuda: an index head is a multiple of 64, up to 256";
    return no;
}

static int dsa_prep_need(const struct mc_dsa_prep_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);

    (void)n;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.off != 0 || p->rope.dim < 0 ||
                p->rope.dim > p->kv.index_d))
        no = "dsa_prep: rotated dims are odd or not the first of a head";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int dsa_prep_run(struct mc_stream *s, const struct mc_dsa_prep_p *p)
{
    uint32_t smem = 4 * (uint32_t)(p->rope.dim + WARPS * p->kv.index_d);

    return mc_cu_launch(s, MC_CU_k_dsa_prep, (struct mc_cu_grid){p->rows.cap, 1, smem},
                        p);
}
MC_CU_OP(dsa_prep);

/* Segments of 4 topk positions, in whole pages; a block each for a decode bucket's rows.
 */
static struct mc_cu_dsa_topk topk_of(const struct mc_dsa_topk_p *p)
{
    struct mc_cu_dsa_topk k = {.p = *p,
                               .seg = (4 * p->topk + MC_PAGE - 1) / MC_PAGE * MC_PAGE};
    int64_t n = mc_cu_blocks(p->context, k.seg);

    k.n_part = p->rows.cap > MC_CU_CHUNK || n > 1024 ? 1 : (int32_t)n;
    k.score = p->scratch;
    k.pos = (int32_t *)p->scratch + (int64_t)p->rows.cap * k.n_part * p->topk;
    return k;
}

static int dsa_topk_need(const struct mc_dsa_topk_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);
    struct mc_cu_dsa_topk k;

    if (!no && (p->topk < 1 || p->topk > 4096 || p->first < 0 || p->context < 1))
        no = "dsa_topk: topk below 1 or above 4096, positions below 0, or no context";
    if (no)
        return mc_cu_refuse(why, no);
    k = topk_of(p);
    if (k.n_part > 1)
        n->scratch = 8 * (size_t)p->rows.cap * (size_t)k.n_part * (size_t)p->topk;
    return 0;
}

static int dsa_topk_run(struct mc_stream *s, const struct mc_dsa_topk_p *p)
{
    struct mc_cu_dsa_topk k = topk_of(p);
    int32_t heads = (p->hi + 15) / 16 * 16;
    /* topk_mem of dsa.cu, with room for vocab.cuh's */
    uint32_t smem = MC_CU_VOCAB_SMEM + 64 + 4 * (uint32_t)(2 * p->topk + k.seg) +
                    (uint32_t)(heads * (p->kv.index_d + 16 + 4));
    int rc = mc_cu_launch(s, MC_CU_k_dsa_topk,
                          (struct mc_cu_grid){p->rows.cap, k.n_part, smem}, &k);

    if (rc == 0 && k.n_part > 1)
        rc = mc_cu_launch(s, MC_CU_k_dsa_merge, (struct mc_cu_grid){p->rows.cap, 1, smem},
                          &k);
    return rc;
}
MC_CU_OP(dsa_topk);

/* ---- mtp_in ------------------------------------------------------------------------ */

static int mtp_in_need(const struct mc_mtp_in_p *p, struct mc_need *n, const char **why)
{
    const char *no = mc_cu_act_refuse(&p->act);

    (void)n;
    if (!no && (p->act.k != 2 * p->h || p->h % 4 != 0))
        no = "mtp_in: columns that are not twice the hidden's, or no multiple of 4";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int mtp_in_run(struct mc_stream *s, const struct mc_mtp_in_p *p)
{
    return mc_cu_launch(s, MC_CU_k_mtp_in, (struct mc_cu_grid){p->cap, 1, 64}, p);
}
MC_CU_OP(mtp_in);

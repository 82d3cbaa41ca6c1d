/* launch.c - need and run of every operation on CUDA: what is refused, and with which
 * grid its kernel is launched. Grids come from capacities; blocks beyond the live counts
 * end at once. Owns nothing. THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

#define ANY(name)                                                            \
    static int name##_need(const struct mc_##name##_p *p, struct mc_need *n, \
                           const char **why)                                 \
    {                                                                        \
        (void)p;                                                             \
        (void)n;                                                             \
        (void)why;                                                           \
        return 0;                                                            \
    }

const char *mc_cu_act_refuse(const struct mc_act *a)
{
    if (a->layout != MC_A_BF16 && a->layout != MC_A_E4M3)
        return "cuda: activations are bf16 or e4m3";
    if (a->k % 32 != 0)
        return "cuda: activations need columns in multiples of 32";
    return NULL;
}

/* Pages move 16 bytes at a time. */
static const char *pool_refuse(const struct mc_kv *kv)
{
    if (kv->layout == MC_KV_F32)
        return "cuda: KV in f32 is for ref and cpu";
    if (kv->page_stride % 16 != 0 || kv->layer_stride % 16 != 0)
        return "cuda: page strides are multiples of 16";
    return mc_pool_refuse(kv);
}

static int pool_need(const struct mc_kv *kv, const char **why)
{
    const char *no = pool_refuse(kv);

    return no ? mc_cu_refuse(why, no) : 0;
}

/* ---- pages, slots ------------------------------------------------------------------ */

/* Slices of a page: 16 KB a block or so. */
static int64_t slices(const struct mc_kv *kv)
{
    int64_t n = mc_cu_blocks(kv->page_stride, 16 << 10);

    return n > 64 ? 64 : n;
}

static int page_init_need(const struct mc_page_init_p *p, struct mc_need *n,
                          const char **why)
{
    (void)n;
    return pool_need(&p->kv, why);
}

static int page_init_run(struct mc_stream *s, const struct mc_page_init_p *p)
{
    struct mc_cu_page_init k = {*p, mc_cu_fault(s)};

    if (p->cap < 1)
        return 0;
    return mc_cu_launch(s, MC_CU_k_page_init,
                        (struct mc_cu_grid){p->cap, slices(&p->kv), 0}, &k);
}
MC_CU_OP(page_init);

static int page_copy_need(const struct mc_page_copy_p *p, struct mc_need *n,
                          const char **why)
{
    (void)n;
    return pool_need(&p->kv, why);
}

static int page_copy_run(struct mc_stream *s, const struct mc_page_copy_p *p)
{
    struct mc_cu_page_copy k = {*p, mc_cu_fault(s)};

    if (p->n < 1)
        return 0;
    return mc_cu_launch(s, MC_CU_k_page_copy,
                        (struct mc_cu_grid){p->n, slices(&p->kv), 0}, &k);
}
MC_CU_OP(page_copy);

static int page_check_need(const struct mc_page_check_p *p, struct mc_need *n,
                           const char **why)
{
    (void)n;
    if (p->kv.n_shard > 1)
        return mc_cu_refuse(why, "cuda: page_check: tokens are not sharded over ranks");
    return pool_need(&p->kv, why);
}

static int page_check_run(struct mc_stream *s, const struct mc_page_check_p *p)
{
    return mc_cu_launch(s, MC_CU_k_page_check, (struct mc_cu_grid){p->rows.cap_seq, 1, 0},
                        p);
}
MC_CU_OP(page_check);

static int table_apply_need(const struct mc_table_apply_p *p, struct mc_need *n,
                            const char **why)
{
    (void)n;
    if (p->rows_bytes % 4 != 0)
        return mc_cu_refuse(why, "table_apply: rows in words of 4 bytes");
    return 0;
}

static int table_apply_run(struct mc_stream *s, const struct mc_table_apply_p *p)
{
    struct mc_cu_table_apply k = {*p, mc_cu_fault(s)};

    return mc_cu_launch(s, MC_CU_k_table_apply, (struct mc_cu_grid){1, 1, 0}, &k);
}
MC_CU_OP(table_apply);

static int verify_need(const struct mc_verify_p *p, struct mc_need *n, const char **why)
{
    (void)n;
    return p->out && p->accepted && p->next
               ? 0
               : mc_cu_refuse(why, "verify: nothing to read or no place for results");
}

static int verify_run(struct mc_stream *s, const struct mc_verify_p *p)
{
    return mc_cu_launch(s, MC_CU_k_verify, (struct mc_cu_grid){1, 1, 0}, p);
}
MC_CU_OP(verify);

ANY(commit)
static int commit_run(struct mc_stream *s, const struct mc_commit_p *p)
{
    return mc_cu_launch(s, MC_CU_k_commit, (struct mc_cu_grid){1, 1, 0}, p);
}
MC_CU_OP(commit);

/* ---- rows -------------------------------------------------------------------------- */

static const char *w_refuse(const struct mc_w *w)
{
    if (w->layout != MC_W_BF16 && w->layout != MC_W_E4M3 && w->layout != MC_W_I4 &&
        w->layout != MC_W_NVFP4)
        return "cuda: weights are bf16, e4m3, int4 or nvfp4";
    return NULL;
}

static int embed_need(const struct mc_embed_p *p, struct mc_need *n, const char **why)
{
    const char *no = w_refuse(&p->w);

    (void)n;
    return no ? mc_cu_refuse(why, no) : 0;
}

static int embed_run(struct mc_stream *s, const struct mc_embed_p *p)
{
    return mc_cu_launch(s, MC_CU_k_embed, (struct mc_cu_grid){p->rows.cap, 1, 0}, p);
}
MC_CU_OP(embed);

static int quant_need(const struct mc_quant_p *p, struct mc_need *n, const char **why)
{
    const char *no = mc_cu_act_refuse(&p->act);

    (void)n;
    return no ? mc_cu_refuse(why, no) : 0;
}

static int quant_run(struct mc_stream *s, const struct mc_quant_p *p)
{
    return mc_cu_launch(s, MC_CU_k_quant, (struct mc_cu_grid){p->cap, 1, 0}, p);
}
MC_CU_OP(quant);

static int gather_rows_need(const struct mc_gather_rows_p *p, struct mc_need *n,
                            const char **why)
{
    (void)n;
    return p->h % 8 != 0 ? mc_cu_refuse(why, "gather_rows: columns in multiples of 8")
                         : 0;
}

static int gather_rows_run(struct mc_stream *s, const struct mc_gather_rows_p *p)
{
    return mc_cu_launch(s, MC_CU_k_gather_rows,
                        (struct mc_cu_grid){p->rows.cap_out, 1, 0}, p);
}
MC_CU_OP(gather_rows);

/* ---- products ---------------------------------------------------------------------- */

/* Four kernels a format: linear of one panel a block, of two; glu of few rows, of many.
 */
struct family {
    enum mc_kernel_id one, two, glu, glu2;
};

static const struct family *family_of(const struct mc_w *w, const struct mc_act *a)
{
#define FAMILY(f)                                                                      \
    {                                                                                  \
        MC_CU_k_linear_##f, MC_CU_k_linear2_##f, MC_CU_k_glu_##f, MC_CU_k_glu2_##f     \
    }
    static const struct family bf16 = FAMILY(bf16), e4m3 = FAMILY(e4m3), i4 = FAMILY(i4),
                               nvfp4 = FAMILY(nvfp4), w8a8 = FAMILY(w8a8);
#undef FAMILY

    switch (w->layout) {
    case MC_W_BF16:
        return a->layout == MC_A_BF16 ? &bf16 : NULL;
    case MC_W_E4M3:
        return a->layout == MC_A_BF16 ? &e4m3 : a->layout == MC_A_E4M3 ? &w8a8 : NULL;
    case MC_W_I4:
        return a->layout == MC_A_BF16 ? &i4 : NULL;
    case MC_W_NVFP4:
        return a->layout == MC_A_BF16 ? &nvfp4 : NULL;
    default:
        return NULL;
    }
}

const char *mc_cu_product_refuse(const struct mc_w *w, const struct mc_act *a)
{
    if (mc_cu_act_refuse(a))
        return mc_cu_act_refuse(a);
    if (!family_of(w, a))
        return "cuda: no kernel for these weights and activations";
    if (w->k != a->k)
        return "the weight's columns are not the activation's";
    return NULL;
}

/* f32 [8 warps][tokens][20], and [tokens][16] for glu */
static uint32_t sums_bytes(int32_t cap)
{
    return (8 * 20 + 16) * 4 *
           (cap <= 8    ? 8
            : cap <= 16 ? 16
            : cap <= 32 ? 32
                        : MC_CU_CHUNK);
}

static int linear_need(const struct mc_linear_p *p, struct mc_need *n, const char **why)
{
    (void)n;
    if (p->n_w < 1 || p->n_w > MC_MAX_FAN)
        return mc_cu_refuse(why, "linear: 1 to 4 matrices share an input");
    if (p->y_dt != MC_F32 && p->y_dt != MC_BF16)
        return mc_cu_refuse(why, "linear: the output is neither f32 nor bf16");
    for (int32_t i = 0; i < p->n_w; i++) {
        const char *no = mc_cu_product_refuse(&p->w[i], &p->act);

        if (no)
            return mc_cu_refuse(why, no);
    }
    return 0;
}

/* Neighbours of one format share a launch. Two panels a block halve what is read of the
 * activations; with few rows more blocks matter more. */
static int linear_run(struct mc_stream *s, const struct mc_linear_p *p)
{
    int32_t per = p->cap <= 16 ? 16 : 32, i, j;

    for (i = 0; i < p->n_w; i = j) {
        const struct family *f = family_of(&p->w[i], &p->act);
        struct mc_linear_p part = *p;
        int64_t x = 0;
        int rc;

        for (j = i; j < p->n_w && family_of(&p->w[j], &p->act) == f; j++) {
            part.w[j - i] = p->w[j];
            part.bias[j - i] = p->bias[j];
            part.y[j - i] = p->y[j];
            part.pitch[j - i] = p->pitch[j];
            x += mc_cu_blocks(p->w[j].n, per);
        }
        part.n_w = j - i;
        rc = mc_cu_launch(s, per == 16 ? f->one : f->two,
                          (struct mc_cu_grid){x, mc_cu_blocks(p->cap, MC_CU_CHUNK),
                                              sums_bytes(p->cap)},
                          &part);
        if (rc < 0)
            return rc;
    }
    return 0;
}
MC_CU_OP(linear);

static int glu_need(const struct mc_glu_p *p, struct mc_need *n, const char **why)
{
    const char *no = mc_cu_product_refuse(&p->gate, &p->act);

    if (!no)
        no = mc_cu_act_refuse(&p->out);
    if (!no && (p->gate.layout != p->up.layout || p->gate.k != p->up.k))
        no = "glu: gate and up are in different formats";
    if (!no && (p->gate.n != p->out.k || p->up.n != p->out.k))
        no = "glu: the rows of gate and up are not the output's columns";
    if (no)
        return mc_cu_refuse(why, no);
    if (p->out.layout == MC_A_E4M3)
        n->scratch = (size_t)p->cap * (size_t)p->out.k * sizeof(float);
    return 0;
}

static int glu_run(struct mc_stream *s, const struct mc_glu_p *p)
{
    const struct family *f = family_of(&p->gate, &p->act);
    struct mc_cu_grid g = {mc_cu_blocks(p->out.k, 16), mc_cu_blocks(p->cap, MC_CU_CHUNK),
                           sums_bytes(p->cap)};
    int rc = mc_cu_launch(s, p->cap <= 16 ? f->glu : f->glu2, g, p);

    if (rc == 0 && p->out.layout == MC_A_E4M3)
        rc = mc_cu_launch(s, MC_CU_k_glu_quant, (struct mc_cu_grid){p->cap, 1, 0}, p);
    return rc;
}
MC_CU_OP(glu);

/* ---- attention --------------------------------------------------------------------- */

static const char *heads_refuse(const struct mc_kv *kv, int32_t h)
{
    if (kv->hk < 1 || h < 1 || h % kv->hk != 0)
        return "attention: query heads are no multiple of kv heads";
    if (kv->d != 32 && kv->d != 48 && kv->d != 64 && kv->d != 128)
        return "cuda: head dims are 32, 48, 64 or 128";
    return pool_refuse(kv) ? pool_refuse(kv) : mc_kv_refuse(kv);
}

static int gqa_prep_need(const struct mc_gqa_prep_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)n;
    if (!no && p->fresh)
        no = MC_CU_NO_FRESH;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.off < 0 || p->rope.dim < 0 ||
                p->rope.off + p->rope.dim > p->kv.d))
        no = "gqa_prep: rotated dims are odd or outside of the head";
    if (!no && p->fresh)
        no = "cuda: --prefill-kv";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int gqa_prep_run(struct mc_stream *s, const struct mc_gqa_prep_p *p)
{
    uint32_t smem = 4 * (uint32_t)(p->rope.dim + 8 * p->kv.d);

    return mc_cu_launch(s, MC_CU_k_gqa_prep, (struct mc_cu_grid){p->rows.cap, 1, smem},
                        p);
}
MC_CU_OP(gqa_prep);

static int gqa_attn_need(const struct mc_gqa_attn_p *p, struct mc_need *n,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)n;
    if (!no && p->fresh)
        no = MC_CU_NO_FRESH;
    if (!no && p->n_part < 1)
        no = "gqa_attn: n_part below 1";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int gqa_attn_run(struct mc_stream *s, const struct mc_gqa_attn_p *p)
{
    int32_t d = p->kv.d, group = p->h / p->kv.hk;
    int32_t at = d == 32 ? 0 : d == 48 ? 1 : d == 64 ? 2 : 3;
    struct mc_cu_gqa_attn k = {*p, group, group > 16 ? 1 : 16 / group, mc_cu_fault(s)};
    /* shape<D>::BYTES of attn.cuh */
    uint32_t q = 32 * (uint32_t)((d + 31) / 64 * 64 + 32);
    uint32_t smem = q + 4 * 64 * ((uint32_t)d + 8) + 5 * 16 * 8 + 16 * 12;
    int64_t x = (int64_t)p->n_part * p->cap_decode + mc_cu_blocks(p->rows.cap, k.n_tok);

    return mc_cu_launch(
        s,
        (enum mc_kernel_id)((p->kv.layout == MC_KV_FP8 ? MC_CU_k_gqa_attn_fp8_32
                                                       : MC_CU_k_gqa_attn_bf16_32) + at),
        (struct mc_cu_grid){x, p->kv.hk * mc_cu_blocks(group, 16), smem}, &k);
}
MC_CU_OP(gqa_attn);

static int attn_merge_need(const struct mc_attn_merge_p *p, struct mc_need *n,
                           const char **why)
{
    bool act = !p->out && !p->fold;
    const char *no = act ? mc_cu_act_refuse(&p->act) : NULL;

    (void)n;
    if (!no && ((act && p->act.k != p->h * p->d) || p->d % 4 != 0))
        no = "attn_merge: columns that are not h*d, or a head dim that is no multiple of "
             "4";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int attn_merge_run(struct mc_stream *s, const struct mc_attn_merge_p *p)
{
    return mc_cu_launch(s, MC_CU_k_attn_merge,
                        (struct mc_cu_grid){p->rows.cap, mc_cu_blocks(p->h * p->d, 512),
                                            0},
                        p);
}
MC_CU_OP(attn_merge);

/* ---- logits ------------------------------------------------------------------------ */

static const char *vocab_refuse(int32_t vocab, int32_t n_real, int32_t pitch)
{
    if (vocab < 1 || n_real < 1 || n_real > vocab || pitch < vocab)
        return "n_real <= vocab <= pitch does not hold";
    if (vocab > 1 << 19)
        return "cuda: vocabularies up to 524,288"; /* sums of 2^44ths stay below 2^63 */
    return NULL;
}

static int chain_need(const struct mc_chain_p *p, struct mc_need *n, const char **why)
{
    const char *no = vocab_refuse(p->vocab, p->n_real, p->pitch);

    (void)n;
    return no ? mc_cu_refuse(why, no) : 0;
}

static int chain_run(struct mc_stream *s, const struct mc_chain_p *p)
{
    return mc_cu_launch(s, MC_CU_k_chain,
                        (struct mc_cu_grid){p->rows.cap_out, 1, MC_CU_VOCAB_SMEM}, p);
}
MC_CU_OP(chain);

static int sample_need(const struct mc_sample_p *p, struct mc_need *n, const char **why)
{
    const char *no = vocab_refuse(p->vocab, p->n_real, p->pitch);

    (void)n;
    return no ? mc_cu_refuse(why, no) : 0;
}

static int sample_run(struct mc_stream *s, const struct mc_sample_p *p)
{
    return mc_cu_launch(s, MC_CU_k_sample,
                        (struct mc_cu_grid){p->rows.cap_out, 1, MC_CU_VOCAB_SMEM}, p);
}
MC_CU_OP(sample);

ANY(nll)
static int nll_run(struct mc_stream *s, const struct mc_nll_p *p)
{
    return mc_cu_launch(s, MC_CU_k_nll, (struct mc_cu_grid){p->cap, 1, MC_CU_VOCAB_SMEM},
                        p);
}
MC_CU_OP(nll);

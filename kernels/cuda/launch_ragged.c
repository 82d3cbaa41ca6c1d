/* launch_ragged.c - need and run of attn_ragged on CUDA: rounds of three launches; see
 * launch.c and ragged.cu. Owns nothing. THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/params.h"
#include "kernels/host/kv.h"

enum {
    TOKENS = 8192, /* latents of a round, of all chunks: 42 MB of scratch at 8 heads */
    TILE = 64,
};

/* Chunks that a step may have, and the positions a round takes of each. */
static int32_t chunks(const struct mc_attn_ragged_p *p)
{
    return p->long_rows < 1 ? 1 : (p->rows.cap + p->long_rows - 1) / p->long_rows;
}

static int32_t segment(const struct mc_attn_ragged_p *p)
{
    int32_t n = TOKENS / chunks(p) / MC_SPLIT * MC_SPLIT, context = p->kv.pitch * MC_PAGE;

    n = n < MC_SPLIT ? MC_SPLIT : n;
    return n < context ? n : context;
}

/* The next n bytes behind at; base may be NULL, when only their number is asked. */
static void *take(uint8_t *base, size_t *at, size_t n)
{
    void *p = base ? base + *at : NULL;

    *at += (n + 255) / 256 * 256;
    return p;
}

/* Where a round's parts lie in the scratch, and how many bytes that takes. */
static struct mc_cu_attn_ragged parts(const struct mc_attn_ragged_p *p, size_t *bytes)
{
    struct mc_cu_attn_ragged k = {.p = *p, .seg = segment(p)};
    size_t n = (size_t)chunks(p) * (size_t)k.seg, at = 0;
    size_t heads = (size_t)p->rows.cap * (size_t)p->h;
    uint8_t *base = p->scratch;

    k.n_live = take(base, &at, sizeof *k.n_live);
    k.latent = take(base, &at, n * (size_t)p->kv.c * 2);
    k.key = take(base, &at, n * (size_t)p->kv.r * 2);
    k.expanded = take(base, &at, n * (size_t)p->kv_b.n * 2);
    k.o = take(base, &at, heads * (size_t)p->v * 4);
    k.ml = take(base, &at, heads * 8);
    *bytes = at;
    return k;
}

static struct mc_linear_p expansion(const struct mc_cu_attn_ragged *k)
{
    const struct mc_attn_ragged_p *p = &k->p;

    return (struct mc_linear_p){
        .n_live = k->n_live,
        .cap = chunks(p) * k->seg,
        .n_w = 1,
        .act = {.x = k->latent, .k = p->kv.c, .layout = MC_A_BF16},
        .w = {p->kv_b},
        .y = {k->expanded},
        .pitch = {p->kv_b.n},
        .y_dt = MC_BF16};
}

static int attn_ragged_need(const struct mc_attn_ragged_p *p, struct mc_need *n,
                            const char **why)
{
    const char *no = mc_mla_refuse(&p->kv);
    int32_t d = p->nope + p->kv.r;
    struct mc_linear_p product;
    struct mc_cu_attn_ragged k;

    if (!no && p->kv.layout == MC_KV_F32)
        no = "cuda: KV in f32 is for ref and cpu";
    if (!no && p->kv.n_shard > 1)
        no = "attn_ragged: tokens that are sharded over ranks";
    if (!no && !(d == 192 && p->v == 128) && !(d == 64 && p->v == 32))
        no = "cuda: attn_ragged: heads of 192 and 128 values, or of 64 and 32";
    if (!no && (p->nope % 8 != 0 || p->kv.r % 8 != 0 || p->kv.c % 4 != 0))
        no = "cuda: attn_ragged: nope and r in multiples of 8, c of 4";
    if (!no && (p->h < 1 || p->kv_b.n != p->h * (p->nope + p->v)))
        no = "attn_ragged: kv_b has not nope + v rows a head";
    if (!no && (p->act.layout != MC_A_BF16 || p->act.k != p->h * p->v))
        no = "cuda: attn_ragged: its activation is not bf16 of h*v columns";
    if (!no && (p->first < 0 || p->long_rows < 0))
        no = "attn_ragged: positions or rows below 0";
    if (no)
        return mc_cu_refuse(why, no);
    k = parts(p, &n->scratch);
    product = expansion(&k);
    return mc_cu_linear.need(&product, &(struct mc_need){0}, why);
}

static int attn_ragged_run(struct mc_stream *s, const struct mc_attn_ragged_p *p)
{
    bool small = p->v == 32;
    size_t d = (size_t)(p->nope + p->kv.r), bytes;
    uint32_t smem = (uint32_t)(2 * TILE * (3 * (d + 8) + 2 * (size_t)(p->v + 8)));
    struct mc_cu_attn_ragged k = parts(p, &bytes);
    int32_t n = chunks(p) * k.seg;
    int rc = 0;

    for (; rc == 0 && k.round * k.seg < p->kv.pitch * MC_PAGE; k.round++) {
        struct mc_linear_p product = expansion(&k);

        rc = mc_cu_launch(s, MC_CU_k_ragged_latents, (struct mc_cu_grid){n / TILE, 1, 0},
                          &k);
        if (rc == 0)
            rc = mc_cu_linear.run(s, &product);
        if (rc == 0)
            rc = mc_cu_launch(
                s, small ? MC_CU_k_ragged_attn_64_32 : MC_CU_k_ragged_attn_192_128,
                (struct mc_cu_grid){mc_cu_blocks(p->rows.cap, TILE), p->h, smem}, &k);
    }
    return rc;
}
MC_CU_OP(attn_ragged);

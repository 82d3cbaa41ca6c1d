/* launch_moe.c - need and run of route and moe on CUDA; see launch.c. Owns nothing.
 * THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"

enum { MAX_E = 1024, WARPS = 8 };

static int32_t min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- route ------------------------------------------------------------------------- */

/* The logits, as a linear into scratch. */
static struct mc_linear_p logits_of(const struct mc_route_p *p)
{
    return (struct mc_linear_p){
        .n_live = p->n_live,
        .cap = p->cap,
        .n_w = 1,
        .act = {.x = (void *)(uintptr_t)p->x, .k = p->w.k, .layout = MC_A_BF16},
        .w = {p->w},
        .y = {p->scratch},
        .pitch = {p->w.n},
        .y_dt = MC_F32};
}

static int route_need(const struct mc_route_p *p, struct mc_need *n, const char **why)
{
    struct mc_linear_p logits = logits_of(p);
    int32_t e = p->w.n;
    int rc = mc_cu_linear.need(&logits, n, why);

    if (rc < 0)
        return rc;
    if (e > MAX_E || p->top_k < 1 || p->top_k > e || p->top_k > 32)
        return mc_cu_refuse(
            why, "cuda: route: 1 <= top_k <= experts <= 1024 does not hold, or "
                 "top_k is above 32");
    if (p->n_group > 32 ||
        (p->n_group > 1 && (e % p->n_group != 0 || p->topk_group < 1 ||
                            p->topk_group > p->n_group ||
                            p->topk_group * (e / p->n_group) < p->top_k)))
        return mc_cu_refuse(
            why, "route: groups that do not divide the experts, are too few or "
                 "above 32");
    n->scratch = (size_t)p->cap * (size_t)e * sizeof(float);
    return 0;
}

static int route_run(struct mc_stream *s, const struct mc_route_p *p)
{
    struct mc_linear_p logits = logits_of(p);
    struct mc_cu_grid rows = {mc_cu_blocks(p->cap, WARPS), 1,
                              WARPS * 2 * 4 * (uint32_t)p->w.n};
    struct mc_cu_grid experts = {mc_cu_blocks(p->w.n + 1, WARPS), 1, 0};
    int rc = mc_cu_linear.run(s, &logits);

    if (rc == 0)
        rc = mc_cu_launch(s, MC_CU_k_route, rows, p);
    return rc < 0 ? rc : mc_cu_launch(s, MC_CU_k_route_lists, experts, p);
}
MC_CU_OP(route);

/* ---- moe --------------------------------------------------------------------------- */

/* Of up to 64 rows, of more. */
struct family {
    enum mc_kernel_id glu[2], down[2];
};

static const struct family *family_of(uint16_t layout)
{
#define FAMILY(f)                                                                        \
    {                                                                                    \
        {MC_CU_k_moe_glu_##f, MC_CU_k_moe_glu2_##f}, {MC_CU_k_moe_down_##f,              \
                                                      MC_CU_k_moe_down2_##f}             \
    }
    static const struct family bf16 = FAMILY(bf16), e4m3 = FAMILY(e4m3), i4 = FAMILY(i4),
                               nvfp4 = FAMILY(nvfp4);
#undef FAMILY

    return layout == MC_W_BF16   ? &bf16
           : layout == MC_W_E4M3 ? &e4m3
           : layout == MC_W_I4   ? &i4
                                 : &nvfp4;
}

static const char *moe_refuse(const struct mc_moe_p *p)
{
    const char *no = mc_cu_product_refuse(&p->gate.w, &p->act);

    if (!no)
        no = mc_cu_product_refuse(&p->up.w, &p->act);
    if (!no)
        no = mc_cu_product_refuse(&p->down.w, &p->mid);
    if (no)
        return no;
    if (p->act.layout != MC_A_BF16 || p->mid.layout != MC_A_BF16)
        return "cuda: moe: activations are bf16";
    if (p->gate.w.layout != p->up.w.layout)
        return "moe: gate and up are in different formats";
    if (p->gate.w.n != p->mid.k || p->up.w.n != p->mid.k)
        return "moe: the rows of gate and up are not the columns of down";
    if (p->down.w.n % 4 != 0)
        return "cuda: moe: columns in multiples of 4";
    if (p->top_k < 1 || p->gate.n > MAX_E || p->up.n != p->gate.n ||
        p->down.n != p->gate.n)
        return "moe: top_k below 1, experts above 1024, or not as many of each matrix";
    return NULL;
}

static int moe_need(const struct mc_moe_p *p, struct mc_need *n, const char **why)
{
    const char *no = moe_refuse(p);

    n->scratch = (size_t)p->cap * (size_t)p->top_k * (size_t)p->down.w.n * sizeof(float);
    return no ? mc_cu_refuse(why, no) : 0;
}

/* f32 [8 warps][tokens][20], and [tokens][16] for glu; see linear.cuh. */
static uint32_t sums_bytes(int32_t tokens)
{
    return (8 * 20 + 16) * 4 * (uint32_t)tokens;
}

static int moe_run(struct mc_stream *s, const struct mc_moe_p *p)
{
    int many = p->cap > MC_CU_CHUNK;
    int32_t each = many ? MC_CU_CHUNK : MC_CU_FEW, places = p->cap * p->top_k;
    int32_t unit = p->down.w.layout == MC_W_I4 || p->down.w.layout == MC_W_NVFP4 ? 64
                                                                                 : 32;
    int32_t units = (p->mid.k + unit - 1) / unit;
    int32_t warps = units > 4 ? 8 : units > 2 ? 4 : units; /* mc_warps_of */
    /* every expert may have an incomplete piece */
    int64_t y = min(p->gate.n, places) + places / each;
    int rc = mc_cu_launch(s, family_of(p->gate.w.layout)->glu[many],
                          (struct mc_cu_grid){mc_cu_blocks(p->mid.k, 16), y,
                                              sums_bytes(p->cap <= 8 ? 8 : each)},
                          p);

    if (rc == 0)
        rc = mc_cu_launch(s, family_of(p->down.w.layout)->down[many],
                          (struct mc_cu_grid){mc_cu_blocks(p->down.w.n,
                                                           32 * WARPS / warps),
                                              y, sums_bytes(p->cap <= 8 ? 8 : each)},
                          p);
    return rc < 0
               ? rc
               : mc_cu_launch(s, MC_CU_k_moe_sum, (struct mc_cu_grid){p->cap, 1, 0}, p);
}
MC_CU_OP(moe);

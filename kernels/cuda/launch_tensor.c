/* launch_tensor.c - need and run of what scripts ask for, tensor and tap, on CUDA; see
 * launch.c. Owns nothing. THREAD: the stream's pusher. */
#include "kernels/cuda/cuda.h"
#include "kernels/host/host.h"

enum { THREADS = 256, MAX_BLOCKS = 4096, SIDE = 16, TAP_ROWS = 16 };

/* ---- tensor ------------------------------------------------------------------------ */

static int64_t rows_of(const struct mc_strided *v)
{
    return (int64_t)v->n[0] * v->n[1] * v->n[2];
}

/* A tile of 16 x 16 a block. */
static int64_t tiles_of(const struct mc_strided *v)
{
    return (int64_t)v->n[0] * v->n[1] * mc_cu_blocks(v->n[2], SIDE) *
           mc_cu_blocks(v->n[3], SIDE);
}

static int64_t at_most(int64_t n)
{
    return n < MAX_BLOCKS ? n : MAX_BLOCKS;
}

static int tensor_need(const struct mc_tensor_p *p, struct mc_need *n, const char **why)
{
    const char *no = mc_tensor_refuse(p);

    (void)n;
    if (!no && p->what == MC_T_MATMUL && tiles_of(&p->out) > INT32_MAX)
        no = "cuda: a product of more than 2^31 tiles of 16 x 16";
    return no ? mc_cu_refuse(why, no) : 0;
}

static int tensor_run(struct mc_stream *s, const struct mc_tensor_p *p)
{
    int64_t rows = rows_of(&p->out);
    enum mc_kernel_id k = MC_CU_k_tensor_map;
    struct mc_cu_grid g = {at_most(mc_cu_blocks(rows * p->out.n[3], THREADS)), 1, 0};

    if (p->what == MC_T_MATMUL) {
        k = MC_CU_k_tensor_matmul;
        g = (struct mc_cu_grid){tiles_of(&p->out), 1, 2 * SIDE * (SIDE + 1) * 4};
    } else if (p->what >= MC_T_SUM) {
        k = p->what == MC_T_TOPK ? MC_CU_k_tensor_topk : MC_CU_k_tensor_rows;
        g = (struct mc_cu_grid){at_most(rows), 1, THREADS / 32 * 8};
    }
    return mc_cu_launch(s, k, g, p);
}
MC_CU_OP(tensor);

/* ---- tap --------------------------------------------------------------------------- */

static int tap_need(const struct mc_tap_p *p, struct mc_need *n, const char **why)
{
    (void)n;
    return p->layer != MC_TAP_LOGITS && p->cols % 2 != 0
               ? mc_cu_refuse(why, "cuda: tap: an odd number of columns")
               : 0;
}

static int tap_run(struct mc_stream *s, const struct mc_tap_p *p)
{
    int32_t words = p->layer == MC_TAP_LOGITS ? p->cols : p->cols / 2;

    return mc_cu_launch(s, MC_CU_k_tap,
                        (struct mc_cu_grid){mc_cu_blocks(words, THREADS), TAP_ROWS, 0},
                        p);
}
MC_CU_OP(tap);

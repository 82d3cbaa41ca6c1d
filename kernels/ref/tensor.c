/* tensor.c - the oracle of `tensor`: one element at a time, sums in one f32 accumulator
 * with the index rising. Owns nothing; runs on a stream's leader. */
#include <math.h>

#include "kernels/host/strided.h"
#include "kernels/ref/ref.h"

static int tensor_need(const struct mc_tensor_p *p, struct mc_need *need,
                       const char **why)
{
    const char *no = mc_tensor_refuse(p);

    (void)need;
    return no ? mc_refuse(why, no) : 0;
}

static float both(int32_t what, float a, float b)
{
    return what == MC_T_ADD   ? a + b
           : what == MC_T_SUB ? a - b
           : what == MC_T_MUL ? a * b
                              : a / b;
}

static void element(const struct mc_tensor_p *p, int64_t r, int32_t i)
{
    int64_t a = mc_strided_row(&p->a, &p->out, r) + i * p->a.step[3];
    int64_t b = mc_strided_row(&p->b, &p->out, r) + i * p->b.step[3];
    int64_t out = mc_strided_row(&p->out, &p->out, r) + i * p->out.step[3];

    if (p->what == MC_T_COPY && p->a.dt == MC_I32 && p->out.dt == MC_I32)
        ((int32_t *)p->out.p)[out] = ((const int32_t *)p->a.p)[a];
    else if (p->what == MC_T_COPY)
        mc_strided_put(&p->out, out, mc_strided_get(&p->a, a));
    else
        mc_strided_put(&p->out, out, both(p->what, mc_strided_get(&p->a, a),
                                          p->b.p ? mc_strided_get(&p->b, b) : p->scale));
}

/* Element (row r, column i) of the product. */
static void product(const struct mc_tensor_p *p, int64_t r, int32_t i)
{
    int64_t a = mc_strided_row(&p->a, &p->out, r), batch = r / p->out.n[2];
    int64_t b = batch / p->out.n[1] * p->b.step[0] + batch % p->out.n[1] * p->b.step[1] +
                i * p->b.step[3];
    float sum = 0;

    for (int32_t k = 0; k < p->a.n[3]; k++)
        sum += mc_strided_get(&p->a, a + k * p->a.step[3]) *
               mc_strided_get(&p->b, b + k * p->b.step[2]);
    mc_strided_put(&p->out, mc_strided_row(&p->out, &p->out, r) + i * p->out.step[3],
                   sum);
}

static float at(const struct mc_tensor_p *p, int64_t r, int32_t i)
{
    return mc_strided_get(&p->a, mc_strided_row(&p->a, &p->out, r) + i * p->a.step[3]);
}

static float fold(const struct mc_tensor_p *p, int64_t r)
{
    float sum = 0, most = at(p, r, 0);

    for (int32_t i = 0; i < p->a.n[3]; i++) {
        float x = at(p, r, i);

        sum += p->what == MC_T_NORM ? x * x : x;
        if (x > most || isnan(x))
            most = x; /* a NaN stays: nothing is above it */
    }
    return p->what == MC_T_SUM    ? sum
           : p->what == MC_T_MEAN ? sum / (float)p->a.n[3]
           : p->what == MC_T_NORM ? sqrtf(sum)
                                  : most;
}

static void softmax(const struct mc_tensor_p *p, int64_t r)
{
    int64_t out = mc_strided_row(&p->out, &p->out, r);
    float most = at(p, r, 0), sum = 0;

    for (int32_t i = 1; i < p->a.n[3]; i++)
        most = at(p, r, i) > most ? at(p, r, i) : most;
    for (int32_t i = 0; i < p->a.n[3]; i++)
        sum += expf(at(p, r, i) - most);
    for (int32_t i = 0; i < p->a.n[3]; i++)
        mc_strided_put(&p->out, out + i * p->out.step[3], expf(at(p, r, i) - most) / sum);
}

static float key(const struct mc_tensor_p *p, int64_t r, int32_t i)
{
    float x = at(p, r, i);

    return isnan(x) ? -INFINITY : x;
}

/* Each is the first, by (key falling, place rising), behind the one before. */
static void topk(const struct mc_tensor_p *p, int64_t r)
{
    int64_t out = mc_strided_row(&p->out, &p->out, r);
    int64_t ids = mc_strided_row(&p->ids, &p->out, r);
    int32_t last = -1;

    for (int32_t k = 0; k < p->out.n[3]; k++) {
        int32_t best = -1;

        for (int32_t i = 0; i < p->a.n[3]; i++) {
            float x = key(p, r, i), before = last < 0 ? INFINITY : key(p, r, last);

            if (x > before || (x == before && i <= last))
                continue;
            if (best < 0 || x > key(p, r, best))
                best = i;
        }
        mc_strided_put(&p->out, out + k * p->out.step[3], at(p, r, best));
        ((int32_t *)p->ids.p)[ids + k * p->ids.step[3]] = best;
        last = best;
    }
}

static int tensor(struct mc_par *par, const struct mc_tensor_p *p)
{
    (void)par;
    for (int64_t r = 0; r < mc_strided_rows(&p->out); r++) {
        if (p->what == MC_T_SOFTMAX)
            softmax(p, r);
        else if (p->what == MC_T_TOPK)
            topk(p, r);
        else if (p->what >= MC_T_SUM)
            mc_strided_put(&p->out, mc_strided_row(&p->out, &p->out, r), fold(p, r));
        else
            for (int32_t i = 0; i < p->out.n[3]; i++)
                if (p->what == MC_T_MATMUL)
                    product(p, r, i);
                else
                    element(p, r, i);
    }
    return 0;
}

MC_HOST_OP(mc_ref_tensor, tensor, tensor_need, tensor);

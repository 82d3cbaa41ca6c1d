/* tensor_help.h - what the tests of `tensor` share: strided views that lie in several
 * ways, and how far a body may be from the oracle.
 *
 * One operation an element is the same arithmetic: equal bits. A sum of n terms in
 * another order is off by at most n half-ulps of the terms' magnitudes; a result of a
 * narrow type may then round to the neighbour. */
#ifndef MC_TEST_TENSOR_HELP_H
#define MC_TEST_TENSOR_HELP_H

#include "kernels/host/strided.h"
#include "tests/c/ops.h"

static const uint16_t types[] = {MC_F32, MC_F16, MC_BF16};

static inline size_t bytes_of(uint16_t dt)
{
    return dt == MC_F32 || dt == MC_I32 ? 4 : 2;
}

/* Elements from the first to the last of a view. */
static inline int64_t space(const struct mc_strided *v)
{
    int64_t last = 0;

    for (int i = 0; i < 4; i++)
        last += (v->n[i] - 1) * v->step[i];
    return last + 1;
}

/* How v's elements lie: contiguous, with gaps, transposed, or with axes that repeat. */
enum lie { DENSE, GAPS, TURNED, REPEATS, N_LIE };

static inline struct mc_strided view(uint16_t dt, const int32_t n[4], enum lie lie)
{
    struct mc_strided v = {.dt = dt};
    int64_t step = lie == GAPS ? 2 : 1;
    static const int order[2][4] = {{3, 2, 1, 0}, {2, 3, 1, 0}};

    for (int i = 0; i < 4; i++) {
        int axis = order[lie == TURNED][i];

        v.n[axis] = n[axis];
        v.step[axis] = step;
        step *= n[axis] + (lie == GAPS);
    }
    if (lie == REPEATS)
        v.step[1] = v.step[2] = 0;
    v.p = calloc((size_t)space(&v), bytes_of(dt));
    return v;
}

static inline void fill(struct mc_strided *v, uint64_t *seed)
{
    for (int64_t i = 0; i < space(v); i++) {
        float x = kern_randn(seed) * (kern_rand(seed) % 50 == 0 ? 30 : 1);

        mc_strided_put(v, i, v->dt == MC_I32 ? (float)(int)(x * 1000) : x);
    }
}

static inline struct mc_strided like(const struct mc_strided *v)
{
    struct mc_strided w = *v;

    w.p = calloc((size_t)space(v), bytes_of(v->dt));
    return w;
}

/* A result's distance from its neighbours, relative. */
static inline double grain(uint16_t dt)
{
    return dt == MC_BF16 ? 0x1p-8 : dt == MC_F16 ? 0x1p-11 : 0x1p-24;
}

/* The magnitude that element i of row r sums up, and how many terms. */
static inline double mass(const struct mc_tensor_p *p, int64_t r, int32_t i,
                          int32_t *terms)
{
    int64_t a = mc_strided_row(&p->a, &p->out, r), batch = r / p->out.n[2];
    int64_t b = batch / p->out.n[1] * p->b.step[0] + batch % p->out.n[1] * p->b.step[1] +
                i * p->b.step[3];
    double sum = 0;

    *terms = p->a.n[3];
    for (int32_t k = 0; k < p->a.n[3]; k++) {
        double x = fabs((double)mc_strided_get(&p->a, a + k * p->a.step[3]));

        sum += p->what == MC_T_MATMUL
                   ? x * fabs((double)mc_strided_get(&p->b, b + k * p->b.step[2])) : x;
    }
    return p->what == MC_T_MEAN ? sum / p->a.n[3] : sum;
}

/* How far element i of row r, which is x, may be from the oracle's. */
static inline double room(const struct mc_tensor_p *p, int64_t r, int32_t i, double x)
{
    double round = 2 * grain(p->out.dt) * fabs(x), sum;
    int32_t terms;

    switch (p->what) {
    case MC_T_MATMUL:
    case MC_T_SUM:
    case MC_T_MEAN:
        sum = mass(p, r, i, &terms);
        return 2 * terms * OPS_U * sum + round + (p->out.dt == MC_F16 ? 0x1p-24 : 0);
    case MC_T_NORM: /* all terms positive: relative to the sum */
    case MC_T_SOFTMAX:
        return (p->a.n[3] / 2.0 + 8) * OPS_U * fabs(x) + round;
    default:
        return 0;
    }
}

static inline void compare(const struct mc_tensor_p *ref, const struct mc_tensor_p *got,
                    const char *body)
{
    for (int64_t r = 0; r < mc_strided_rows(&ref->out); r++)
        for (int32_t i = 0; i < ref->out.n[3]; i++) {
            int64_t at = mc_strided_row(&ref->out, &ref->out, r) + i * ref->out.step[3];
            double x = (double)mc_strided_get(&ref->out, at);
            double y = (double)mc_strided_get(&got->out, at);

            if (!(fabs(x - y) <= room(ref, r, i, x)) && !(isnan(x) && isnan(y)))
                fail_msg("%s, operation %d of types %d %d -> %d: row %d, %d is %.9g, "
                         "want %.9g",
                         body, ref->what, ref->a.dt, ref->b.dt, ref->out.dt, (int)r, i, y,
                         x);
        }
    if (ref->what == MC_T_TOPK)
        assert_memory_equal(ref->ids.p, got->ids.p, (size_t)space(&ref->ids) * 4);
}

static inline void done(struct mc_tensor_p *p)
{
    free(p->a.p), free(p->b.p), free(p->out.p), free(p->ids.p);
}

#endif

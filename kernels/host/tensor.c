/* tensor.c - which params `tensor` takes, the same for every body. OWNS nothing. THREAD:
 * any. */
#include <string.h>

#include "kernels/host/host.h"

static bool is_float(const struct mc_strided *v)
{
    return v->dt == MC_F32 || v->dt == MC_F16 || v->dt == MC_BF16;
}

/* Equal in all axes before `axes`. */
static bool same_shape(const struct mc_strided *a, const struct mc_strided *b, int axes)
{
    return memcmp(a->n, b->n, (size_t)axes * sizeof a->n[0]) == 0;
}

static bool is_view(const struct mc_strided *v)
{
    for (int i = 0; i < MC_AXES; i++)
        if (v->n[i] < 1)
            return false;
    return v->p && (is_float(v) || v->dt == MC_I32);
}

static const char *refuse_product(const struct mc_tensor_p *p)
{
    if (!is_view(&p->b) || !is_float(&p->b))
        return "an operand's type is not f32, f16 or bf16";
    if (!same_shape(&p->out, &p->a, 3) || !same_shape(&p->a, &p->b, 2) ||
        p->a.n[3] != p->b.n[2] || p->b.n[3] != p->out.n[3])
        return "the columns of the first are not the rows of the second";
    return NULL;
}

static const char *refuse_topk(const struct mc_tensor_p *p)
{
    if (!same_shape(&p->out, &p->a, 3) || p->out.n[3] > p->a.n[3] ||
        p->out.n[3] > MC_TOPK_MAX)
        return "topk takes 1 to 1024 of a row, at most its length";
    if (!is_view(&p->ids) || p->ids.dt != MC_I32 || !same_shape(&p->ids, &p->out, 4))
        return "the places' shape is not the values'";
    return NULL;
}

const char *mc_tensor_refuse(const struct mc_tensor_p *p)
{
    if (p->what < 0 || p->what >= MC_N_T)
        return "no such operation";
    if (!is_view(&p->out) || !is_view(&p->a))
        return "a view has no elements, or its type is not f32, f16, bf16 or i32";
    if (p->what == MC_T_COPY)
        return same_shape(&p->out, &p->a, 4) ? NULL : "the shapes differ";
    if (!is_float(&p->out) || !is_float(&p->a))
        return "an operand's type is not f32, f16 or bf16";
    switch (p->what) {
    case MC_T_MATMUL:
        return refuse_product(p);
    case MC_T_SUM:
    case MC_T_MEAN:
    case MC_T_NORM:
    case MC_T_MAX:
        return same_shape(&p->out, &p->a, 3) && p->out.n[3] == 1 ? NULL
                                                                 : "the shapes differ";
    case MC_T_TOPK:
        return refuse_topk(p);
    case MC_T_SOFTMAX:
        return same_shape(&p->out, &p->a, 4) ? NULL : "the shapes differ";
    default:
        if (p->b.p && (!is_view(&p->b) || !is_float(&p->b)))
            return "an operand's type is not f32, f16 or bf16";
        return same_shape(&p->out, &p->a, 4) && (!p->b.p || same_shape(&p->out, &p->b, 4))
                   ? NULL
                   : "the shapes differ";
    }
}

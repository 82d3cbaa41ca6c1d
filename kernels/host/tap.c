/* tap.c - tap: what is added to rows between layers, and copied from them. The lists are
 * short and most steps have none: the leader does it alone. OWNS nothing. THREAD: a
 * stream's. */
#include <string.h>

#include "kernels/host/host.h"

static void do_row(const struct mc_tap_p *p, const struct mc_tap *t, int32_t i)
{
    int32_t n = p->peer.n > 1 ? p->peer.n : 1, r = t->row + i;
    float *x = (float *)p->x + (int64_t)(r / n) * p->cols;
    const float *add = t->add;

    if (n > 1 && r % n != p->peer.rank)
        return;
    if (p->copy)
        memcpy((float *)t->out + (int64_t)i * p->cols, x, (size_t)p->cols * sizeof *x);
    else
        for (int32_t c = 0; c < p->cols; c++)
            x[c] += t->scale * add[c];
}

static int tap(struct mc_par *par, const struct mc_tap_p *p)
{
    (void)par;
    for (int32_t k = 0; k < p->taps->n; k++) {
        const struct mc_tap *t = &p->taps->v[k];

        if (t->layer == p->layer && (p->copy ? t->out != NULL : t->add != NULL))
            for (int32_t i = 0; i < t->n; i++)
                do_row(p, t, i);
    }
    return 0;
}

MC_HOST_NEEDS_NOTHING(tap)
MC_HOST_OP(mc_host_tap, tap, tap_need, tap);

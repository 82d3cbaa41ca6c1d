/* weight_ops.c - how fast a model's operations read their weights.
 *
 * Owns nothing after a call. THREAD: one. Each operation is waited for before the next is
 * enqueued; the clock runs from one's end to the next one's, starting a stream's threads
 * included, as it is in a decode step. The least time counts, as it does for the roof. */
#include "core/cli/weight_ops.h"

#include <string.h>

#include "core/base/clock.h"
#include "core/model/solo.h"

struct clocked {
    const struct mc_backend *be;
    struct mc_solo *solo;
    double last;
    struct mc_weight_op *op, now[MC_WEIGHT_OPS]; /* least so far; this token's */
    int n;
};

static const char *form_of(uint16_t layout)
{
    static const char *const name[MC_N_RUN] = {
        [MC_W_F32] = "f32", [MC_W_BF16] = "bf16", [MC_W_F16] = "f16", [MC_W_I8] = "int8",
        [MC_W_I4] = "int4", [MC_W_NVFP4] = "nvfp4", [MC_W_E4M3] = "fp8",
    };

    return layout < MC_N_RUN && name[layout] ? name[layout] : "other";
}

static void add(struct clocked *c, const char *op, const struct mc_w *w, double bytes,
                double seconds)
{
    const char *form = form_of(w->layout);
    int i = 0;

    while (i < c->n && (strcmp(c->op[i].op, op) != 0 || strcmp(c->op[i].form, form) != 0))
        i++;
    if (i == MC_WEIGHT_OPS)
        return;
    if (i == c->n) {
        c->op[i] = (struct mc_weight_op){.op = op, .form = form, .seconds = 1e9};
        c->now[i] = (struct mc_weight_op){0};
        c->n++;
    }
    c->now[i].bytes += bytes;
    c->now[i].seconds += seconds;
}

static double stack_bytes(const struct mc_ws *s, int32_t n)
{
    return (double)s->w.bytes * n;
}

static void on_op(void *ctx, const struct mc_op *op, const void *params)
{
    struct clocked *c = ctx;
    double t;

    if (mc_solo_wait(c->solo) < 0)
        return; /* the run reports it */
    t = mc_now() - c->last;
    if (op == c->be->op[MC_OP_linear]) {
        const struct mc_linear_p *p = params;
        double bytes = 0;

        for (int32_t i = 0; i < p->n_w; i++)
            bytes += (double)p->w[i].bytes;
        add(c, "linear", &p->w[0], bytes, t);
    } else if (op == c->be->op[MC_OP_glu]) {
        const struct mc_glu_p *p = params;

        add(c, "glu", &p->gate, (double)p->gate.bytes + (double)p->up.bytes, t);
    } else if (op == c->be->op[MC_OP_moe]) {
        const struct mc_moe_p *p = params;

        add(c, "moe", &p->gate.w,
            stack_bytes(&p->gate, p->top_k) + stack_bytes(&p->up, p->top_k) +
                stack_bytes(&p->down, p->top_k),
            t);
    } else if (op == c->be->op[MC_OP_mla_q]) {
        const struct mc_mla_q_p *p = params;

        add(c, "mla_q", &p->w_uk.w, stack_bytes(&p->w_uk, p->w_uk.n), t);
    } else if (op == c->be->op[MC_OP_mla_out]) {
        const struct mc_mla_out_p *p = params;

        add(c, "mla_out", &p->w_uv.w, stack_bytes(&p->w_uv, p->w_uv.n), t);
    }
    c->last = mc_now();
}

static void end_token(struct clocked *c)
{
    for (int i = 0; i < c->n; i++) {
        if (c->now[i].seconds > 0 && c->now[i].seconds < c->op[i].seconds) {
            c->op[i].seconds = c->now[i].seconds;
            c->op[i].bytes = c->now[i].bytes;
        }
        c->now[i] = (struct mc_weight_op){0};
    }
}

int mc_weight_ops(struct mc_ranks *r, int32_t n_token,
                  struct mc_weight_op out[MC_WEIGHT_OPS], int *n, struct mc_err *err)
{
    const struct mc_model *m = &r->rank[0].model;
    const struct mc_solo_opts o = {.context = n_token, .rows = 1, .outs = 1,
                                   .kv = MC_KV_BF16};
    struct clocked c = {.be = m->be, .op = out};
    const struct mc_pass_watch watch = {.on_op = on_op, .ctx = &c};
    const int32_t row = 0;
    const float *logits;
    uint32_t seed = 7;
    int rc = mc_solo_open(r, &o, &c.solo, err);

    for (int32_t i = 0; i < n_token && rc == 0; i++) {
        int32_t id;

        seed = seed * 1664525u + 1013904223u;
        id = (int32_t)((seed >> 8) % (uint32_t)m->n_real);
        c.last = mc_now();
        rc = mc_solo_run(c.solo, &id, 1, &row, 1, &watch, &logits, err);
        end_token(&c);
    }
    *n = c.n;
    mc_solo_close(c.solo);
    return rc;
}

/* ffn_moe.c - the block of routed experts, and the shared expert beside them.
 *
 * Owns nothing. THREAD: opening.
 * Buffers: the shared expert's output waits in a buffer of its own until moe adds it. */
#include "core/model/pass_int.h"

static unsigned wants(const struct mc_pass *p, const struct mc_layer *y)
{
    unsigned want = MC_WANT_ROWS | mc_pass_form(p, &y->e_gate.w); /* rows: the router's */

    if (y->w[MC_M_SHARED_GATE].n > 0)
        want |= mc_glu_wants(p, &y->w[MC_M_SHARED_GATE]);
    if (y->w[MC_M_SHARED_MIX].n > 0)
        want |= mc_pass_form(p, &y->w[MC_M_SHARED_MIX]);
    return want;
}

/* Ids, weights and lists of the experts; x is the router's input. */
static struct mc_route_p route(struct mc_pass *p, const struct mc_layer *y, const void *x)
{
    const struct mc_config *c = &p->m->cfg;
    size_t places = (size_t)p->caps.rows * (size_t)c->top_k_expert;

    return (struct mc_route_p){
        .n_live = &p->mem->rows.live[MC_LIVE_ROWS],
        .cap = p->caps.rows,
        .x = x,
        .w = y->w[MC_M_ROUTER],
        .bias = y->v[MC_V_ROUTER_BIAS],
        .top_k = c->top_k_expert,
        .n_group = c->n_group,
        .topk_group = c->topk_group,
        .softmax = c->router_softmax,
        .norm = c->router_norm,
        .factor = c->router_factor,
        .ids = mc_pass_buffer(p, MC_USE_EXPERT_IDS, places * sizeof(int32_t)),
        .weights = mc_pass_buffer(p, MC_USE_EXPERT_WEIGHTS, places * sizeof(float)),
        .offset = mc_pass_buffer(p, MC_USE_EXPERT_OFFSET,
                                 ((size_t)c->n_expert + 1) * sizeof(int32_t)),
        .order = mc_pass_buffer(p, MC_USE_EXPERT_ORDER, places * sizeof(int32_t))};
}

/* The shared expert's output [T,H] and the gate on it [T]; NULL where there is none. */
static const void *add_shared(struct mc_pass *p, const struct mc_layer *y,
                              const struct mc_input *in, const void **gate)
{
    const struct mc_w *mix = &y->w[MC_M_SHARED_MIX];
    size_t rows = (size_t)p->caps.rows * mc_pass_row_bytes(p);
    void *out;

    *gate = NULL;
    if (y->w[MC_M_SHARED_GATE].n == 0)
        return NULL;
    out = mc_pass_buffer(p, MC_USE_SHARED, rows * (size_t)p->m->cfg.hidden);
    mc_glu_add(p, in, &y->w[MC_M_SHARED_GATE], &y->w[MC_M_SHARED_UP],
               &y->w[MC_M_SHARED_DOWN], out);
    if (mix->n > 0) {
        struct mc_fan f = {mix, NULL, mc_pass_buffer(p, MC_USE_SHARED_MIX, rows)};

        mc_pass_linear(p, in, &f, 1);
        *gate = f.y;
    }
    return out;
}

static void add(struct mc_pass *p, int32_t layer, const struct mc_input *in)
{
    struct mc_backend *be = p->m->be;
    const struct mc_layer *y = &p->m->layer[layer];
    int32_t k = p->m->cfg.top_k_expert;
    struct mc_route_p r = route(p, y, in->rows);
    struct mc_moe_p moe = {
        .n_live = r.n_live,
        .cap = p->caps.rows,
        .top_k = k,
        .act = in->act[be->act_of(be, y->e_gate.w.layout)],
        .ids = r.ids,
        .offset = r.offset,
        .order = r.order,
        .weights = r.weights,
        .gate = y->e_gate,
        .up = y->e_up,
        .down = y->e_down,
        .mid = mc_pass_act(p, MC_ACT_EXPERT_MID, be->act_of(be, y->e_down.w.layout),
                           p->caps.rows * k, y->e_down.w.k),
        .y = p->x};

    MC_PASS_ADD_SCRATCH(p, route, &r);
    moe.add = add_shared(p, y, in, &moe.add_gate);
    MC_PASS_ADD_SCRATCH(p, moe, &moe);
}

const struct mc_block mc_ffn_moe = {wants, add};

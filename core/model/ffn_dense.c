/* ffn_dense.c - the block of one gated feed-forward network.
 *
 * Owns nothing. THREAD: opening. */
#include "core/model/pass_int.h"

unsigned mc_glu_wants(const struct mc_pass *p, const struct mc_w *gate)
{
    return mc_pass_form(p, gate); /* up reads the same: mc_load_layout sees to it */
}

void mc_glu_add(struct mc_pass *p, const struct mc_input *in, const struct mc_w *gate,
                const struct mc_w *up, const struct mc_w *down, void *y)
{
    struct mc_backend *be = p->m->be;
    struct mc_glu_p glu = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                           .cap = p->caps.rows,
                           .act = in->act[be->act_of(be, gate->layout)],
                           .gate = *gate,
                           .up = *up,
                           .out = mc_pass_act(p, MC_ACT_MID, be->act_of(be, down->layout),
                                              p->caps.rows, down->k)};
    struct mc_input mid = {.have = mc_pass_form(p, down)};

    mid.act[glu.out.layout] = glu.out;
    MC_PASS_ADD_SCRATCH(p, glu, &glu);
    mc_pass_linear(p, &mid, &(struct mc_fan){down, NULL, y}, 1);
}

static unsigned wants(const struct mc_pass *p, const struct mc_layer *y)
{
    return mc_glu_wants(p, &y->w[MC_M_GATE]);
}

static void add(struct mc_pass *p, int32_t layer, const struct mc_input *in)
{
    const struct mc_layer *y = &p->m->layer[layer];

    mc_glu_add(p, in, &y->w[MC_M_GATE], &y->w[MC_M_UP], &y->w[MC_M_DOWN], p->x);
}

const struct mc_block mc_ffn_dense = {wants, add};

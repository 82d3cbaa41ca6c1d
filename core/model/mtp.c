/* mtp.c - the draft pass: one MTP layer over the model's last hidden states.
 *
 * Owns nothing. THREAD: opening.
 * Row t takes the final-normed hidden state of a position p (the caller puts it into
 * mc_pass_draft_hidden) and the token behind it, p + 1, and predicts the token at p + 2.
 * Its entry lies at p + 1, since it depends on that token: what is cached for a prefix of
 * tokens is then a prefix of entries. Position 0 has none, and is never seen (`first`).
 */
#include "core/model/pass_int.h"

void mc_pass_add_draft(struct mc_pass *p)
{
    const struct mc_model *m = p->m;
    const struct mc_layer *y = &m->layer[m->cfg.n_layer];
    const struct mc_w *eh = &y->w[MC_M_EH];
    const void *emb = m->slice.n > 1 ? p->res : p->x;
    struct mc_mtp_in_p in = {.n_live = &p->mem->rows.live[MC_LIVE_ROWS],
                             .cap = p->caps.rows,
                             .h = m->cfg.hidden,
                             .emb = emb,
                             .hidden = mc_pass_buffer(p, MC_USE_DRAFT_HIDDEN,
                                                      (size_t)p->caps.rows *
                                                          (size_t)m->cfg.hidden *
                                                          mc_pass_row_bytes(p)),
                             .enorm = y->v[MC_V_E_NORM],
                             .hnorm = y->v[MC_V_H_NORM],
                             .eps = m->cfg.norm_eps,
                             .act = mc_pass_act(p, MC_ACT_DRAFT,
                                                m->be->act_of(m->be, eh->layout),
                                                p->caps.rows, eh->k)};
    struct mc_input both = {.have = mc_pass_form(p, eh)};

    if (emb == p->res) /* the ranks' parts of the embedding, summed */
        mc_pass_join(p, NULL, true, 0);
    p->whole = true; /* eh is on every rank */

    both.act[in.act.layout] = in.act;
    MC_PASS_ADD(p, mtp_in, &in);
    mc_pass_linear(p, &both, &(struct mc_fan){eh, NULL, p->x}, 1);
}

/* rows.inl - embed, join, quant: what happens to a whole row. */

/* ---- embed ---------------------------------------------------------------------------- */

static int embed_need(const struct mc_embed_p *p, struct mc_need *need, const char **why)
{
    (void)need;
    return p->w.layout < MC_N_RUN ? 0 : mc_refuse(why, "embed: unknown run layout");
}

/* Code of column c, lane j of an integer panel, as its tile reads it. */
static int code_at(uint16_t layout, const uint8_t *q, int32_t c, int32_t j)
{
    uint16_t x;

    if (layout == MC_W_I8)
        return (int8_t)q[c / 2 * 2 * PANEL + 2 * j + c % 2];
    memcpy(&x, q + (c / 8 * PANEL + j) * 4 + c % 2 * 2, 2);
    x = x >> (c % 8 / 2 * 4) & 15;
    return layout == MC_W_I4 ? x : e2m1_512(x);
}

static void embed_ints(const struct mc_w *w, int64_t row, float *x)
{
    _Alignas(64) float ws[2 * PANEL], wm[2 * PANEL];
    const struct head *h = w->q;
    const uint8_t *q = panel_q(w, row / PANEL), *rec = panel_scales(w, row / PANEL);
    int32_t j = (int32_t)(row % PANEL), k, c, at;

    for (k = 0; k < w->k; k += BLOCK) {
        bool min = scale_expand(h, rec, k, BLOCK / h->step, ws, wm);

        for (c = 0; c < BLOCK; c++) {
            at = c / h->step * PANEL + j;
            x[k + c] = (float)code_at(w->layout, q, k + c, j) * ws[at] + (min ? wm[at] : 0);
        }
    }
}

static void embed_floats(const struct mc_w *w, int64_t row, float *x)
{
    const struct head *h = w->q;
    const uint8_t *q = panel_q(w, row / PANEL);
    const uint8_t *rec = panel_scales(w, row / PANEL);
    int32_t j = (int32_t)(row % PANEL), k, at;

    for (k = 0; k < w->k; k++) {
        at = k * PANEL + j;
        switch (w->layout) {
        case MC_W_F16:
            x[k] = mc_f32_of_f16(((const uint16_t *)q)[at]);
            break;
        case MC_W_BF16:
            x[k] = mc_f32_of_bf16(((const uint16_t *)q)[at]);
            break;
        case MC_W_E4M3:
            x[k] = mc_f32_of_e4m3(q[at]) * 0x1p-8f *
                   ((const float *)(rec + (int64_t)(k / h->group) * h->scale_bytes))[j];
            break;
        default:
            x[k] = ((const float *)q)[at];
        }
    }
}

static void embed_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_embed_p *p = ctx;
    const struct mc_rows *r = &p->rows;
    int64_t t, row;

    (void)lane;
    for (t = t0; t < t1; t++) {
        float *x = (float *)p->x + t * p->w.k;

        row = r->tok[t] >= 0 ? r->tok[t] : p->slots[r->slot[r->row_seq[t]]].tok;
        row -= p->row0;
        if (row < 0 || row >= p->w.n)
            memset(x, 0, (size_t)p->w.k * sizeof x[0]);
        else if (is_int(p->w.layout))
            embed_ints(&p->w, row, x);
        else
            embed_floats(&p->w, row, x);
    }
}

static int embed(struct mc_par *par, const struct mc_embed_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 8, embed_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(embed), embed, embed_need, embed);

/* ---- join ----------------------------------------------------------------------------- */

enum { MAX_H = 65536 };

static int join_need(const struct mc_join_p *p, struct mc_need *need, const char **why)
{
    const char *no = p->w && p->act.x ? act_refuse(&p->act) : NULL;

    (void)need;
    if (p->h % 16 != 0 || p->h > MAX_H)
        no = "join: columns that are no multiple of 16, or more than 65536";
    return no ? mc_refuse(why, no) : 0;
}

/* What the ranks bring, in their order; one when there is no other. */
struct parts {
    const struct mc_join_p *p;
    const void *const *x;
    int32_t n;
};

/* res += the parts of row t, and the sum of its squares. */
static float add_row(const struct parts *in, int64_t t, float *res)
{
    int64_t at = t * in->p->h;
    vf sum = vf_set(0), x, y;
    int32_t i, j;

    for (i = 0; i < in->p->h; i += VN) {
        x = vf_load((const float *)in->x[0] + at + i);
        for (j = 1; j < in->n; j++)
            x = vf_add(x, vf_load((const float *)in->x[j] + at + i));
        y = in->p->first ? x : vf_add(vf_load(res + i), x);
        vf_store(res + i, y);
        sum = vf_fma(y, y, sum);
    }
    return vf_sum(sum);
}

static void join_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct parts *in = ctx;
    const struct mc_join_p *p = in->p;
    float norm[MAX_H], sum;
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++) {
        float *res = (float *)p->res + t * p->h;

        sum = add_row(in, t, res);
        if (!p->w)
            continue;
        norm_row(res, p->w, 1 / sqrtf(sum / (float)p->h + p->eps), p->h, norm);
        if (p->act.x)
            act_put(&p->act, t, 0, p->h, norm);
        if (p->norm_out)
            memcpy((float *)p->norm_out + t * p->h, norm, (size_t)p->h * sizeof norm[0]);
    }
}

static int join(struct mc_par *par, const struct mc_join_p *p)
{
    int32_t rows = p->rows.live[MC_LIVE_ROWS];
    struct parts in = {p, &p->x, 1};
    int rc = 0;

    if (p->peer.n > 1) {
        rc = mc_comm_meet(&p->peer, MC_OP_join, (uint64_t)rows, p->x, &in.x);
        in.n = p->peer.n;
    }
    if (rc == 0)
        mc_par_for(par, rows, 4, join_rows, &in);
    return rc;
}

MC_HOST_OP(ISA(join), join, join_need, join);

/* ---- quant ---------------------------------------------------------------------------- */

static int quant_need(const struct mc_quant_p *p, struct mc_need *need, const char **why)
{
    const char *no = act_refuse(&p->act);

    (void)need;
    return no ? mc_refuse(why, no) : 0;
}

static void quant_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_quant_p *p = ctx;
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        act_put(&p->act, t, 0, p->act.k, (const float *)p->x + t * p->act.k);
}

static int quant(struct mc_par *par, const struct mc_quant_p *p)
{
    mc_par_for(par, *p->n_live, 4, quant_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(quant), quant, quant_need, quant);

/* ---- mtp_in --------------------------------------------------------------------------- */

static int mtp_in_need(const struct mc_mtp_in_p *p, struct mc_need *need, const char **why)
{
    const char *no = act_refuse(&p->act);

    (void)need;
    if (!no && (p->h % BLOCK != 0 || p->h > MAX_H || p->act.k != 2 * p->h))
        no = "mtp_in: columns that are no multiple of 32, above 65536, or not half of act's";
    return no ? mc_refuse(why, no) : 0;
}

static void mtp_in_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_mtp_in_p *p = ctx;
    float norm[MAX_H];

    (void)lane;
    for (; t0 < t1; t0++) {
        rms_norm((const float *)p->emb + t0 * p->h, p->enorm, p->eps, p->h, norm);
        act_put(&p->act, t0, 0, p->h, norm);
        rms_norm((const float *)p->hidden + t0 * p->h, p->hnorm, p->eps, p->h, norm);
        act_put(&p->act, t0, p->h, p->h, norm);
    }
}

static int mtp_in(struct mc_par *par, const struct mc_mtp_in_p *p)
{
    mc_par_for(par, *p->n_live, 4, mtp_in_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(mtp_in), mtp_in, mtp_in_need, mtp_in);

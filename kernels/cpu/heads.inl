/* heads.inl - mla_q and mla_out: each head has a small matrix of its own.
 *
 * An item is a head, QUAD pairs of its panels and at most ROWS rows. Float matrices read the
 * rows where they lie; quantised ones read int16, made of each item's rows on the stack. */

enum { QUAD = 4, HEAD_K = 512 /* columns of a head's matrix */ };

struct heads {
    const struct mc_ws *w;
    int32_t h;
    const float *x;      /* row t's values of head i: x + t*x_pitch + i*x_head */
    int32_t x_pitch, x_head;
    const struct mc_rows *rows;
    int32_t long_rows;   /* rows of such chunks are not wanted */
    void (*put)(const void *p, int32_t head, int64_t t, int32_t c0, int32_t n, const float *y);
    const void *p;
};

static const char *heads_weight_refuse(const struct mc_ws *s, int32_t h, int32_t n, int32_t k)
{
    const struct mc_act x = {.k = k, .layout = is_int(s->w.layout) ? MC_A_I16 : MC_A_F32};

    if (h < 1 || s->n < h)
        return "cpu: not a matrix a head";
    if (s->w.n != n || k > HEAD_K)
        return "cpu: a head's matrix has other rows, or more than 512 columns";
    return weight_refuse(&x, &s->w);
}

struct head_rows {
    int16_t x[ROWS * HEAD_K];
    float s[ROWS * HEAD_K / BLOCK], bf[ROWS * HEAD_K / BLOCK];
};

/* y of up to QUAD pairs of a head for rows [t0, t0+n). */
static void head_item(const struct heads *h, int32_t head, int32_t pair, int32_t t0, int32_t n)
{
    struct mc_w w = mc_ws_at(h->w, head);
    const float *x = h->x + (int64_t)head * h->x_head;
    struct mc_act a = {.x = (void *)x, .k = h->x_pitch, .layout = MC_A_F32};
    int32_t end = pair + QUAD < pairs(w.n) ? pair + QUAD : pairs(w.n), first = t0, r, p, left;
    _Alignas(64) float y[2 * ROWS * PANEL], out[PAIR];
    struct head_rows buf;

    if (is_int(w.layout)) {
        a = (struct mc_act){.x = buf.x, .s = buf.s, .bf = buf.bf, .k = w.k,
                            .layout = MC_A_I16};
        for (r = 0; r < n; r++)
            act_put(&a, r, 0, w.k, x + (int64_t)(t0 + r) * h->x_pitch);
        first = 0;
    }
    for (; pair < end; pair++) {
        pair_rows(&a, first, n, &w, pair, y);
        left = w.n - pair * PAIR < PAIR ? w.n - pair * PAIR : PAIR;
        for (r = 0; r < n; r++) {
            for (p = 0; p < left; p += PANEL)
                memcpy(out + p, y + (p / PANEL * ROWS + r) * PANEL, PANEL * sizeof y[0]);
            h->put(h->p, head, t0 + r, pair * PAIR, left, out);
        }
    }
}

/* Whether all of rows [t0, t0+n) belong to long chunks. */
static bool all_long(const struct heads *h, int32_t t0, int32_t n)
{
    while (n > 0 && mc_row_is_long(h->rows, t0 + n - 1, h->long_rows))
        n--;
    return n == 0;
}

static int32_t quads(const struct heads *h)
{
    return (pairs(h->w->w.n) + QUAD - 1) / QUAD;
}

static void heads_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct heads *h = ctx;
    int32_t rows = h->rows->live[MC_LIVE_ROWS], t0, n;
    int64_t item;

    (void)lane;
    for (; i0 < i1; i0++) {
        item = i0 / spans(rows);
        t0 = (int32_t)(i0 % spans(rows)) * ROWS;
        n = rows - t0 < ROWS ? rows - t0 : ROWS;
        if (!all_long(h, t0, n))
            head_item(h, (int32_t)(item / quads(h)), (int32_t)(item % quads(h)) * QUAD, t0, n);
    }
}

static void heads_times(struct mc_par *par, const struct heads *h)
{
    int64_t n = (int64_t)h->h * quads(h) * spans(h->rows->live[MC_LIVE_ROWS]);

    mc_par_for(par, n, grain(par, n), heads_items, (void *)h);
}

/* ---- mla_q ---------------------------------------------------------------------------- */

static int mla_q_need(const struct mc_mla_q_p *p, struct mc_need *need, const char **why)
{
    const char *no = p->w_uk.n ? heads_weight_refuse(&p->w_uk, p->h, p->c, p->nope) : NULL;

    (void)need;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.dim < 0 || p->rope.dim > MAX_D))
        no = "mla_q: rotated dims are odd or above 512";
    return no ? mc_refuse(why, no) : 0;
}

static void mla_q_put(const void *ctx, int32_t head, int64_t t, int32_t c0, int32_t n,
                      const float *y)
{
    const struct mc_mla_q_p *p = ctx;

    memcpy((float *)p->out + (t * p->h + head) * (p->c + p->rope.dim) + c0, y,
           (size_t)n * sizeof y[0]);
}

/* The rotated dims; without absorption the others too, unless they are in place. */
static void mla_q_row(const struct mc_mla_q_p *p, int64_t t, bool absorb)
{
    int32_t r = p->rope.dim, from = p->nope + r, lead = absorb ? p->c : p->nope, i;
    float *q = (float *)p->q + t * p->h * from, *out = q;
    float c[MAX_D / 2], s[MAX_D / 2];

    if (!mc_row_is_long(&p->rows, (int32_t)t, p->long_rows))
        out = (float *)p->out + t * p->h * (lead + r);
    if (!absorb && out != q)
        memcpy(out, q, (size_t)p->h * (size_t)from * sizeof q[0]);
    rope_angles(&p->rope, p->rows.pos[t], c, s);
    for (i = 0; i < p->h; i++) {
        float *x = out + i * (lead + r) + lead;

        if (absorb)
            memcpy(x, q + i * from + p->nope, (size_t)r * sizeof q[0]);
        rope_head(x, &p->rope, c, s);
    }
}

static void mla_q_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_mla_q_p *p = ctx;

    (void)lane;
    for (; t0 < t1; t0++)
        mla_q_row(p, t0,
                  p->w_uk.n && !mc_row_is_long(&p->rows, (int32_t)t0, p->long_rows));
}

static int mla_q(struct mc_par *par, const struct mc_mla_q_p *p)
{
    int32_t from = p->nope + p->rope.dim;
    struct heads h = {.w = &p->w_uk, .h = p->h, .x = p->q, .x_pitch = p->h * from,
                      .x_head = from, .rows = &p->rows, .long_rows = p->long_rows,
                      .put = mla_q_put, .p = p};

    if (p->w_uk.n)
        heads_times(par, &h);
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 4, mla_q_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(mla_q), mla_q, mla_q_need, mla_q);

/* ---- mla_out -------------------------------------------------------------------------- */

static int mla_out_need(const struct mc_mla_out_p *p, struct mc_need *need, const char **why)
{
    const char *no = heads_weight_refuse(&p->w_uv, p->h, p->v, p->c);

    (void)need;
    if (!no)
        no = act_refuse(&p->act);
    if (!no && p->act.k != p->h * p->v)
        no = "mla_out: columns that are not h*v";
    if (!no && p->act.layout == MC_A_I16 && p->v % BLOCK != 0)
        no = "mla_out: int16 activations need v in multiples of 32";
    return no ? mc_refuse(why, no) : 0;
}

static void mla_out_put(const void *ctx, int32_t head, int64_t t, int32_t c0, int32_t n,
                        const float *y)
{
    const struct mc_mla_out_p *p = ctx;

    act_put(&p->act, t, head * p->v + c0, n, y);
}

static int mla_out(struct mc_par *par, const struct mc_mla_out_p *p)
{
    struct heads h = {.w = &p->w_uv, .h = p->h, .x = p->o_lat, .x_pitch = p->h * p->c,
                      .x_head = p->c, .rows = &p->rows, .long_rows = p->long_rows,
                      .put = mla_out_put, .p = p};

    heads_times(par, &h);
    return 0;
}

MC_HOST_OP(ISA(mla_out), mla_out, mla_out_need, mla_out);

/* linear.inl - linear and glu. An item of work is two panels (32 outputs, so that glu can
 * write whole activation blocks) and at most ROWS rows. */

/* ---- linear --------------------------------------------------------------------------- */

static int linear_need(const struct mc_linear_p *p, struct mc_need *need, const char **why)
{
    const char *no;
    int32_t i;

    (void)need;
    if (p->n_w < 1 || p->n_w > MC_MAX_FAN)
        return mc_refuse(why, "linear: 1 to 4 matrices share an input");
    if (p->y_dt != MC_F32)
        return mc_refuse(why, "linear: the output is not f32");
    for (i = 0; i < p->n_w; i++) {
        no = weight_refuse(&p->act, &p->w[i]);
        if (no)
            return mc_refuse(why, no);
    }
    return 0;
}

static void linear_item(const struct mc_linear_p *p, int32_t i, int64_t pair, int32_t t0,
                        int32_t n)
{
    _Alignas(64) float y[2 * ROWS * PANEL];
    int32_t r, c, c0, at, left;
    vf sum;

    pair_rows(&p->act, t0, n, &p->w[i], pair, y);
    c0 = (int32_t)pair * PAIR;
    for (r = 0; r < n; r++) {
        float *out = (float *)p->y[i] + (int64_t)(t0 + r) * p->pitch[i] + c0;

        for (c = 0; c < PAIR && c0 + c < p->w[i].n; c += VN) {
            at = (c / PANEL * ROWS + r) * PANEL + c % PANEL;
            left = p->w[i].n - c0 - c < VN ? p->w[i].n - c0 - c : VN;
            sum = vf_load(y + at);
            if (p->bias[i])
                sum = vf_add(sum, vf_load_n(p->bias[i] + c0 + c, left));
            vf_store_n(out + c, sum, left);
        }
    }
}

static void linear_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_linear_p *p = ctx;
    int32_t rows = *p->n_live, t0, i;
    int64_t item, pair;

    (void)lane;
    for (item = i0; item < i1; item++) {
        pair = item / spans(rows); /* rows change faster: the panel stays in the cache */
        t0 = (int32_t)(item % spans(rows)) * ROWS;
        for (i = 0; pair >= pairs(p->w[i].n); i++)
            pair -= pairs(p->w[i].n);
        linear_item(p, i, pair, t0, rows - t0 < ROWS ? rows - t0 : ROWS);
    }
}

/* Chunks small enough to even out the threads, large enough to be worth taking. */
static int64_t grain(const struct mc_par *par, int64_t items)
{
    int64_t g = items / (16 * mc_par_threads(par));

    return g > 1 ? g : 1;
}

static int linear(struct mc_par *par, const struct mc_linear_p *p)
{
    int64_t n = 0;
    int32_t i;

    for (i = 0; i < p->n_w; i++)
        n += pairs(p->w[i].n);
    n *= spans(*p->n_live);
    mc_par_for(par, n, grain(par, n), linear_items, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(linear), linear, linear_need, linear);

/* ---- glu ------------------------------------------------------------------------------ */

static int glu_need(const struct mc_glu_p *p, struct mc_need *need, const char **why)
{
    const char *no = weight_refuse(&p->act, &p->gate);

    (void)need;
    if (!no)
        no = weight_refuse(&p->act, &p->up);
    if (!no)
        no = act_refuse(&p->out);
    if (!no && (p->gate.n != p->out.k || p->up.n != p->out.k))
        no = "glu: the rows of gate and up are not the output's columns";
    return no ? mc_refuse(why, no) : 0;
}

static void glu_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_glu_p *p = ctx;
    _Alignas(64) float gate[2 * ROWS * PANEL], up[2 * ROWS * PANEL], out[PAIR];
    int32_t rows = *p->n_live, t0, n, r, c, at, left;
    int64_t item, pair;

    (void)lane;
    for (item = i0; item < i1; item++) {
        pair = item / spans(rows);
        t0 = (int32_t)(item % spans(rows)) * ROWS;
        n = rows - t0 < ROWS ? rows - t0 : ROWS;
        pair_rows(&p->act, t0, n, &p->gate, pair, gate);
        pair_rows(&p->act, t0, n, &p->up, pair, up);
        left = p->out.k - (int32_t)pair * PAIR;
        left = left < PAIR ? left : PAIR;
        for (r = 0; r < n; r++) {
            for (c = 0; c < left; c += VN) {
                at = (c / PANEL * ROWS + r) * PANEL + c % PANEL;
                vf_store(out + c, vf_mul(vf_silu(vf_load(gate + at)), vf_load(up + at)));
            }
            act_put(&p->out, t0 + r, (int32_t)pair * PAIR, left, out);
        }
    }
}

static int glu(struct mc_par *par, const struct mc_glu_p *p)
{
    int64_t n = pairs(p->out.k) * spans(*p->n_live);

    mc_par_for(par, n, grain(par, n), glu_items, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(glu), glu, glu_need, glu);

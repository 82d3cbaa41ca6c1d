/* moe.inl - a row's experts. The rows of an expert lie together (route's lists), so that its
 * panels are read once for all of them; an item is one expert and two panels, as in glu and
 * linear. Steps: gather rows into the lists' order, mid, down.
 *
 * mid lies in the lists' order too. down works on two panels of every chosen expert at a
 * time, into a buffer of [place][32]: a row's sum can then run over its places in their
 * order, whatever the experts' order is. */

enum { MOE_PLACES = 4096 }; /* rows*top_k worked off at a time: 512 KiB of sums in down */

struct moe_work {
    const struct mc_moe_p *p;
    struct mc_act in;    /* the rows as multiplied: in list order, or as they came */
    bool gathered;
    int32_t n_run;
    struct moe_run {     /* rows [at, at+n) of the lists that one expert takes */
        int32_t expert, at, n;
    } run[MAX_E];
};

static const char *stack_refuse(const struct mc_act *a, const struct mc_ws *s)
{
    return s->n < 1 ? "cpu: no matrices" : weight_refuse(a, &s->w);
}

/* Bytes of n rows of an activation: values, then s, then bf. */
static size_t act_bytes(const struct mc_act *a, size_t n)
{
    size_t k = (size_t)a->k;

    return a->layout == MC_A_F32 ? n * k * 4 : n * (k * 2 + k / BLOCK * 8);
}

static int moe_need(const struct mc_moe_p *p, struct mc_need *need, const char **why)
{
    const char *no = stack_refuse(&p->act, &p->gate);

    if (!no)
        no = stack_refuse(&p->act, &p->up);
    if (!no)
        no = stack_refuse(&p->mid, &p->down);
    if (!no && (p->gate.w.n != p->mid.k || p->up.w.n != p->mid.k))
        no = "moe: the rows of gate and up are not the columns of down";
    if (!no && (p->gate.n > MAX_E || p->up.n != p->gate.n || p->down.n != p->gate.n))
        no = "moe: more than 1024 experts, or not as many gates, ups and downs";
    if (!no && (p->top_k < 1 || p->top_k > MAX_E))
        no = "moe: top_k is not 1 to 1024";
    need->scratch = act_bytes(&p->act, (size_t)p->cap * (size_t)p->top_k);
    return no ? mc_refuse(why, no) : 0;
}

/* ---- gather --------------------------------------------------------------------------- */

static void gather_rows(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct moe_work *w = ctx;
    const struct mc_act *from = &w->p->act, *to = &w->in;
    int64_t k = from->k, t;

    (void)lane;
    for (; i0 < i1; i0++) {
        t = w->p->order[i0] / w->p->top_k;
        if (from->layout == MC_A_F32) {
            memcpy((float *)to->x + i0 * k, (const float *)from->x + t * k, (size_t)k * 4);
            continue;
        }
        memcpy((int16_t *)to->x + i0 * k, (const int16_t *)from->x + t * k, (size_t)k * 2);
        memcpy(to->s + i0 * (k / BLOCK), from->s + t * (k / BLOCK), (size_t)k / BLOCK * 4);
        memcpy((float *)to->bf + i0 * (k / BLOCK), (const float *)from->bf + t * (k / BLOCK),
               (size_t)k / BLOCK * 4);
    }
}

/* A single row needs no gathering: every list is that row. */
static void gather(struct mc_par *par, struct moe_work *w)
{
    const struct mc_moe_p *p = w->p;
    int64_t n = (int64_t)*p->n_live * p->top_k, k = p->act.k;

    w->in = p->act;
    w->gathered = *p->n_live > 1;
    if (!w->gathered)
        return;
    w->in.x = p->scratch;
    if (p->act.layout != MC_A_F32) {
        w->in.s = (float *)((int16_t *)p->scratch + n * k);
        w->in.bf = w->in.s + n * (k / BLOCK);
    }
    mc_par_for(par, n, 16, gather_rows, w);
}

/* ---- mid ------------------------------------------------------------------------------ */

/* mid of n rows of a run and one pair: silu(gate x) * up x. */
static void mid_put(const struct mc_act *mid, int64_t at, int32_t n, int64_t pair,
                    const float *gate, const float *up)
{
    _Alignas(64) float out[PAIR];
    int32_t left = mid->k - (int32_t)pair * PAIR, r, c, from;

    left = left < PAIR ? left : PAIR;
    for (r = 0; r < n; r++) {
        for (c = 0; c < left; c += VN) {
            from = (c / PANEL * ROWS + r) * PANEL + c % PANEL;
            vf_store(out + c, vf_mul(vf_silu(vf_load(gate + from)), vf_load(up + from)));
        }
        act_put(mid, at + r, (int32_t)pair * PAIR, left, out);
    }
}

static void mid_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct moe_work *w = ctx;
    const struct mc_moe_p *p = w->p;
    _Alignas(64) float gate[2 * ROWS * PANEL], up[2 * ROWS * PANEL];
    int32_t each = pairs(p->mid.k), at, n, end;

    (void)lane;
    for (; i0 < i1; i0++) {
        const struct moe_run *run = &w->run[i0 / each];
        struct mc_w g = mc_ws_at(&p->gate, run->expert), u = mc_ws_at(&p->up, run->expert);
        int64_t pair = i0 % each;

        for (at = run->at, end = at + run->n; at < end; at += n) {
            n = end - at < ROWS ? end - at : ROWS;
            pair_rows(&w->in, w->gathered ? at : 0, n, &g, pair, gate);
            pair_rows(&w->in, w->gathered ? at : 0, n, &u, pair, up);
            mid_put(&p->mid, at, n, pair, gate, up);
        }
    }
}

/* ---- down ----------------------------------------------------------------------------- */

struct down_work {
    const struct moe_work *w;
    int32_t t0, n; /* rows of the step */
};

/* y of a pair of columns: a row's places in their order, then what is added. */
static void down_sum(const struct down_work *d, int64_t pair, const float *part)
{
    const struct mc_moe_p *p = d->w->p;
    int32_t h = p->down.w.n, c0 = (int32_t)pair * PAIR, r, i, c, left;
    vf y, g;

    for (r = 0; r < d->n; r++) {
        int64_t t = d->t0 + r;
        const float *weight = p->weights + t * p->top_k;

        g = vf_set(1);
        if (p->add_gate)
            g = vf_div(g, vf_add(g, vf_exp(vf_set(-((const float *)p->add_gate)[t]))));
        for (c = 0; c < PAIR && c0 + c < h; c += VN) {
            left = h - c0 - c < VN ? h - c0 - c : VN;
            y = vf_set(0);
            for (i = 0; i < p->top_k; i++)
                y = vf_fma(vf_set(weight[i]),
                           vf_load(part + ((int64_t)r * p->top_k + i) * PAIR + c), y);
            if (p->add)
                y = vf_fma(vf_load_n((const float *)p->add + t * h + c0 + c, left), g, y);
            vf_store_n((float *)p->y + t * h + c0 + c, y, left);
        }
    }
}

/* Two panels of one expert for the rows of its run that are among ours. */
static void down_run(const struct down_work *d, const struct moe_run *run, int64_t pair,
                     float *part)
{
    const struct mc_moe_p *p = d->w->p;
    _Alignas(64) float y[2 * ROWS * PANEL];
    struct mc_w m = mc_ws_at(&p->down, run->expert);
    int32_t first = d->t0 * p->top_k, last = first + d->n * p->top_k, at = run->at;
    int32_t end = at + run->n, n, r, c;

    while (at < end && p->order[at] < first)
        at++;
    while (at < end && p->order[end - 1] >= last)
        end--;
    for (; at < end; at += n) {
        n = end - at < ROWS ? end - at : ROWS;
        pair_rows(&p->mid, at, n, &m, pair, y);
        for (r = 0; r < n; r++)
            for (c = 0; c < PAIR && pair * PAIR + c < m.n; c += VN)
                vf_store(part + (int64_t)(p->order[at + r] - first) * PAIR + c,
                         vf_load(y + (c / PANEL * ROWS + r) * PANEL + c % PANEL));
    }
}

static void down_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct down_work *d = ctx;
    _Alignas(64) float part[MOE_PLACES * PAIR];
    int32_t i;

    (void)lane;
    for (; i0 < i1; i0++) {
        for (i = 0; i < d->w->n_run; i++)
            down_run(d, &d->w->run[i], i0, part);
        down_sum(d, i0, part);
    }
}

/* ---- moe ------------------------------------------------------------------------------ */

static void moe_runs(struct moe_work *w)
{
    const struct mc_moe_p *p = w->p;
    int32_t e, n;

    for (e = 0; e < p->gate.n; e++) {
        n = p->offset[e + 1] - p->offset[e];
        if (n > 0)
            w->run[w->n_run++] = (struct moe_run){e, p->offset[e], n};
    }
}

static int moe(struct mc_par *par, const struct mc_moe_p *p)
{
    struct moe_work w = {.p = p};
    struct down_work d = {.w = &w};
    int32_t most = MOE_PLACES / p->top_k;
    int64_t n;

    moe_runs(&w);
    gather(par, &w);
    n = (int64_t)w.n_run * pairs(p->mid.k);
    mc_par_for(par, n, grain(par, n), mid_items, &w);
    for (; d.t0 < *p->n_live; d.t0 += most) {
        d.n = *p->n_live - d.t0 < most ? *p->n_live - d.t0 : most;
        n = pairs(p->down.w.n);
        mc_par_for(par, n, grain(par, n), down_items, &d);
    }
    return 0;
}

MC_HOST_OP(ISA(moe), moe, moe_need, moe);

/* ragged.inl - attn_ragged: long chunks attend to keys and values expanded from latents.
 *
 * An item is a head and up to LONG_ROWS rows of one chunk. For each split its tokens' keys
 * and values of that head are made by the panels, once for all of those rows, into scratch
 * that stays in the cache; then tiles of rows go over them as mla_attn's queries do. */

enum {
    LONG_ROWS = 512, /* rows that share an expansion */
    LONG_TILE = 32,  /* rows whose scores of a split are at hand */
    LONG_D = 256,    /* nope + r, and v */
};

struct ragged {
    const struct mc_attn_ragged_p *p;
    int32_t head, slot;
    int32_t split, n_tok;              /* tokens of the split that any row sees */
    int32_t vp;                        /* v in whole COLS, zeros behind */
    float keys[LONG_D * MC_SPLIT];     /* [page][nope+r][MC_PAGE] */
    float values[LONG_D * MC_SPLIT];   /* [page][vp/COLS][MC_PAGE][COLS] */
    float o[LONG_ROWS * LONG_D];       /* [row][vp] */
    float ml[LONG_ROWS][2];
};

static int attn_ragged_need(const struct mc_attn_ragged_p *p, struct mc_need *need,
                            const char **why)
{
    const struct mc_act latent = {
        .k = p->kv.c, .layout = is_int(p->kv_b.layout) ? MC_A_I16 : MC_A_F32};
    const char *no = latent_refuse(&p->kv);

    (void)need;
    if (!no)
        no = weight_refuse(&latent, &p->kv_b);
    if (!no)
        no = act_refuse(&p->act);
    if (!no && (p->nope % PANEL != 0 || p->v % PANEL != 0 || p->nope < 0 || p->v < 1 ||
                p->nope + p->kv.r > LONG_D || p->v > LONG_D))
        no = "attn_ragged: nope and v are no multiples of 16, or nope + r or v above 256";
    if (!no && (p->h < 1 || p->kv_b.n != p->h * (p->nope + p->v)))
        no = "attn_ragged: kv_b has not nope + v rows a head";
    if (!no && (p->act.k != p->h * p->v || (p->act.layout == MC_A_I16 && p->v % BLOCK != 0)))
        no = "attn_ragged: columns that are not h*v, or v of int16 no multiple of 32";
    if (!no && p->first < 0)
        no = "attn_ragged: positions below 0";
    return no ? mc_refuse(why, no) : 0;
}

/* ---- expansion --------------------------------------------------------------------------- */

/* A panel's outputs y [MC_PAGE][16] as rows of keys, or as columns of values. */
static void put_keys(const float *y, float *keys)
{
    vf x[VN];
    int32_t j, c, i;

    for (j = 0; j < MC_PAGE; j += VN)
        for (c = 0; c < PANEL; c += VN) {
            for (i = 0; i < VN; i++)
                x[i] = vf_load(y + (j + i) * PANEL + c);
            vf_transpose(x);
            for (i = 0; i < VN; i++)
                vf_store(keys + (c + i) * MC_PAGE + j, x[i]);
        }
}

static void put_values(const float *y, int32_t col, float *values)
{
    int32_t j;

    values += col / COLS * MC_PAGE * COLS + col % COLS;
    for (j = 0; j < MC_PAGE; j++)
        memcpy(values + j * COLS, y + j * PANEL, PANEL * sizeof y[0]);
}

struct latents {
    _Alignas(64) float row[MC_PAGE * MAX_D];
    int16_t x[MC_PAGE * MAX_D];
    float s[MC_PAGE * MAX_D / BLOCK], bf[MC_PAGE * MAX_D / BLOCK];
};

/* A page's latents as rows that kv_b multiplies. */
static struct mc_act latent_rows(const struct ragged *g, const struct block *b,
                                 struct latents *l)
{
    int32_t c = b->c, i, j;
    struct mc_act f = {.x = l->row, .k = c, .layout = MC_A_F32};
    struct mc_act q = {.x = l->x, .s = l->s, .bf = l->bf, .k = c, .layout = MC_A_I16};

    for (i = 0; i < c; i += COLS)
        block_widen(g->p->kv.layout, b, i, l->row + i, c);
    if (!is_int(g->p->kv_b.layout))
        return f;
    for (j = 0; j < MC_PAGE; j++)
        act_put(&q, j, 0, c, l->row + j * c);
    return q;
}

/* Keys and values of page `page` of the split. */
static void expand_page(struct ragged *g, int32_t page)
{
    const struct mc_attn_ragged_p *p = g->p;
    int32_t d = p->nope + p->kv.r, each = (p->nope + p->v) / PANEL, at = page * MC_PAGE, i, n, k;
    float *keys = g->keys + page * d * MC_PAGE, *values = g->values + page * g->vp * MC_PAGE;
    uint8_t *from = mc_kv_page(&p->kv, p->layer, g->slot, g->split * MC_SPLIT + at);
    struct block b = {.n = MC_PAGE, .c = p->kv.c, .r = p->kv.r,
                      .scale = p->kv.k_scale ? p->kv.k_scale[p->layer] : 1};
    _Alignas(64) float y[2 * ROWS * PANEL];
    struct latents l;
    struct mc_act a;

    for (i = 0; i < MC_PAGE; i++) /* none past n_tok: it may hold anything */
        b.tok[i] = mc_mla_at(&p->kv, from, i < g->n_tok - at ? i : g->n_tok - at - 1);
    a = latent_rows(g, &b, &l);
    block_turn(p->kv.layout, &b, b.c, b.c + b.r, keys + p->nope * MC_PAGE);
    for (i = 0; i < each; i += n) {
        n = each - i > 1 && a.layout == MC_A_F32 ? 2 : 1;
        if (a.layout == MC_A_F32)
            panel_floats(&a, 0, MC_PAGE, &p->kv_b, (int64_t)g->head * each + i, n, y);
        else
            panel_ints(&a, 0, MC_PAGE, &p->kv_b, (int64_t)g->head * each + i, y);
        for (k = i; k < i + n; k++) {
            const float *part = y + (k - i) * ROWS * PANEL;

            if (k * PANEL < p->nope)
                put_keys(part, keys + k * PANEL * MC_PAGE);
            else
                put_values(part, k * PANEL - p->nope, values);
        }
    }
}

/* ---- rows over a split ------------------------------------------------------------------- */

/* o of n rows += the values of a page. The tokens that four rows all see go together. */
static void ragged_values(const struct ragged *g, int32_t n, const struct span *see,
                          float prob[][MC_SPLIT], int32_t page, float *o)
{
    int32_t at = page * MC_PAGE, c, i, k, m;

    for (c = 0; c < g->vp; c += COLS) {
        const float *v = g->values + page * g->vp * MC_PAGE + c * MC_PAGE;

        for (i = 0; i < n; i += m) {
            struct span all = on_page(see[i], at), s; /* the first sees least */

            m = n - i < MUL_R ? n - i : MUL_R;
            all.hi = all.hi > all.lo ? all.hi : all.lo;
            mul_rows(m, all.hi - all.lo, prob[i] + at + all.lo, MC_SPLIT, v + all.lo * COLS,
                     COLS, o + i * g->vp + c, g->vp);
            for (k = i; k < i + m; k++) {
                s = on_page(see[k], at);
                if (s.hi > all.hi)
                    mul_rows(1, s.hi - all.hi, prob[k] + at + all.hi, MC_SPLIT,
                             v + all.hi * COLS, COLS, o + k * g->vp + c, g->vp);
            }
        }
    }
}

/* Rows [t, t+n), at most LONG_TILE, over the split; row0: the item's first. */
static void ragged_tile(struct ragged *g, int32_t row0, int32_t t, int32_t n)
{
    const struct mc_attn_ragged_p *p = g->p;
    int32_t d = p->nope + p->kv.r, at = g->split * MC_SPLIT, most, i, k, page;
    _Alignas(64) float q[LONG_TILE * LONG_D], prob[LONG_TILE][MC_SPLIT];
    float o[LONG_TILE * LONG_D], ml[LONG_TILE][2] = {{0}};
    struct span see[LONG_TILE];

    for (i = 0; i < n; i++) {
        see[i].lo = p->first > at ? p->first - at : 0;
        see[i].hi = p->rows.pos[t + i] + 1 - at;
        see[i].hi = see[i].hi < MC_SPLIT ? see[i].hi : MC_SPLIT;
        memcpy(q + i * d, (const float *)p->q + ((int64_t)(t + i) * p->h + g->head) * d,
               (size_t)d * sizeof q[0]);
    }
    most = see[n - 1].hi;
    memset(prob, 0, (size_t)n * sizeof prob[0]);
    memset(o, 0, (size_t)(n * g->vp) * sizeof o[0]);
    for (page = 0; page * MC_PAGE < most; page++)
        for (i = 0; i < d; i += DEEP) {
            k = d - i < DEEP ? d - i : DEEP;
            mul_rows(n, k, q + i, d, g->keys + (page * d + i) * MC_PAGE, MC_PAGE,
                     prob[0] + page * MC_PAGE, MC_SPLIT);
        }
    for (i = 0; i < n; i++)
        if (see[i].lo < see[i].hi)
            soften(prob[i], see[i], p->scale, ml[i]);
    for (page = 0; page * MC_PAGE < most; page++)
        ragged_values(g, n, see, prob, page, o);
    for (i = 0; i < n; i++) /* a row that saw nothing has a sum of 0: mc_fold passes over it */
        mc_fold(g->ml[t - row0 + i], g->o + (t - row0 + i) * g->vp, ml[i], o + i * g->vp, p->v);
}

/* Rows [t0, t1) of one long chunk, one head. */
static void ragged_rows(struct ragged *g, int32_t t0, int32_t t1)
{
    const struct mc_attn_ragged_p *p = g->p;
    int32_t last = p->rows.pos[t1 - 1], t, page;

    for (t = t0; t < t1; t++) {
        g->ml[t - t0][0] = -INFINITY;
        g->ml[t - t0][1] = 0;
    }
    memset(g->o, 0, (size_t)((t1 - t0) * g->vp) * sizeof g->o[0]);
    if (g->vp > p->v)
        memset(g->values, 0, sizeof g->values);
    for (g->split = 0; g->split <= last / MC_SPLIT; g->split++) {
        g->n_tok = last + 1 - g->split * MC_SPLIT;
        g->n_tok = g->n_tok < MC_SPLIT ? g->n_tok : MC_SPLIT;
        if (p->slots[g->slot].bad)
            break;
        for (page = 0; page * MC_PAGE < g->n_tok; page++)
            expand_page(g, page);
        for (t = t0; t < t1; t += LONG_TILE)
            if (p->rows.pos[t1 - t < LONG_TILE ? t1 - 1 : t + LONG_TILE - 1] >=
                g->split * MC_SPLIT)
                ragged_tile(g, t0, t, t1 - t < LONG_TILE ? t1 - t : LONG_TILE);
    }
    for (t = t0; t < t1; t++) {
        mc_fold_end(g->ml[t - t0], g->o + (t - t0) * g->vp, p->v);
        act_put(&p->act, t, g->head * p->v, p->v, g->o + (t - t0) * g->vp);
    }
}

/* ---- work -------------------------------------------------------------------------------- */

/* Long chunks are cut in blocks of LONG_ROWS rows. Finds block `at`, or counts them all. */
static int32_t ragged_block(const struct mc_attn_ragged_p *p, int32_t at, int32_t *t0,
                            int32_t *t1)
{
    const struct mc_rows *r = &p->rows;
    int32_t s, t, n = 0;

    for (s = 0; s < r->live[MC_LIVE_SEQS]; s++)
        for (t = r->q0[s]; t < r->q0[s + 1]; t += LONG_ROWS)
            if (mc_row_is_long(r, t, p->long_rows) && n++ == at) {
                *t0 = t;
                *t1 = r->q0[s + 1] - t < LONG_ROWS ? r->q0[s + 1] : t + LONG_ROWS;
                return n;
            }
    return n;
}

static void ragged_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_attn_ragged_p *p = ctx;
    int32_t t0 = 0, t1 = 0;
    struct ragged g;

    (void)lane;
    g.p = p;
    g.vp = (p->v + COLS - 1) / COLS * COLS;
    for (; i0 < i1; i0++) {
        ragged_block(p, (int32_t)(i0 / p->h), &t0, &t1);
        g.head = (int32_t)(i0 % p->h);
        g.slot = p->rows.slot[p->rows.row_seq[t0]];
        ragged_rows(&g, t0, t1);
    }
}

static int attn_ragged(struct mc_par *par, const struct mc_attn_ragged_p *p)
{
    int32_t t0, t1;

    mc_par_for(par, (int64_t)ragged_block(p, -1, &t0, &t1) * p->h, 1, ragged_items, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(attn_ragged), attn_ragged, attn_ragged_need, attn_ragged);

/* mla_attn.inl - attention to latents: one kv head, whose first c values are the values too.
 *
 * The queries of an item are the heads of one decode row, or of as many prefill rows of one
 * sequence as make LAT_Q of them; a block of tokens is turned once for all their scores and
 * widened once for all their values (latent.inl). With a list of positions a row has tokens
 * of its own, and blocks are gathered; all else is the same. Splits and folds as in attn.inl:
 * a row has the same bits as decode or prefill row, in any batch and chunk. A value is added
 * only for tokens that its row sees, since an unwritten byte may be a NaN. */

enum { LAT_Q = 64 };

static int mla_attn_need(const struct mc_mla_attn_p *p, struct mc_need *need, const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)need;
    if (!no && (p->h < 1 || p->n_part < 1))
        no = "mla_attn: no heads, or n_part below 1";
    if (!no && p->first < 0)
        no = "mla_attn: positions below 0";
    if (!no && p->idx && p->topk < 1)
        no = "mla_attn: topk of 0";
    if (!no && p->fresh && (p->idx || p->kv.n_shard > 1))
        no = "mla_attn: fresh latents under an index, or of sharded tokens";
    return no ? mc_refuse(why, no) : 0;
}

/* How many tokens of this rank's own lie before position pos of row t's slot. */
static int32_t lat_own(const struct mc_mla_attn_p *p, int32_t t, int32_t pos)
{
    return mc_kv_own(&p->kv, p->rows.slot[p->rows.row_seq[t]], pos);
}

/* Tokens of split `split` that row t sees. */
static struct span lat_seen(const struct mc_mla_attn_p *p, int32_t t, int32_t split)
{
    int32_t at = split * MC_SPLIT;
    int32_t end = p->idx ? p->topk : lat_own(p, t, p->rows.pos[t] + 1);
    struct span see = {0, end - at < MC_SPLIT ? end - at : MC_SPLIT};
    const int32_t *list;
    int32_t i = 0;

    if (!p->idx) {
        i = lat_own(p, t, p->first);
        see.lo = i > at ? i - at : 0;
        return see;
    }
    list = p->idx + (int64_t)t * p->topk + at;
    while (i < see.hi && list[i] >= 0)
        i++;
    see.hi = i;
    return see;
}

/* Tokens [at, at+n) of the split for row t; past n the first is repeated. */
static struct block lat_block(const struct mc_mla_attn_p *p, int32_t t, int32_t split,
                              int32_t at, int32_t n)
{
    const struct mc_kv *kv = &p->kv;
    int32_t slot = p->rows.slot[p->rows.row_seq[t]], pos = split * MC_SPLIT + at, j;
    const int32_t *list = p->idx ? p->idx + (int64_t)t * p->topk + pos : NULL;
    struct block b = {.n = n < MC_PAGE ? n : MC_PAGE, .c = kv->c, .r = kv->r,
                      .scale = kv->k_scale ? kv->k_scale[p->layer] : 1,
                      .layout = kv->layout};
    uint8_t *page = NULL;
    int32_t from;

    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE]) {
        float *own = mc_fresh_of(kv, &p->rows, p->rows.row_seq[t], p->fresh, &from);

        if (pos >= from)
            b.layout = MC_KV_F32;
        for (j = 0; j < MC_PAGE && pos >= from; j++)
            b.tok[j] = (const uint8_t *)mc_fresh_latent(kv, own, pos - from + (j < b.n ? j : 0));
        if (pos >= from)
            return b;
    }
    for (j = 0; j < b.n; j++) {
        if (list)
            pos = list[j];
        if (list || j == 0)
            page = mc_kv_page(kv, p->layer, slot, list ? pos : mc_kv_pos(kv, slot, pos));
        b.tok[j] = mc_mla_at(kv, page, list ? pos : pos + j);
    }
    for (; j < MC_PAGE; j++)
        b.tok[j] = b.tok[0];
    return b;
}

/* The queries at work: rows of one sequence, the same heads of each. */
struct lat_work {
    const struct mc_mla_attn_p *p;
    int32_t t0, n_row, head0, n_head, split;
    struct span see[LAT_Q]; /* of each row; lo >= hi: nothing */
    int32_t most;           /* the largest hi */
    float prob[LAT_Q][MC_SPLIT];
    float o[LAT_Q * MAX_D]; /* [n_row*n_head][c] */
};

/* Asks for tokens [j0, j1) of a block that will be read soon: its pages lie anywhere, so the
 * processor can't foresee them. */
static void block_ahead(const struct block *b, int64_t token_bytes, int32_t j0, int32_t j1)
{
    int64_t i;

    for (; j0 < j1; j0++)
        for (i = 0; i < token_bytes; i += 64)
            __builtin_prefetch(b->tok[j0] + i, 0, 2);
}

/* Scores of all queries; a block's lanes past what is seen hold anything. */
static void lat_scores(struct lat_work *w)
{
    _Alignas(64) float keys[DEEP * MC_PAGE];
    const struct mc_mla_attn_p *p = w->p;
    int64_t bytes = mc_mla_token_bytes(p->kv.layout, p->kv.c, p->kv.r);
    int32_t d = p->kv.c + p->kv.r, n = w->n_row * w->n_head, at, i, k;
    struct block b = lat_block(p, w->t0, w->split, 0, w->most), next = b;
    const float *q = (const float *)p->q + ((int64_t)w->t0 * p->h + w->head0) * d;

    memset(w->prob, 0, (size_t)n * sizeof w->prob[0]);
    for (at = 0; at < w->most; at += MC_PAGE, b = next) {
        next.n = 0;
        if (at + MC_PAGE < w->most)
            next = lat_block(p, w->t0, w->split, at + MC_PAGE, w->most - at - MC_PAGE);
        for (i = 0; i < d; i += DEEP) {
            k = d - i < DEEP ? d - i : DEEP;
            block_ahead(&next, bytes, next.n * i / d, next.n * (i + k) / d);
            block_turn(b.layout, &b, i, i + k, keys);
            mul_rows(n, k, q + i, d, keys, MC_PAGE, w->prob[0] + at, MC_SPLIT);
        }
    }
}

static void lat_values(struct lat_work *w)
{
    _Alignas(64) float wide[MC_PAGE * COLS];
    const struct mc_mla_attn_p *p = w->p;
    int32_t c = p->kv.c, at, i, row, q;
    struct span s;

    memset(w->o, 0, (size_t)(w->n_row * w->n_head * c) * sizeof w->o[0]);
    for (at = 0; at < w->most; at += MC_PAGE) {
        struct block b = lat_block(p, w->t0, w->split, at, w->most - at);

        for (i = 0; i < c; i += COLS) {
            block_widen(b.layout, &b, i, wide, COLS);
            for (row = 0; row < w->n_row; row++) {
                s = on_page(w->see[row], at);
                q = row * w->n_head;
                if (s.lo < s.hi)
                    mul_rows(w->n_head, s.hi - s.lo, w->prob[q] + at + s.lo, MC_SPLIT,
                             wide + s.lo * COLS, COLS, w->o + q * c + i, c);
            }
        }
    }
}

/* One split. Decode rows leave part `split`, prefill rows fold into part 0. */
static void lat_split(struct lat_work *w, bool decode)
{
    const struct mc_mla_attn_p *p = w->p;
    float ml[LAT_Q][2];
    int32_t c = p->kv.c, row, i, q;
    int64_t part;

    w->most = 0;
    for (row = 0; row < w->n_row; row++) {
        struct span see = w->see[row] = lat_seen(p, w->t0 + row, w->split);

        if (see.lo < see.hi && see.hi > w->most)
            w->most = see.hi;
    }
    if (w->most < 1)
        return;
    lat_scores(w);
    for (q = 0; q < w->n_row * w->n_head; q++) {
        struct span s = w->see[q / w->n_head];

        if (s.lo < s.hi)
            soften(w->prob[q], s, p->scale, ml[q]);
    }
    lat_values(w);
    for (row = 0, q = 0; row < w->n_row; row++) {
        part = mc_part_row(w->t0 + row, p->cap_decode, p->n_part) + (decode ? w->split : 0);
        for (i = w->head0; i < w->head0 + w->n_head; i++, q++) {
            float *to = p->o + (part * p->h + i) * c, *to_ml = p->ml + (part * p->h + i) * 2;

            if (w->see[row].lo >= w->see[row].hi)
                continue;
            if (decode) {
                memcpy(to_ml, ml[q], sizeof ml[q]);
                memcpy(to, w->o + q * c, (size_t)c * sizeof to[0]);
            } else {
                mc_fold(to_ml, to, ml[q], w->o + q * c, c);
            }
        }
    }
}

static void lat_clear(const struct mc_mla_attn_p *p, int32_t t, int32_t split, int32_t head0,
                      int32_t n_head)
{
    int64_t part = mc_part_row(t, p->cap_decode, p->n_part) + split;
    float *ml = p->ml + (part * p->h + head0) * 2;
    int32_t i;

    for (i = 0; i < n_head; i++) {
        ml[2 * i] = -INFINITY;
        ml[2 * i + 1] = 0;
    }
}

/* All splits for prefill rows [t0, t1) of one sequence. */
static void lat_prefill(struct lat_work *w, int32_t t0, int32_t t1)
{
    const struct mc_mla_attn_p *p = w->p;
    int32_t t, last = p->idx ? (p->topk - 1) / MC_SPLIT : p->rows.pos[t1 - 1] / MC_SPLIT;

    for (t = t0; t < t1; t++)
        lat_clear(p, t, 0, w->head0, w->n_head);
    if (p->slots[p->rows.slot[p->rows.row_seq[t0]]].bad ||
        mc_row_is_long(&p->rows, t0, p->long_rows))
        return;
    w->t0 = t0;
    w->n_row = t1 - t0;
    for (w->split = 0; w->split <= last; w->split++)
        lat_split(w, false);
}

/* ---- work ------------------------------------------------------------------------------ */

/* Items as in attn.inl: prefill tiles of `tall` rows, last first, then decode rows by split;
 * each for `wide` heads. */
struct lat_items {
    const struct mc_mla_attn_p *p;
    int32_t wide, n_wide, tall;
    int32_t n_dec, n_split, n_tile;
};

static void lat_item(const struct lat_items *l, int64_t item, struct lat_work *w)
{
    const struct mc_mla_attn_p *p = l->p;
    const struct mc_rows *r = &p->rows;
    int32_t rows = r->live[MC_LIVE_ROWS], t, t1, end;

    w->p = p;
    w->head0 = (int32_t)(item % l->n_wide) * l->wide;
    w->n_head = p->h - w->head0 < l->wide ? p->h - w->head0 : l->wide;
    item /= l->n_wide;
    if (item < l->n_tile) {
        t = l->n_dec + (int32_t)(l->n_tile - 1 - item) * l->tall;
        end = t + l->tall < rows ? t + l->tall : rows;
        for (; t < end; t = t1) {
            for (t1 = t + 1; t1 < end && r->row_seq[t1] == r->row_seq[t]; t1++)
                ;
            lat_prefill(w, t, t1);
        }
        return;
    }
    w->t0 = (int32_t)((item - l->n_tile) / l->n_split);
    w->split = (int32_t)((item - l->n_tile) % l->n_split);
    w->n_row = 1;
    if (w->split > r->pos[w->t0] / MC_SPLIT)
        return;
    lat_clear(p, w->t0, w->split, w->head0, w->n_head);
    if (!p->slots[r->slot[r->row_seq[w->t0]]].bad)
        lat_split(w, true);
}

static void lat_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    struct lat_work w;

    (void)lane;
    for (; i0 < i1; i0++)
        lat_item(ctx, i0, &w);
}

static int mla_attn(struct mc_par *par, const struct mc_mla_attn_p *p)
{
    const int32_t *live = p->rows.live;
    struct lat_items l = {.p = p, .n_dec = live[MC_LIVE_DECODE]};
    int32_t t, n;

    if (l.n_dec > p->cap_decode)
        return MC_K_EINTERNAL;
    for (t = 0; t < l.n_dec; t++) {
        n = p->rows.pos[t] / MC_SPLIT + 1;
        l.n_split = n > l.n_split ? n : l.n_split;
        n = p->idx && p->rows.pos[t] >= p->topk ? p->topk
                                                : lat_own(p, t, p->rows.pos[t] + 1);
        if (n > p->n_part * MC_SPLIT)
            return MC_K_EINTERNAL;
    }
    l.n_split = l.n_split < p->n_part ? l.n_split : p->n_part;
    l.wide = p->h < LAT_Q ? p->h : LAT_Q;
    l.n_wide = (p->h + l.wide - 1) / l.wide;
    l.tall = p->idx ? 1 : LAT_Q / l.wide;
    l.n_tile = (live[MC_LIVE_ROWS] - l.n_dec + l.tall - 1) / l.tall;
    mc_par_for(par, ((int64_t)l.n_tile + (int64_t)l.n_dec * l.n_split) * l.n_wide, 1,
               lat_items, &l);
    return 0;
}

MC_HOST_OP(ISA(mla_attn), mla_attn, mla_attn_need, mla_attn);

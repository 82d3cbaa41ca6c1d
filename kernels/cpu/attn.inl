/* attn.inl - gqa_attn and attn_merge over the page pool.
 *
 * The unit is a split of MC_SPLIT positions, one kv head, and up to MAX_Q queries that
 * share its keys and values: the heads of a group for a decode row, those of several rows
 * of one sequence in prefill.
 *
 * INVARIANTS: a query's scores, max, sum and o depend on its own visible positions only:
 * a score is one dot (attn_tile.inl); probabilities are summed in lanes of the position
 * within the split; o adds positions in rising order. A position that a query may not see
 * enters none of its sums (an unwritten byte may be a NaN). Hence a row has the same bits
 * as decode or prefill row, in any batch and chunk. */

enum {
    MAX_Q = 32,
    MANY_Q = 8, /* from here on a page is unpacked once for all */
    MAX_COLS = 65536, /* h*d: a merged row, on the stack */
};

/* Where one kv head's keys and values lie for a split of a sequence. */
struct kv_split {
    const struct mc_kv *kv;
    int32_t layer, slot, head, pos; /* pos: the split's first position */
};

/* The keys (v 0) or values (v 1) of the page that begins at position at0 of the split. */
static const void *kv_page(const struct kv_split *s, int v, int32_t at0)
{
    uint8_t *page = mc_kv_page(s->kv, s->layer, s->slot, s->pos + at0);

    return mc_kv_at(s->kv, page, v, s->head, 0);
}

/* A span's part of the page that begins at at0, counted from there. */
static struct span on_page(struct span s, int32_t at0)
{
    s.lo = s.lo > at0 ? s.lo - at0 : 0;
    s.hi = s.hi - at0 < MC_PAGE ? s.hi - at0 : MC_PAGE;
    return s;
}

/* Multiplies values [lo, hi) of x, whole vectors, by the tokens' fp8 scales. */
static void mul_scales(const struct kv_split *s, int v, float *x, int32_t lo, int32_t hi)
{
    for (; lo < hi; lo += VN) {
        uint8_t *page = mc_kv_page(s->kv, s->layer, s->slot, s->pos + lo);
        const float *scale = mc_kv_scale(s->kv, page, v, s->head, lo);

        vf_store(x + lo, vf_mul(vf_load(x + lo), vf_load(scale)));
    }
}

static void fill(float *x, int32_t lo, int32_t hi, float value)
{
    for (; lo < hi; lo++)
        x[lo] = value;
}

/* Scores to probabilities; ml: {max, sum}. Whole vectors are worked on, aligned in the
 * split; what is not visible counts as a score of -inf. */
static void softmax(const struct kv_split *s, struct query *q, float scale, float *ml)
{
    int32_t lo = q->see.lo / VN * VN, hi = (q->see.hi + VN - 1) / VN * VN, j;
    bool fp8 = s->kv->layout == MC_KV_FP8;
    vf max = vf_set(-INFINITY), sum = vf_set(0), x;

    if (fp8)
        mul_scales(s, 0, q->prob, lo, hi);
    for (j = lo; j < hi; j += VN)
        vf_store(q->prob + j, vf_mul(vf_load(q->prob + j), vf_set(scale)));
    fill(q->prob, lo, q->see.lo, -INFINITY);
    fill(q->prob, q->see.hi, hi, -INFINITY);
    for (j = lo; j < hi; j += VN)
        max = vf_max(vf_load(q->prob + j), max); /* passes over a NaN; the sum finds it */
    ml[0] = vf_top(max);
    for (j = lo; j < hi; j += VN) {
        x = vf_exp(vf_sub(vf_load(q->prob + j), vf_set(ml[0])));
        sum = vf_add(sum, x);
        vf_store(q->prob + j, x);
    }
    ml[1] = vf_sum(sum);
    if (fp8)
        mul_scales(s, 1, q->prob, lo, hi);
}

/* o of a tile of queries over the tokens of one page that begins at at0. Positions that all
 * of them see go together, the ragged ends one by one; either way each adds its positions in
 * rising order. */
static void tile_values(int tile, int layout, const void *v, int32_t d, struct query *q,
                        int32_t at0)
{
    page_fn all = query_tiles[tile].values[layout];
    page_fn one = query_tiles[ONE_QUERY].values[layout];
    struct span see[TILE_Q], common = {0, MC_PAGE};
    int32_t n;

    for (n = 0; n < query_tiles[tile].n; n++) {
        see[n] = on_page(q[n].see, at0);
        common.lo = see[n].lo > common.lo ? see[n].lo : common.lo;
        common.hi = see[n].hi < common.hi ? see[n].hi : common.hi;
    }
    if (common.lo > common.hi)
        common.lo = common.hi = MC_PAGE;
    for (n = 0; n < query_tiles[tile].n; n++)
        one(v, d, &q[n], at0, see[n].lo, common.lo < see[n].hi ? common.lo : see[n].hi);
    all(v, d, q, at0, common.lo, common.hi);
    for (n = 0; n < query_tiles[tile].n; n++)
        one(v, d, &q[n], at0, common.hi > see[n].lo ? common.hi : see[n].lo, see[n].hi);
}

/* What any of n queries sees of the page that begins at at0. */
static struct span any_sees(const struct query *q, int32_t n, int32_t at0)
{
    struct span all = {MC_PAGE, 0}, s;
    int32_t i;

    for (i = 0; i < n; i++) {
        s = on_page(q[i].see, at0);
        all.lo = s.lo < all.lo ? s.lo : all.lo;
        all.hi = s.hi > all.hi ? s.hi : all.hi;
    }
    return all;
}

/* Scores of n queries for the page at at0. */
static void page_scores(const struct kv_split *s, int32_t n, struct query *q, int32_t at0)
{
    _Alignas(64) float turned[MAX_D * MC_PAGE];
    const void *k = kv_page(s, 0, at0);
    int32_t i, d = s->kv->d, tile = 0;
    struct span see;

    if (n < MANY_Q) {
        for (i = 0; i < n; i += query_tiles[tile].n) {
            while (query_tiles[tile].n > n - i)
                tile++;
            see = any_sees(q + i, query_tiles[tile].n, at0);
            query_tiles[tile].scores[s->kv->layout](k, d, q + i, at0, see.lo, see.hi);
        }
        return;
    }
    turn_keys(s->kv->layout, k, d, turned);
    for (i = 0; i < n; i += 2) {
        int pair = n - i < 2 ? 1 : 2;

        see = any_sees(q + i, pair, at0);
        turned_scores(pair, turned, d, q + i, at0, see.lo, see.hi);
    }
}

/* o of n queries += the values of the page at at0. */
static void page_values(const struct kv_split *s, int32_t n, struct query *q, int32_t at0)
{
    _Alignas(64) float wide[MAX_D * MC_PAGE];
    const void *v = kv_page(s, 1, at0);
    int32_t i, d = s->kv->d, tile = 0, layout = s->kv->layout;

    if (n >= MANY_Q && layout != MC_KV_F32) {
        widen_values(layout, v, d, wide);
        v = wide;
        layout = MC_KV_F32;
    }
    for (i = 0; i < n; i += query_tiles[tile].n) {
        while (query_tiles[tile].n > n - i)
            tile++;
        tile_values(tile, layout, v, d, q + i, at0);
    }
}

/* One split for n queries, each of which sees something of it: ml [n][2] and their o. */
static void attend(const struct kv_split *s, int32_t n, struct query *q, float scale,
                   float *ml)
{
    int32_t i, at, lo = MC_SPLIT, hi = 0;

    for (i = 0; i < n; i++) {
        lo = q[i].see.lo < lo ? q[i].see.lo : lo;
        hi = q[i].see.hi > hi ? q[i].see.hi : hi;
    }
    lo = lo / MC_PAGE * MC_PAGE;
    for (at = lo; at < hi; at += MC_PAGE)
        page_scores(s, n, q, at);
    for (i = 0; i < n; i++) {
        softmax(s, &q[i], scale, ml + 2 * i);
        memset(q[i].o, 0, (size_t)s->kv->d * sizeof q[i].o[0]);
    }
    for (at = lo; at < hi; at += MC_PAGE)
        page_values(s, n, q, at);
}

/* What row position pos sees of the split that begins at `first`. */
static struct span visible(const struct mc_gqa_attn_p *p, int32_t pos, int32_t first)
{
    int32_t from = p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
    struct span s = {from - first, pos + 1 - first};

    s.lo = s.lo > 0 ? s.lo : 0;
    s.hi = s.hi < MC_SPLIT ? s.hi : MC_SPLIT;
    return s;
}

/* One split of kv head g for heads of rows [t0, t1) of one sequence. Decode rows leave part
 * `split`, prefill rows fold into part 0. */
static void attend_rows(const struct mc_gqa_attn_p *p, int32_t t0, int32_t t1, int32_t g,
                        int32_t head0, int32_t n_head, int32_t split, bool decode)
{
    const struct mc_rows *r = &p->rows;
    int32_t d = p->kv.d, h = p->h, n = 0, i, t;
    struct kv_split s = {&p->kv, p->layer, r->slot[r->row_seq[t0]], g, split * MC_SPLIT};
    _Alignas(64) float prob[MAX_Q][MC_SPLIT], o[MAX_Q][MAX_D];
    float ml[MAX_Q][2];
    struct query q[MAX_Q];
    int64_t part[MAX_Q];

    for (t = t0; t < t1; t++) {
        struct span see = visible(p, r->pos[t], s.pos);

        if (see.lo >= see.hi)
            continue;
        for (i = head0; i < head0 + n_head; i++, n++) {
            part[n] = (mc_part_row(t, p->cap_decode, p->n_part) + (decode ? split : 0)) * h + i;
            q[n] = (struct query){(const float *)p->q + ((int64_t)t * h + i) * d, prob[n],
                                  o[n], see};
        }
    }
    attend(&s, n, q, p->scale, ml[0]);
    for (i = 0; i < n; i++) {
        if (decode) {
            memcpy(p->ml + part[i] * 2, ml[i], sizeof ml[i]);
            memcpy(p->o + part[i] * d, o[i], (size_t)d * sizeof o[i][0]);
        } else {
            mc_fold(p->ml + part[i] * 2, p->o + part[i] * d, ml[i], o[i], d);
        }
    }
}

/* Part `split` (0 for prefill) of a row's heads: nothing seen. */
static void part_clear(const struct mc_gqa_attn_p *p, int32_t t, int32_t split, int32_t head0,
                       int32_t n_head)
{
    float *ml = p->ml + ((mc_part_row(t, p->cap_decode, p->n_part) + split) * p->h + head0) * 2;
    int32_t i;

    for (i = 0; i < n_head; i++) {
        ml[2 * i] = -INFINITY;
        ml[2 * i + 1] = 0;
    }
}

/* All splits for prefill rows [t0, t1) of one sequence. */
static void attend_prefill(const struct mc_gqa_attn_p *p, int32_t t0, int32_t t1, int32_t g,
                           int32_t head0, int32_t n_head)
{
    const struct mc_rows *r = &p->rows;
    int32_t t, split;

    for (t = t0; t < t1; t++)
        part_clear(p, t, 0, head0, n_head);
    if (p->slots[r->slot[r->row_seq[t0]]].bad)
        return;
    split = p->window > 0 && r->pos[t0] >= p->window ? (r->pos[t0] - p->window + 1) / MC_SPLIT
                                                     : 0;
    for (; split <= r->pos[t1 - 1] / MC_SPLIT; split++)
        attend_rows(p, t0, t1, g, head0, n_head, split, false);
}

/* ---- work ----------------------------------------------------------------------------- */

/* Items: prefill tiles of `tall` rows, last first since they see most, then decode rows by
 * split; each for one kv head and `wide` of its query heads at a time. */
struct attn_work {
    const struct mc_gqa_attn_p *p;
    int32_t wide, tall, n_wide; /* n_wide: pieces of a group of heads */
    int32_t n_dec, n_split, n_tile;
};

static void attn_item(const struct attn_work *w, int64_t item)
{
    const struct mc_gqa_attn_p *p = w->p;
    const struct mc_rows *r = &p->rows;
    int32_t each = p->kv.hk * w->n_wide, group = p->h / p->kv.hk;
    int32_t g = (int32_t)(item % each) / w->n_wide, t, t1, end, split;
    int32_t in = (int32_t)(item % each) % w->n_wide * w->wide;
    int32_t n_head = group - in < w->wide ? group - in : w->wide, head0 = g * group + in;

    item /= each;
    if (item < w->n_tile) {
        t = w->n_dec + (int32_t)(w->n_tile - 1 - item) * w->tall;
        end = t + w->tall < r->live[MC_LIVE_ROWS] ? t + w->tall : r->live[MC_LIVE_ROWS];
        for (; t < end; t = t1) {
            for (t1 = t + 1; t1 < end && r->row_seq[t1] == r->row_seq[t]; t1++)
                ;
            attend_prefill(p, t, t1, g, head0, n_head);
        }
        return;
    }
    t = (int32_t)((item - w->n_tile) / w->n_split);
    split = (int32_t)((item - w->n_tile) % w->n_split);
    if (split > r->pos[t] / MC_SPLIT)
        return;
    part_clear(p, t, split, head0, n_head);
    if (!p->slots[r->slot[r->row_seq[t]]].bad)
        attend_rows(p, t, t + 1, g, head0, n_head, split, true);
}

static void attn_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    (void)lane;
    for (; i0 < i1; i0++)
        attn_item(ctx, i0);
}

static int gqa_attn_need(const struct mc_gqa_attn_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)need;
    if (!no && p->n_part < 1)
        no = "gqa_attn: n_part below 1";
    return no ? mc_refuse(why, no) : 0;
}

static int gqa_attn(struct mc_par *par, const struct mc_gqa_attn_p *p)
{
    const int32_t *live = p->rows.live;
    int32_t group = p->h / p->kv.hk, t;
    struct attn_work w = {.p = p, .n_dec = live[MC_LIVE_DECODE]};

    if (w.n_dec > p->cap_decode)
        return MC_K_EINTERNAL;
    for (t = 0; t < w.n_dec; t++) {
        int32_t n = p->rows.pos[t] / MC_SPLIT + 1;

        w.n_split = n > w.n_split ? n : w.n_split;
    }
    if (w.n_split > p->n_part)
        return MC_K_EINTERNAL;
    w.wide = group < MAX_Q ? group : MAX_Q;
    w.n_wide = (group + w.wide - 1) / w.wide;
    w.tall = MAX_Q / w.wide;
    w.n_tile = (live[MC_LIVE_ROWS] - w.n_dec + w.tall - 1) / w.tall;
    mc_par_for(par,
               ((int64_t)w.n_tile + (int64_t)w.n_dec * w.n_split) * p->kv.hk * w.n_wide, 1,
               attn_items, &w);
    return 0;
}

MC_HOST_OP(ISA(gqa_attn), gqa_attn, gqa_attn_need, gqa_attn);

/* ---- attn_merge ----------------------------------------------------------------------- */

static int attn_merge_need(const struct mc_attn_merge_p *p, struct mc_need *need,
                           const char **why)
{
    const char *no = act_refuse(&p->act);

    (void)need;
    if (!no && (p->act.k != p->h * p->d || p->act.k > MAX_COLS))
        no = "attn_merge: columns that are not h*d, or more than 65536 of them";
    return no ? mc_refuse(why, no) : 0;
}

static void merge_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_attn_merge_p *p = ctx;
    float row[MAX_COLS], ml[2], *o;
    int64_t t, part;
    int32_t head, i, n;

    (void)lane;
    for (t = t0; t < t1; t++) {
        n = t < p->rows.live[MC_LIVE_DECODE] ? p->rows.pos[t] / MC_SPLIT + 1 : 1;
        for (head = 0; head < p->h; head++) {
            o = memset(row + (int64_t)head * p->d, 0, (size_t)p->d * sizeof row[0]);
            ml[0] = -INFINITY;
            ml[1] = 0;
            for (i = 0; i < n; i++) {
                part = mc_part_row((int32_t)t, p->cap_decode, p->n_part) + i;
                part = part * p->h + head;
                mc_fold(ml, o, p->ml + part * 2, p->o + part * p->d, p->d);
            }
            mc_fold_end(ml, o, p->d);
        }
        act_put(&p->act, t, 0, p->act.k, row);
    }
}

static int attn_merge(struct mc_par *par, const struct mc_attn_merge_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 4, merge_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(attn_merge), attn_merge, attn_merge_need, attn_merge);

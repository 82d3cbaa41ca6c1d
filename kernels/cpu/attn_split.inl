/* attn_split.inl - one split of MC_SPLIT positions, one kv head, and up to MAX_Q queries that
 * share its keys and values.
 *
 * INVARIANTS: a query's scores, max, sum and o depend on its own visible positions only: a
 * score is one dot (attn_tile.inl); probabilities are summed in lanes of the position within
 * the split; o adds positions in rising order. A position that a query may not see enters
 * none of its sums (an unwritten byte may be a NaN). Hence a row has the same bits as decode
 * or prefill row, in any batch and chunk. */

enum {
    MAX_Q = 32,
    MANY_Q = 8, /* from here on a page is unpacked once for all */
};

/* Where one kv head's keys and values lie for a split of a sequence. */
struct kv_split {
    const struct mc_kv *kv;
    int32_t layer, slot, head, pos; /* pos: the split's first position */
    float *fresh;                   /* the sequence's fresh pages, or NULL, ... */
    int32_t fresh_from;             /* ... and the position where they begin */
};

struct kv_at {
    const void *p;
    int layout;
};

static bool is_fresh(const struct kv_split *s, int32_t at0)
{
    return s->fresh && s->pos + at0 >= s->fresh_from;
}

/* The keys (v 0) or values (v 1) of the page that begins at position at0 of the split. */
static struct kv_at kv_page(const struct kv_split *s, int v, int32_t at0)
{
    int32_t pos = s->pos + at0;
    uint8_t *page;

    if (is_fresh(s, at0))
        return (struct kv_at){mc_fresh_kv(s->kv, s->fresh, v, s->head, pos - s->fresh_from),
                              MC_KV_F32};
    page = mc_kv_page(s->kv, s->layer, s->slot, pos);
    return (struct kv_at){mc_kv_at(s->kv, page, v, s->head, 0), s->kv->layout};
}

/* Multiplies values [lo, hi) of x, whole vectors, by the tokens' fp8 scales. */
static void mul_scales(const struct kv_split *s, int v, float *x, int32_t lo, int32_t hi)
{
    for (; lo < hi && !is_fresh(s, lo); lo += VN) { /* fresh ones have none, and come last */
        uint8_t *page = mc_kv_page(s->kv, s->layer, s->slot, s->pos + lo);
        const float *scale = mc_kv_scale(s->kv, page, v, s->head, lo);

        vf_store(x + lo, vf_mul(vf_load(x + lo), vf_load(scale)));
    }
}

/* Scores to probabilities; see soften. */
static void softmax(const struct kv_split *s, struct query *q, float scale, float *ml)
{
    int32_t lo = q->see.lo / VN * VN, hi = (q->see.hi + VN - 1) / VN * VN;
    bool fp8 = s->kv->layout == MC_KV_FP8;

    if (fp8)
        mul_scales(s, 0, q->prob, lo, hi);
    soften(q->prob, q->see, scale, ml);
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
    struct kv_at k = kv_page(s, 0, at0);
    int32_t i, d = s->kv->d, tile = 0;
    struct span see;

    if (n < MANY_Q) {
        for (i = 0; i < n; i += query_tiles[tile].n) {
            while (query_tiles[tile].n > n - i)
                tile++;
            see = any_sees(q + i, query_tiles[tile].n, at0);
            query_tiles[tile].scores[k.layout](k.p, d, q + i, at0, see.lo, see.hi);
        }
        return;
    }
    turn_keys(k.layout, k.p, d, turned);
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
    struct kv_at v = kv_page(s, 1, at0);
    int32_t i, d = s->kv->d, tile = 0;

    if (n >= MANY_Q && v.layout != MC_KV_F32) {
        widen_values(v.layout, v.p, d, wide);
        v = (struct kv_at){wide, MC_KV_F32};
    }
    for (i = 0; i < n; i += query_tiles[tile].n) {
        while (query_tiles[tile].n > n - i)
            tile++;
        tile_values(tile, v.layout, v.p, d, q + i, at0);
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

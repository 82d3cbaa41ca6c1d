/* attn.inl - gqa_attn and attn_merge over the page pool.
 *
 * The unit is a split of MC_SPLIT positions, one kv head, and up to MAX_Q queries that
 * share its keys and values: the heads of a group for a decode row, those of several rows
 * of one sequence in prefill.
 *
 * INVARIANTS: a query's scores, max, sum and o depend on its own visible positions only:
 * a score is one dot in lanes of d; probabilities are summed in lanes of the position
 * within the split; o adds positions in rising order. A position that a query may not see
 * enters none of its sums (an unwritten byte may be a NaN). Hence a row has the same bits
 * as decode or prefill row, in any batch and chunk. */

enum {
    MAX_Q = 32,
    MAX_COLS = 65536, /* h*d: a merged row, on the stack */
};

/* Heights of tiles of queries, falling; four tokens or four vectors of d stand beside. */
#if defined(__AVX512F__)
#define QUERY_HEIGHTS(F) F(4) F(3) F(2) F(1)
enum { TILE_Q = 4 };
#else
#define QUERY_HEIGHTS(F) F(2) F(1)
enum { TILE_Q = 2 };
#endif

/* A tile of queries at work on one split. Positions count from the split's first. */
struct span {
    int32_t lo, hi; /* visible: [lo, hi) */
};
struct query {
    const float *q; /* [d] */
    float *prob;    /* [MC_SPLIT] scores, then probabilities */
    float *o;       /* [d] */
    struct span see;
};

VEC vf kv_load(int layout, const void *p, int64_t at)
{
    switch (layout) {
    case MC_KV_F32:
        return vf_load((const float *)p + at);
    case MC_KV_BF16:
        return vf_load_bf16((const uint16_t *)p + at);
    default:
        return vf_load_e4m3((const uint8_t *)p + at);
    }
}

/* Scores of four tokens whose keys begin at k, for N queries, to prob[at..at+4). */
VEC void scores4(int layout, int N, const void *k, int32_t d, struct query *q, int32_t at)
{
    vf acc[TILE_Q][4], x, key[4];
    int32_t c, n, j;

    FLAT for (n = 0; n < N; n++)
        FLAT for (j = 0; j < 4; j++)
            acc[n][j] = vf_set(0);
    for (c = 0; c < d; c += VN) {
        FLAT for (j = 0; j < 4; j++)
            key[j] = kv_load(layout, k, (int64_t)j * d + c);
        FLAT for (n = 0; n < N; n++) {
            x = vf_load(q[n].q + c);
            FLAT for (j = 0; j < 4; j++)
                acc[n][j] = vf_fma(x, key[j], acc[n][j]);
        }
    }
    FLAT for (n = 0; n < N; n++)
        vf_sum4(acc[n][0], acc[n][1], acc[n][2], acc[n][3], q[n].prob + at);
}

/* o += prob . v over tokens [j0, j1) of a page, whose values begin at v; NV vectors of d
 * from column c0. at0: the position of the page's first token. */
VEC void values(int layout, int N, int NV, const void *v, int32_t d, int32_t c0,
                struct query *q, int32_t at0, int32_t j0, int32_t j1)
{
    vf acc[TILE_Q][4], x[4], p;
    int32_t n, i, j;

    FLAT for (n = 0; n < N; n++)
        FLAT for (i = 0; i < NV; i++)
            acc[n][i] = vf_load(q[n].o + c0 + i * VN);
    for (j = j0; j < j1; j++) {
        FLAT for (i = 0; i < NV; i++)
            x[i] = kv_load(layout, v, (int64_t)j * d + c0 + i * VN);
        FLAT for (n = 0; n < N; n++) {
            p = vf_set(q[n].prob[at0 + j]);
            FLAT for (i = 0; i < NV; i++)
                acc[n][i] = vf_fma(p, x[i], acc[n][i]);
        }
    }
    FLAT for (n = 0; n < N; n++)
        FLAT for (i = 0; i < NV; i++)
            vf_store(q[n].o + c0 + i * VN, acc[n][i]);
}

#define ONE(layout, N)                                                                     \
    static void page_scores_##layout##_##N(const void *k, int32_t d, struct query *q,      \
                                           int32_t at0, int32_t j0, int32_t j1)            \
    {                                                                                      \
        int32_t j;                                                                         \
                                                                                           \
        for (j = j0 / 4 * 4; j < j1; j += 4)                                               \
            scores4(layout, N, (const uint8_t *)k + (int64_t)j * d * mc_kv_bytes(layout),  \
                    d, q, at0 + j);                                                        \
    }                                                                                      \
    static void page_values_##layout##_##N(const void *v, int32_t d, struct query *q,      \
                                           int32_t at0, int32_t j0, int32_t j1)            \
    {                                                                                      \
        int32_t c = 0;                                                                     \
                                                                                           \
        for (; c + 4 * VN <= d; c += 4 * VN)                                               \
            values(layout, N, 4, v, d, c, q, at0, j0, j1);                                 \
        for (; c < d; c += VN)                                                             \
            values(layout, N, 1, v, d, c, q, at0, j0, j1);                                 \
    }
#define ALL(N) ONE(MC_KV_F32, N) ONE(MC_KV_BF16, N) ONE(MC_KV_FP8, N)
QUERY_HEIGHTS(ALL)
#undef ALL
#undef ONE

typedef void (*page_fn)(const void *x, int32_t d, struct query *q, int32_t at0, int32_t j0,
                        int32_t j1);

static const struct {
    int n;
    page_fn scores[MC_N_KV], values[MC_N_KV];
} query_tiles[] = {
#define ALL(N)                                                                             \
    {N,                                                                                    \
     {page_scores_MC_KV_F32_##N, page_scores_MC_KV_BF16_##N, page_scores_MC_KV_FP8_##N},   \
     {page_values_MC_KV_F32_##N, page_values_MC_KV_BF16_##N, page_values_MC_KV_FP8_##N}},
    QUERY_HEIGHTS(ALL)
#undef ALL
};

/* Where one kv head's keys and values lie for a split of a sequence. */
struct kv_split {
    const struct mc_kv *kv;
    int32_t layer, slot, head, pos; /* pos: the split's first position */
};

/* fn over positions [lo, hi), page by page; v: 0 keys, 1 values. */
static void over_pages(const struct kv_split *s, int v, page_fn fn, struct query *q,
                       int32_t lo, int32_t hi)
{
    int32_t at, j1;

    for (at = lo / MC_PAGE * MC_PAGE; at < hi; at += MC_PAGE) {
        uint8_t *page = mc_kv_page(s->kv, s->layer, s->slot, s->pos + at);

        j1 = hi - at < MC_PAGE ? hi - at : MC_PAGE;
        fn(mc_kv_at(s->kv, page, v, s->head, 0), s->kv->d, q, at, lo > at ? lo - at : 0, j1);
    }
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

/* o of n queries, a tile. Positions that all of them see go together, the ragged ends one
 * by one; either way each adds its positions in rising order. */
static void tile_values(const struct kv_split *s, int tile, struct query *q)
{
    page_fn all = query_tiles[tile].values[s->kv->layout];
    page_fn one = query_tiles[sizeof query_tiles / sizeof query_tiles[0] - 1]
                      .values[s->kv->layout];
    int32_t lo = 0, hi = MC_SPLIT, n;

    for (n = 0; n < query_tiles[tile].n; n++) {
        lo = q[n].see.lo > lo ? q[n].see.lo : lo;
        hi = q[n].see.hi < hi ? q[n].see.hi : hi;
    }
    if (lo > hi)
        lo = hi = MC_SPLIT;
    for (n = 0; n < query_tiles[tile].n; n++)
        over_pages(s, 1, one, &q[n], q[n].see.lo, lo < q[n].see.hi ? lo : q[n].see.hi);
    over_pages(s, 1, all, q, lo, hi);
    for (n = 0; n < query_tiles[tile].n; n++)
        over_pages(s, 1, one, &q[n], hi > q[n].see.lo ? hi : q[n].see.lo, q[n].see.hi);
}

/* One split for n queries, each of which sees something of it: ml [n][2] and their o. */
static void attend(const struct kv_split *s, int32_t n, struct query *q, float scale,
                   float *ml)
{
    int32_t i, k, lo, hi, tile = 0;

    for (i = 0; i < n; i += query_tiles[tile].n) {
        while (query_tiles[tile].n > n - i)
            tile++;
        lo = MC_SPLIT;
        hi = 0;
        for (k = i; k < i + query_tiles[tile].n; k++) {
            lo = q[k].see.lo < lo ? q[k].see.lo : lo;
            hi = q[k].see.hi > hi ? q[k].see.hi : hi;
        }
        over_pages(s, 0, query_tiles[tile].scores[s->kv->layout], q + i, lo, hi);
        for (k = i; k < i + query_tiles[tile].n; k++) {
            softmax(s, &q[k], scale, ml + 2 * k);
            memset(q[k].o, 0, (size_t)s->kv->d * sizeof q[k].o[0]);
        }
        tile_values(s, tile, q + i);
    }
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

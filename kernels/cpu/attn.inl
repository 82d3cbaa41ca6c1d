/* attn.inl - gqa_attn and attn_merge: work for attn_split.inl.
 *
 * The queries of a split are the heads of a group for a decode row, those of several rows of
 * one sequence in prefill. Decode rows leave a part a split, prefill rows fold theirs left to
 * right as they go: by the same mc_fold as attn_merge, so that both give the same bits. */

enum { MAX_COLS = 65536 /* h*d: a merged row, on the stack */ };

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
    struct kv_split s = {.kv = &p->kv, .layer = p->layer, .slot = r->slot[r->row_seq[t0]],
                         .head = g, .pos = split * MC_SPLIT};
    _Alignas(64) float prob[MAX_Q][MC_SPLIT], o[MAX_Q][MAX_D];
    float ml[MAX_Q][2];
    struct query q[MAX_Q];
    int64_t part[MAX_Q];

    if (p->fresh && !decode)
        s.fresh = mc_fresh_of(&p->kv, r, r->row_seq[t0], p->fresh, &s.fresh_from);
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
    bool act = !p->out && !p->fold;
    const char *no = act ? act_refuse(&p->act) : NULL;

    (void)need;
    if (!no && act && p->act.k != p->h * p->d)
        no = "attn_merge: columns that are not h*d";
    if (!no && p->h * p->d > MAX_COLS)
        no = "attn_merge: more than 65536 columns";
    return no ? mc_refuse(why, no) : 0;
}

static void merge_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_attn_merge_p *p = ctx;
    float buf[MAX_COLS], *row = buf, none[2], *ml = none, *o;
    int64_t t, part;
    int32_t head, i, n;

    (void)lane;
    for (t = t0; t < t1; t++) {
        n = t < p->rows.live[MC_LIVE_DECODE] ? p->rows.pos[t] / MC_SPLIT + 1 : 1;
        n = n < p->n_part ? n : p->n_part;
        if (p->out || p->fold)
            row = (p->fold ? p->fold : (float *)p->out) + t * p->h * p->d;
        for (head = 0; head < p->h; head++) {
            o = memset(row + (int64_t)head * p->d, 0, (size_t)p->d * sizeof row[0]);
            if (p->fold)
                ml = p->fold + (int64_t)p->rows.cap * p->h * p->d + (t * p->h + head) * 2;
            ml[0] = -INFINITY;
            ml[1] = 0;
            for (i = 0; i < n; i++) {
                part = mc_part_row((int32_t)t, p->cap_decode, p->n_part) + i;
                part = part * p->h + head;
                mc_fold(ml, o, p->ml + part * 2, p->o + part * p->d, p->d);
            }
            if (!p->fold)
                mc_fold_end(ml, o, p->d);
        }
        if (!p->out && !p->fold)
            act_put(&p->act, t, 0, p->act.k, row);
    }
}

static int attn_merge(struct mc_par *par, const struct mc_attn_merge_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 4, merge_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(attn_merge), attn_merge, attn_merge_need, attn_merge);

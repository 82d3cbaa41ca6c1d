/* dsa.inl - DSA's indexer: dsa_prep and dsa_topk.
 *
 * dsa_topk walks the keys a page at a time, turned once for the rows of an item, and keeps
 * for each row a slot of candidates: twice topk of them, cut to the topk best by a radix
 * selection when it is full, after which only larger scores than the least of those enter.
 * Candidates lie by rising position, so that a cut keeps the lowest of equal scores. Long
 * contexts of few rows are cut into segments, a slot each, and put together: the best of the
 * whole are among the best of the parts, so no result depends on how it was cut. */

enum {
    INDEX_Q = 8192,    /* values of all heads of an index query */
    TOPK_ROWS = 8,     /* prefill rows that share a turned page */
    TOPK_SPARE = 64,   /* slots beyond one a row, for segments */
    SEG_TOKENS = 1024, /* the shortest segment */
};

static const char *index_refuse(const struct mc_kv *kv, int32_t index, int32_t hi)
{
    if (kv->index_d % 16 != 0 || kv->index_d > MAX_D || hi < 1 || hi > INDEX_Q / 16 ||
        hi * kv->index_d > INDEX_Q)
        return "index heads of other than 16 to 512 values, or above 8192 for all";
    if (index < 0 || index >= kv->n_index)
        return "the pool has no such index";
    return mc_mla_refuse(kv);
}

/* ---- dsa_prep -------------------------------------------------------------------------- */

static int dsa_prep_need(const struct mc_dsa_prep_p *p, struct mc_need *need, const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);

    (void)need;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.dim < 0 || p->rope.dim > p->kv.index_d))
        no = "dsa_prep: rotated dims are odd or more than there are";
    return no ? mc_refuse(why, no) : 0;
}

static void layer_norm(const float *x, const float *w, const float *bias, float eps, int32_t n,
                       float *out)
{
    vf sum = vf_set(0), sq = vf_set(0), mean, r, y;
    int32_t i;

    for (i = 0; i < n; i += VN)
        sum = vf_add(sum, vf_load(x + i));
    mean = vf_set(vf_sum(sum) / (float)n);
    for (i = 0; i < n; i += VN) {
        y = vf_sub(vf_load(x + i), mean);
        sq = vf_fma(y, y, sq);
    }
    r = vf_set(1 / sqrtf(vf_sum(sq) / (float)n + eps));
    for (i = 0; i < n; i += VN) {
        y = vf_mul(vf_mul(vf_sub(vf_load(x + i), mean), r), vf_load(w + i));
        vf_store(out + i, vf_add(y, vf_load(bias + i)));
    }
}

/* Casts n values to e4m3; returns their scale. */
static float index_cast(const float *x, int32_t n, uint8_t *to)
{
    float m = amax_of(x, n), s = (m > 1e-4f ? m : 1e-4f) / 448;

    put_e4m3(to, x, n, s);
    return s;
}

static void index_key(const struct mc_dsa_prep_p *p, int32_t slot, int32_t pos, const float *k)
{
    uint8_t *page = mc_index_page(&p->kv, p->index, slot, pos);
    int32_t d = p->kv.index_d, at = pos % MC_PAGE;

    if (p->kv.layout == MC_KV_F32)
        memcpy((float *)page + at * d, k, (size_t)d * sizeof k[0]);
    else
        *mc_index_scale(&p->kv, page, pos) = index_cast(k, d, page + at * d);
}

static void dsa_prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_dsa_prep_p *p = ctx;
    int32_t d = p->kv.index_d, hi = p->hi, slot, pos, i;
    float x[MAX_D], c[MAX_D / 2], s[MAX_D / 2];
    float each = 1 / sqrtf((float)hi) * (1 / sqrtf((float)d));

    (void)lane;
    for (; t0 < t1; t0++) {
        slot = p->rows.slot[p->rows.row_seq[t0]];
        pos = p->rows.pos[t0];
        rope_angles(&p->rope, pos, c, s);
        for (i = 0; i < hi; i++) {
            int64_t at = t0 * hi + i;
            float gate = ((const float *)p->gate)[at] * each;

            memcpy(x, (const float *)p->q + at * d, (size_t)d * sizeof x[0]);
            rope_head(x, &p->rope, c, s);
            if (p->kv.layout == MC_KV_F32)
                memcpy((float *)p->qi + at * d, x, (size_t)d * sizeof x[0]);
            else
                gate *= index_cast(x, d, (uint8_t *)p->qi + at * d);
            p->gates[at] = gate;
        }
        if (p->slots[slot].bad || !mc_kv_mine(&p->kv, slot, pos))
            continue;
        layer_norm((const float *)p->k + t0 * d, p->k_norm, p->k_bias, p->eps, d, x);
        rope_head(x, &p->rope, c, s);
        index_key(p, slot, pos, x);
    }
}

static int dsa_prep(struct mc_par *par, const struct mc_dsa_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 2, dsa_prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(dsa_prep), dsa_prep, dsa_prep_need, dsa_prep);

/* ---- the best of many ------------------------------------------------------------------ */

/* Candidates by rising position. Once it was cut, only scores above least enter. */
struct best {
    int32_t n, k, room;
    bool was_cut;
    float least;
    float *score;
    int32_t *pos;
};

static uint32_t rising(float x) /* as unsigned, in the order of floats */
{
    uint32_t u = mc_bits_of_f32(x);

    return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* The k-th largest of n >= k keys, and how many of those equal to it are among the k. */
static uint32_t kth_largest(const float *score, int32_t n, int32_t k, int32_t *equal)
{
    uint32_t prefix = 0, mask = 0, bin;
    int32_t count[256], shift, i;

    for (shift = 24; shift >= 0; shift -= 8) {
        memset(count, 0, sizeof count);
        for (i = 0; i < n; i++) {
            uint32_t key = rising(score[i]);

            if ((key & mask) == prefix)
                count[key >> shift & 255]++;
        }
        for (bin = 255; count[bin] < k; bin--)
            k -= count[bin];
        prefix |= bin << shift;
        mask |= 255u << shift;
    }
    *equal = k;
    return prefix;
}

static void best_cut(struct best *b)
{
    uint32_t least, key;
    int32_t equal, i, n = 0;

    if (b->n < b->k)
        return;
    least = kth_largest(b->score, b->n, b->k, &equal);
    for (i = 0; i < b->n; i++) {
        key = rising(b->score[i]);
        if (key < least || (key == least && equal-- <= 0))
            continue;
        if (key == least)
            b->least = b->score[i];
        b->score[n] = b->score[i];
        b->pos[n++] = b->pos[i];
    }
    b->n = n;
    b->was_cut = true;
}

/* n <= MC_PAGE more; pos NULL: they follow each other from pos0. */
static void best_add(struct best *b, const float *score, const int32_t *pos, int32_t pos0,
                     int32_t n)
{
    int32_t i;

    if (b->n + n > b->room)
        best_cut(b);
    for (i = 0; i < n; i++)
        if (!b->was_cut || score[i] > b->least) {
            b->score[b->n] = score[i];
            b->pos[b->n++] = pos ? pos[i] : pos0 + i;
        }
}

/* ---- dsa_topk -------------------------------------------------------------------------- */

struct topk_work {
    const struct mc_dsa_topk_p *p;
    int32_t n_dec, n_tile; /* items of a segment: decode rows, then tiles of prefill rows */
    int32_t n_seg, seg;    /* tokens a segment, whole pages */
};

static int32_t topk_room(const struct mc_dsa_topk_p *p)
{
    return 2 * p->topk + MC_PAGE;
}

static size_t slot_bytes(const struct mc_dsa_topk_p *p)
{
    return MC_PAGE + (size_t)topk_room(p) * 8; /* its count, scores, positions */
}

static int dsa_topk_need(const struct mc_dsa_topk_p *p, struct mc_need *need, const char **why)
{
    const char *no = index_refuse(&p->kv, p->index, p->hi);

    if (!no && (p->topk < 1 || p->topk > INT32_MAX / 4 || p->first < 0))
        no = "dsa_topk: topk below 1 or beyond reason, or first below 0";
    need->scratch = ((size_t)p->rows.cap + TOPK_SPARE) * slot_bytes(p);
    return no ? mc_refuse(why, no) : 0;
}

/* The slot of a row's segment. */
static struct best topk_slot(const struct topk_work *w, int64_t t, int32_t seg)
{
    const struct mc_dsa_topk_p *p = w->p;
    uint8_t *at = (uint8_t *)p->scratch + (size_t)(t * w->n_seg + seg) * slot_bytes(p);
    float *score = (float *)(at + MC_PAGE);

    return (struct best){.k = p->topk, .room = topk_room(p), .score = score,
                         .pos = (int32_t *)score + topk_room(p)};
}

static int32_t *slot_count(const struct best *b)
{
    return (int32_t *)((uint8_t *)b->score - MC_PAGE);
}

/* Whether a row has more to choose from than it may keep. */
static bool must_choose(const struct mc_dsa_topk_p *p, int64_t t)
{
    return p->rows.pos[t] - p->first >= p->topk && !p->slots[p->rows.slot[p->rows.row_seq[t]]].bad;
}

/* Scores of one row for a page of turned keys: relu of each head's dots, through its gate. */
static void index_scores(const struct mc_dsa_topk_p *p, const float *q, const float *gates,
                         const float *keys, const float *scales, float *out)
{
    _Alignas(64) float dot[MUL_R * MC_PAGE];
    int32_t d = p->kv.index_d, head, n, i, j;
    vf sum;

    memset(out, 0, MC_PAGE * sizeof out[0]);
    for (head = 0; head < p->hi; head += n) {
        n = p->hi - head < MUL_R ? p->hi - head : MUL_R;
        memset(dot, 0, sizeof dot);
        mul_rows(n, d, q + head * d, d, keys, MC_PAGE, dot, MC_PAGE);
        for (j = 0; j < MC_PAGE; j += VN) {
            sum = vf_load(out + j);
            for (i = 0; i < n; i++)
                sum = vf_fma(vf_set(gates[head + i]),
                             vf_max(vf_load(dot + i * MC_PAGE + j), vf_set(0)), sum);
            vf_store(out + j, sum);
        }
    }
    for (j = 0; j < MC_PAGE; j += VN) {
        sum = scales ? vf_mul(vf_load(out + j), vf_load(scales + j)) : vf_load(out + j);
        sum = vf_max(sum, vf_set(-INFINITY));        /* a NaN is the least of all */
        vf_store(out + j, vf_add(sum, vf_set(0)));   /* -0 ties with 0 */
    }
}

static void index_query(const struct mc_dsa_topk_p *p, int64_t t, float *out)
{
    int32_t n = p->hi * p->kv.index_d, i;

    if (p->kv.layout == MC_KV_F32)
        memcpy(out, (const float *)p->qi + t * n, (size_t)n * sizeof out[0]);
    else
        for (i = 0; i < n; i += VN)
            vf_store(out + i, vf_load_e4m3((const uint8_t *)p->qi + t * n + i));
}

/* Segment seg, of this rank's own tokens, for rows [t0, t1) of one sequence, at most
 * TOPK_ROWS. */
static void topk_rows(const struct topk_work *w, int64_t t0, int64_t t1, int32_t seg)
{
    const struct mc_dsa_topk_p *p = w->p;
    int32_t d = p->kv.index_d, at = seg * w->seg, pos, end, n, i, from;
    int32_t slot = p->rows.slot[p->rows.row_seq[t0]];
    bool f32 = p->kv.layout == MC_KV_F32;
    _Alignas(64) float keys[MAX_D * MC_PAGE], score[MC_PAGE];
    float q[TOPK_ROWS][INDEX_Q];
    struct best best[TOPK_ROWS];
    int64_t t;

    for (t = t0; t < t1; t++) {
        best[t - t0] = topk_slot(w, t, seg);
        index_query(p, t, q[t - t0]);
    }
    end = mc_kv_own(&p->kv, slot, p->rows.pos[t1 - 1] + 1);
    for (end = end < at + w->seg ? end : at + w->seg; at < end; at += MC_PAGE) {
        uint8_t *page;

        pos = mc_kv_pos(&p->kv, slot, at);
        page = mc_index_page(&p->kv, p->index, slot, pos);
        from = p->first > pos ? p->first - pos : 0;
        turn_keys(f32 ? MC_KV_F32 : MC_KV_FP8, page, d, keys);
        for (t = t0; t < t1; t++) {
            n = p->rows.pos[t] + 1 - pos < MC_PAGE ? p->rows.pos[t] + 1 - pos : MC_PAGE;
            if (n <= from || !must_choose(p, t))
                continue;
            index_scores(p, q[t - t0], p->gates + t * p->hi, keys,
                         f32 ? NULL : mc_index_scale(&p->kv, page, 0), score);
            best_add(&best[t - t0], score + from, NULL, pos + from, n - from);
        }
    }
    for (i = 0; i < t1 - t0; i++)
        *slot_count(&best[i]) = best[i].n;
}

static void topk_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct topk_work *w = ctx;
    const struct mc_rows *r = &w->p->rows;
    int64_t t, t1, end, item;

    (void)lane;
    for (; i0 < i1; i0++) {
        item = i0 / w->n_seg;
        t = item < w->n_dec ? item : w->n_dec + (item - w->n_dec) * TOPK_ROWS;
        end = t + (item < w->n_dec ? 1 : TOPK_ROWS);
        end = end < r->live[MC_LIVE_ROWS] ? end : r->live[MC_LIVE_ROWS];
        for (; t < end; t = t1) {
            for (t1 = t + 1; t1 < end && r->row_seq[t1] == r->row_seq[t]; t1++)
                ;
            if (must_choose(w->p, t1 - 1))
                topk_rows(w, t, t1, (int32_t)(i0 % w->n_seg));
        }
    }
}

/* A row's list from its segments. */
static void topk_choose(const struct topk_work *w, int64_t t, int32_t *idx)
{
    struct best all = topk_slot(w, t, 0), part;
    int32_t seg, i, n;

    all.n = *slot_count(&all);
    for (seg = 1; seg < w->n_seg; seg++) {
        part = topk_slot(w, t, seg);
        part.n = *slot_count(&part);
        for (i = 0; i < part.n; i += n) {
            n = part.n - i < MC_PAGE ? part.n - i : MC_PAGE;
            best_add(&all, part.score + i, part.pos + i, 0, n);
        }
    }
    best_cut(&all);
    for (i = 0; i < w->p->topk; i++)
        idx[i] = i < all.n ? all.pos[i] : -1;
    if (w->p->score)
        memcpy(w->p->score + t * w->p->topk, all.score, (size_t)all.n * sizeof all.score[0]);
}

static void topk_lists(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct topk_work *w = ctx;
    const struct mc_dsa_topk_p *p = w->p;
    int32_t slot, at, i, n;

    (void)lane;
    for (; t0 < t1; t0++) {
        int32_t *idx = p->idx + t0 * p->topk;

        if (must_choose(p, t0)) {
            topk_choose(w, t0, idx);
            continue;
        }
        slot = p->rows.slot[p->rows.row_seq[t0]];
        at = mc_kv_own(&p->kv, slot, p->first);
        n = p->slots[slot].bad ? 0 : mc_kv_own(&p->kv, slot, p->rows.pos[t0] + 1) - at;
        for (i = 0; i < p->topk; i++)
            idx[i] = i < n ? mc_kv_pos(&p->kv, slot, at + i) : -1;
    }
}

static int dsa_topk(struct mc_par *par, const struct mc_dsa_topk_p *p)
{
    int32_t rows = p->rows.live[MC_LIVE_ROWS], most = 0, t;
    struct topk_work w = {.p = p, .n_dec = p->rows.live[MC_LIVE_DECODE]};

    for (t = 0; t < rows; t++)
        most = p->rows.pos[t] >= most ? p->rows.pos[t] + 1 : most;
    if (rows < 1)
        return 0;
    w.n_seg = (p->rows.cap + TOPK_SPARE) / rows;
    t = (most + SEG_TOKENS - 1) / SEG_TOKENS;
    w.n_seg = w.n_seg < t ? w.n_seg : t;
    w.seg = ((most + w.n_seg - 1) / w.n_seg + MC_PAGE - 1) / MC_PAGE * MC_PAGE;
    w.n_tile = (rows - w.n_dec + TOPK_ROWS - 1) / TOPK_ROWS;
    mc_par_for(par, (int64_t)(w.n_dec + w.n_tile) * w.n_seg, 1, topk_items, &w);
    mc_par_for(par, rows, 4, topk_lists, &w);
    return 0;
}

MC_HOST_OP(ISA(dsa_topk), dsa_topk, dsa_topk_need, dsa_topk);

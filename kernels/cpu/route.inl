/* route.inl - which experts a row goes to: logits through the panels, then each row's choice,
 * then the experts' lists. */

enum { MAX_E = 1024 }; /* experts; a multiple of every vector, as E is rounded up to */

static int32_t route_pitch(const struct mc_route_p *p)
{
    return panels(p->w.n) * PANEL;
}

static int route_need(const struct mc_route_p *p, struct mc_need *need, const char **why)
{
    const struct mc_act x = {.k = p->w.k, .layout = MC_A_F32};
    const char *no = weight_refuse(&x, &p->w);
    int32_t n = p->w.n;

    if (!no && (n > MAX_E || p->top_k < 1 || p->top_k > n))
        no = "route: 1 <= top_k <= experts <= 1024 does not hold";
    if (!no && p->n_group > 1 &&
        (n % p->n_group != 0 || p->topk_group < 1 || p->topk_group > p->n_group ||
         p->topk_group * (n / p->n_group) < p->top_k))
        no = "route: groups that do not divide the experts or are too few";
    need->scratch = (size_t)p->cap * (size_t)route_pitch(p) * sizeof(float);
    return no ? mc_refuse(why, no) : 0;
}

/* Logits of a pair of panels for at most ROWS rows; see linear_items. */
static void route_items(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_route_p *p = ctx;
    const struct mc_act x = {.x = (void *)p->x, .k = p->w.k, .layout = MC_A_F32};
    _Alignas(64) float y[2 * ROWS * PANEL];
    int32_t rows = *p->n_live, pitch = route_pitch(p), t0, n, r, c, at;
    float *logits = p->scratch;
    int64_t pair;

    (void)lane;
    for (; i0 < i1; i0++) {
        pair = i0 / spans(rows);
        t0 = (int32_t)(i0 % spans(rows)) * ROWS;
        n = rows - t0 < ROWS ? rows - t0 : ROWS;
        pair_rows(&x, t0, n, &p->w, pair, y);
        for (r = 0; r < n; r++)
            for (c = 0; c < PAIR && pair * PAIR + c < pitch; c += VN) {
                at = (c / PANEL * ROWS + r) * PANEL + c % PANEL;
                vf_store(logits + (int64_t)(t0 + r) * pitch + pair * PAIR + c,
                         vf_load(y + at));
            }
    }
}

/* Logits [n] become scores, to the end of the last vector. */
static void route_scores(float *x, int32_t n, bool softmax)
{
    vf max = vf_set(-INFINITY), sum = vf_set(0), one = vf_set(1), y;
    int32_t i;

    for (i = 0; i < n; i += VN)
        if (!softmax)
            vf_store(x + i, vf_div(one, vf_add(one, vf_exp(vf_sub(vf_set(0), vf_load(x + i))))));
    if (!softmax)
        return;
    for (i = n; i % VN != 0; i++)
        x[i] = -INFINITY;
    for (i = 0; i < n; i += VN)
        max = vf_max(vf_load(x + i), max);
    max = vf_set(vf_top(max));
    for (i = 0; i < n; i += VN) {
        y = vf_exp(vf_sub(vf_load(x + i), max));
        sum = vf_add(sum, y);
        vf_store(x + i, y);
    }
    sum = vf_set(vf_sum(sum));
    for (i = 0; i < n; i += VN)
        vf_store(x + i, vf_div(vf_load(x + i), sum));
}

/* The k largest of v[n], largest first, the lowest index on ties; v loses them. */
static void take_largest(float *v, int32_t n, int32_t k, int32_t *ids, float *values)
{
    bool taken[MAX_E] = {false};
    int32_t i, j, best;

    for (j = 0; j < k; j++) {
        for (best = -1, i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || v[i] > v[best]))
                best = i;
        taken[best] = true;
        ids[j] = best;
        if (values)
            values[j] = v[best];
    }
}

/* Leaves only the experts of the best groups: those whose two best sum highest. */
static void mask_groups(const struct mc_route_p *p, float *v)
{
    int32_t n = p->w.n / p->n_group, g, i, two[2], best[MAX_E];
    float sum[MAX_E], value[2];
    bool in[MAX_E] = {false};

    for (g = 0; g < p->n_group; g++) {
        value[1] = 0;
        take_largest(v + g * n, n, n < 2 ? n : 2, two, value);
        sum[g] = value[0] + value[1];
    }
    take_largest(sum, p->n_group, p->topk_group, best, NULL);
    for (i = 0; i < p->topk_group; i++)
        in[best[i]] = true;
    for (i = 0; i < p->w.n; i++)
        if (!in[i / n])
            v[i] = -INFINITY;
}

static void route_row(const struct mc_route_p *p, int64_t t)
{
    float *score = (float *)p->scratch + t * route_pitch(p), pick[MAX_E], sum = 0;
    float *weights = p->weights + t * p->top_k;
    int32_t *ids = p->ids + t * p->top_k, i;

    route_scores(score, p->w.n, p->softmax);
    for (i = 0; i < p->w.n; i++)
        pick[i] = p->bias ? score[i] + p->bias[i] : score[i];
    if (p->n_group > 1)
        mask_groups(p, pick);
    take_largest(pick, p->w.n, p->top_k, ids, NULL);
    for (i = 0; i < p->top_k; i++)
        sum += score[ids[i]];
    for (i = 0; i < p->top_k; i++)
        weights[i] = (p->norm ? score[ids[i]] / (sum + 1e-20f) : score[ids[i]]) * p->factor;
}

static void route_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    (void)lane;
    for (; t0 < t1; t0++)
        route_row(ctx, t0);
}

/* Counts, where each expert's list begins, then the lists: one pass each. */
static void route_lists(const struct mc_route_p *p)
{
    int32_t n = *p->n_live * p->top_k, *offset = p->offset, next[MAX_E], e, i;

    memset(offset, 0, (size_t)(p->w.n + 1) * sizeof offset[0]);
    for (i = 0; i < n; i++)
        offset[p->ids[i] + 1]++;
    for (e = 0; e < p->w.n; e++) {
        next[e] = offset[e];
        offset[e + 1] += offset[e];
    }
    for (i = 0; i < n; i++)
        p->order[next[p->ids[i]]++] = i;
}

static int route(struct mc_par *par, const struct mc_route_p *p)
{
    int64_t n = pairs(p->w.n) * spans(*p->n_live);

    mc_par_for(par, n, grain(par, n), route_items, (void *)p);
    mc_par_for(par, *p->n_live, 4, route_rows, (void *)p);
    route_lists(p);
    return 0;
}

MC_HOST_OP(ISA(route), route, route_need, route);

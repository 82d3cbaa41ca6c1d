/* prep.inl - gqa_prep: norm and rotate q and k, write k and v to their pages. */

static const char *heads_refuse(const struct mc_kv *kv, int32_t h)
{
    if (kv->hk < 1 || h < 1 || h % kv->hk != 0)
        return "attention: query heads are no multiple of kv heads";
    if (kv->d < 16 || kv->d > MAX_D || kv->d % 16 != 0)
        return "attention: a head dim that is no multiple of 16, or above 512";
    return mc_kv_refuse(kv);
}

static int gqa_prep_need(const struct mc_gqa_prep_p *p, struct mc_need *need,
                         const char **why)
{
    const char *no = heads_refuse(&p->kv, p->h);

    (void)need;
    if (!no && (p->rope.dim % 2 != 0 || p->rope.off < 0 || p->rope.dim < 0 ||
                p->rope.off + p->rope.dim > p->kv.d))
        no = "gqa_prep: rotated dims are odd or outside of the head";
    return no ? mc_refuse(why, no) : 0;
}

static void put_fp8(const struct mc_kv *kv, uint8_t *page, int v, int32_t g, int32_t pos,
                    const float *fixed, const float *x)
{
    uint8_t *to = mc_kv_at(kv, page, v, g, pos);
    float scale = 0;
    int32_t i;

    for (i = 0; i < kv->d && !isnan(scale); i++)
        if (isnan(x[i]) || fabsf(x[i]) > scale)
            scale = fabsf(x[i]);
    scale = fixed ? *fixed : scale / 448;
    for (i = 0; i < kv->d; i++)
        to[i] = scale == 0 ? 0 : mc_e4m3_of_f32(x[i] / scale);
    *mc_kv_scale(kv, page, v, g, pos) = scale;
}

/* Casts one head's d values into the page; v: 0 for K, 1 for V. */
static void kv_put(const struct mc_kv *kv, uint8_t *page, int v, int32_t g, int32_t pos,
                   const float *fixed, const float *x)
{
    void *to = mc_kv_at(kv, page, v, g, pos);
    int32_t i;

    if (kv->layout == MC_KV_F32)
        memcpy(to, x, (size_t)kv->d * sizeof x[0]);
    else if (kv->layout == MC_KV_BF16)
        for (i = 0; i < kv->d; i += VN)
            vf_store_bf16((uint16_t *)to + i, vf_load(x + i));
    else
        put_fp8(kv, page, v, g, pos, fixed, x);
}

static void prep_row(const struct mc_gqa_prep_p *p, int64_t t)
{
    const struct mc_kv *kv = &p->kv;
    const float *k_fixed = kv->k_scale ? kv->k_scale + p->layer : NULL;
    const float *v_fixed = kv->v_scale ? kv->v_scale + p->layer : NULL;
    int32_t slot = p->rows.slot[p->rows.row_seq[t]], pos = p->rows.pos[t], d = kv->d, g;
    float *q = (float *)p->q + t * p->h * d, *k = (float *)p->k + t * kv->hk * d;
    const float *v = (const float *)p->v + t * kv->hk * d;
    float c[MAX_D / 2], s[MAX_D / 2];
    uint8_t *page;

    rope_angles(&p->rope, pos, c, s);
    for (g = 0; g < p->h; g++) {
        if (p->q_norm)
            rms_norm(q + g * d, p->q_norm, p->eps, d, q + g * d);
        rope_head(q + g * d + p->rope.off, &p->rope, c, s);
    }
    if (p->slots[slot].bad)
        return;
    page = mc_kv_page(kv, p->layer, slot, pos);
    for (g = 0; g < kv->hk; g++) {
        if (p->k_norm)
            rms_norm(k + g * d, p->k_norm, p->eps, d, k + g * d);
        rope_head(k + g * d + p->rope.off, &p->rope, c, s);
        kv_put(kv, page, 0, g, pos, k_fixed, k + g * d);
        kv_put(kv, page, 1, g, pos, v_fixed, v + g * d);
    }
    if (p->fresh && t >= p->rows.live[MC_LIVE_DECODE])
        mc_fresh_put_gqa(p, (int32_t)t, k, v);
}

static void prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        prep_row(ctx, t);
}

static int gqa_prep(struct mc_par *par, const struct mc_gqa_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 2, prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(gqa_prep), gqa_prep, gqa_prep_need, gqa_prep);

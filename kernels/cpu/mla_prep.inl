/* mla_prep.inl - mla_prep: the query's latent normed, the token's to its page. */

static int mla_prep_need(const struct mc_mla_prep_p *p, struct mc_need *need, const char **why)
{
    const char *no = latent_refuse(&p->kv);

    (void)need;
    if (!no && p->rope.dim != p->kv.r)
        no = "mla_prep: the rotated dims are not the shared key's";
    if (!no && p->q_a && (p->q_lora % 16 != 0 || p->q_lora > MAX_COLS))
        no = "mla_prep: a query latent that is no multiple of 16, or above 65536";
    if (!no && p->q_a && p->act.x)
        no = p->act.k != p->q_lora ? "mla_prep: columns that are not q_lora"
                                   : act_refuse(&p->act);
    return no ? mc_refuse(why, no) : 0;
}

/* n values as bf16, in whole vectors. */
static void put_bf16(uint8_t *to, const float *x, int32_t n)
{
    int32_t i;

    for (i = 0; i < n; i += VN)
        vf_store_bf16((uint16_t *)to + i, vf_load(x + i));
}

static void put_e4m3(uint8_t *to, const float *x, int32_t n, float scale)
{
    int32_t i;

    for (i = 0; i < n; i++)
        to[i] = mc_e4m3_of_f32(x[i] / scale);
}

/* The largest magnitude that is a number. */
static float amax_of(const float *x, int32_t n)
{
    float m = 0;
    int32_t i;

    for (i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

/* A scale of FP8_656: amax/448, at least 1e-4, rounded up to a power of two. */
static float scale_up(float amax)
{
    float s = amax / 448, m;
    int e;

    s = s < 1e-4f ? 1e-4f : s;
    if (!isfinite(s))
        return s;
    m = frexpf(s, &e); /* s = m * 2^e, m in [0.5, 1) */
    return ldexpf(1, m == 0.5f ? e - 1 : e);
}

/* Casts c + r values into a token. */
static void token_put(const struct mc_kv *kv, int32_t layer, uint8_t *to, const float *x)
{
    int32_t c = kv->c, i, n;

    switch (kv->layout) {
    case MC_KV_F32:
        memcpy(to, x, (size_t)(c + kv->r) * sizeof x[0]);
        return;
    case MC_KV_BF16:
        put_bf16(to, x, c + kv->r);
        return;
    case MC_KV_FP8_PLAIN:
        put_e4m3(to, x, c + kv->r, kv->k_scale ? kv->k_scale[layer] : 1);
        return;
    }
    for (i = 0; i < c; i += MC_SCALE_COLS) {
        float *scale = mc_mla_scales(kv, to) + i / MC_SCALE_COLS;

        n = c - i < MC_SCALE_COLS ? c - i : MC_SCALE_COLS;
        *scale = scale_up(amax_of(x + i, n));
        put_e4m3(to + i, x + i, n, *scale);
    }
    put_bf16((uint8_t *)mc_mla_key(kv, to), x + c, kv->r);
}

static void mla_prep_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_mla_prep_p *p = ctx;
    const struct mc_kv *kv = &p->kv;
    float q[MAX_COLS], x[MAX_LAT], c[MAX_LAT / 2], s[MAX_LAT / 2];
    int32_t slot, pos;

    (void)lane;
    for (; t0 < t1; t0++) {
        if (p->q_a) {
            rms_norm((const float *)p->q_a + t0 * p->q_lora, p->q_norm, p->eps, p->q_lora, q);
            if (p->act.x)
                act_put(&p->act, t0, 0, p->q_lora, q);
            if (p->norm_out)
                memcpy((float *)p->norm_out + t0 * p->q_lora, q,
                       (size_t)p->q_lora * sizeof q[0]);
        }
        slot = p->rows.slot[p->rows.row_seq[t0]];
        pos = p->rows.pos[t0];
        if (p->slots[slot].bad || !mc_kv_mine(kv, slot, pos))
            continue;
        memcpy(x, (const float *)p->kv_a + t0 * (kv->c + kv->r),
               (size_t)(kv->c + kv->r) * sizeof x[0]);
        rms_norm(x, p->kv_norm, p->eps, kv->c, x);
        rope_angles(&p->rope, pos, c, s);
        rope_head(x + kv->c, &p->rope, c, s);
        token_put(kv, p->layer,
                  mc_mla_at(kv, mc_kv_page(kv, p->layer, slot, pos), pos), x);
        if (p->fresh && t0 >= p->rows.live[MC_LIVE_DECODE])
            mc_fresh_put_mla(p, (int32_t)t0, x);
    }
}

static int mla_prep(struct mc_par *par, const struct mc_mla_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 4, mla_prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(mla_prep), mla_prep, mla_prep_need, mla_prep);

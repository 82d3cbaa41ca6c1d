/* latent.inl - what the operations over latents and index keys share: how a token's values
 * are read and cast, a block of up to MC_PAGE tokens turned or widened once for all queries,
 * and the product that scores and values are made with.
 *
 * INVARIANT: a product adds its terms in rising order, each output by one chain of fma, which
 * may rest in memory between blocks: how many rows or tokens stand beside changes no bit. */

enum {
    MAX_LAT = 640, /* c + r */
    COLS = 64,     /* columns of a product; MC_PAGE tokens, or as many of c */
    DEEP = 64,     /* terms of a product at a time: 16 KiB of its right side */
};

static const char *latent_refuse(const struct mc_kv *kv)
{
    if (kv->c % COLS != 0 || kv->r % 16 != 0 || kv->c > MAX_D || kv->c + kv->r > MAX_LAT)
        return "latents of other than 64 to 512 values in steps of 64, or c + r above 640";
    return mc_mla_refuse(kv);
}

/* ---- y += a . b ------------------------------------------------------------------------ */

#if defined(__AVX512F__)
#define MUL_HEIGHTS(F) F(4) F(2) F(1)
enum { MUL_R = 4, MUL_V = 4 };
#else
#define MUL_HEIGHTS(F) F(4) F(2) F(1)
enum { MUL_R = 4, MUL_V = 2 };
#endif

/* R rows of k values times MUL_V vectors of columns. */
VEC void mul_tile(int R, int32_t k, const float *a, int64_t a_pitch, const float *b,
                  int64_t b_pitch, float *y, int64_t y_pitch)
{
    vf acc[MUL_R][MUL_V], x, w[MUL_V];
    int32_t i;
    int r, v;

    FLAT for (r = 0; r < R; r++)
        FLAT for (v = 0; v < MUL_V; v++)
            acc[r][v] = vf_load(y + r * y_pitch + v * VN);
    for (i = 0; i < k; i++) {
        FLAT for (v = 0; v < MUL_V; v++)
            w[v] = vf_load(b + i * b_pitch + v * VN);
        FLAT for (r = 0; r < R; r++) {
            x = vf_set(a[r * a_pitch + i]);
            FLAT for (v = 0; v < MUL_V; v++)
                acc[r][v] = vf_fma(x, w[v], acc[r][v]);
        }
    }
    FLAT for (r = 0; r < R; r++)
        FLAT for (v = 0; v < MUL_V; v++)
            vf_store(y + r * y_pitch + v * VN, acc[r][v]);
}

#define ONE(R)                                                                             \
    static void mul_##R(int32_t k, const float *a, int64_t a_pitch, const float *b,        \
                        int64_t b_pitch, float *y, int64_t y_pitch)                        \
    {                                                                                      \
        mul_tile(R, k, a, a_pitch, b, b_pitch, y, y_pitch);                                \
    }
MUL_HEIGHTS(ONE)
#undef ONE

static const struct {
    int rows;
    void (*fn)(int32_t k, const float *a, int64_t a_pitch, const float *b, int64_t b_pitch,
               float *y, int64_t y_pitch);
} muls[] = {
#define ONE(R) {R, mul_##R},
    MUL_HEIGHTS(ONE)
#undef ONE
};

/* y [n][COLS] += a [n][k] . b [k][COLS]; pitches between rows. */
static void mul_rows(int32_t n, int32_t k, const float *a, int64_t a_pitch, const float *b,
                     int64_t b_pitch, float *y, int64_t y_pitch)
{
    int32_t c, r, h;

    for (c = 0; c < COLS; c += MUL_V * VN)
        for (r = 0, h = 0; r < n; r += muls[h].rows) {
            while (muls[h].rows > n - r)
                h++;
            muls[h].fn(k, a + r * a_pitch, a_pitch, b + c, b_pitch, y + r * y_pitch + c,
                       y_pitch);
        }
}

/* ---- tokens ---------------------------------------------------------------------------- */

/* A block of tokens and how they are stored. */
struct block {
    const uint8_t *tok[MC_PAGE]; /* all of them may be read, past n too */
    int32_t n;
    int32_t c, r;
    float scale; /* FP8_PLAIN: on every value */
};

/* Values [i, i+VN) of a token: latent first, then the shared key. */
VEC vf token_load(int layout, const struct block *b, const uint8_t *t, int32_t i)
{
    switch (layout) {
    case MC_KV_F32:
        return vf_load((const float *)t + i);
    case MC_KV_BF16:
        return vf_load_bf16((const uint16_t *)t + i);
    case MC_KV_FP8_PLAIN:
        return vf_mul(vf_load_e4m3(t + i), vf_set(b->scale));
    default:
        if (i < b->c)
            return vf_mul(vf_load_e4m3(t + i),
                          vf_set(((const float *)(t + b->c))[i / MC_SCALE_COLS]));
        t += b->c + (b->c + MC_SCALE_COLS - 1) / MC_SCALE_COLS * 4;
        return vf_load_bf16((const uint16_t *)t + (i - b->c));
    }
}

/* out [c+r][MC_PAGE]: a token a column. */
VEC void turn_tokens(int layout, const struct block *b, float *out)
{
    vf x[VN];
    int32_t j, i, v;

    for (j = 0; j < MC_PAGE; j += VN)
        for (i = 0; i < b->c + b->r; i += VN) {
            for (v = 0; v < VN; v++)
                x[v] = token_load(layout, b, b->tok[j + v], i);
            vf_transpose(x);
            for (v = 0; v < VN; v++)
                vf_store(out + (i + v) * MC_PAGE + j, x[v]);
        }
}

/* out [n][c]: a token a row. */
VEC void widen_tokens(int layout, const struct block *b, float *out)
{
    int32_t j, i;

    for (j = 0; j < b->n; j++)
        for (i = 0; i < b->c; i += VN)
            vf_store(out + j * b->c + i, token_load(layout, b, b->tok[j], i));
}

static void block_turn(uint16_t layout, const struct block *b, float *out)
{
    switch (layout) {
    case MC_KV_F32:
        turn_tokens(MC_KV_F32, b, out);
        break;
    case MC_KV_BF16:
        turn_tokens(MC_KV_BF16, b, out);
        break;
    case MC_KV_FP8_PLAIN:
        turn_tokens(MC_KV_FP8_PLAIN, b, out);
        break;
    default:
        turn_tokens(MC_KV_FP8_656, b, out);
    }
}

static void block_widen(uint16_t layout, const struct block *b, float *out)
{
    switch (layout) {
    case MC_KV_F32:
        widen_tokens(MC_KV_F32, b, out);
        break;
    case MC_KV_BF16:
        widen_tokens(MC_KV_BF16, b, out);
        break;
    case MC_KV_FP8_PLAIN:
        widen_tokens(MC_KV_FP8_PLAIN, b, out);
        break;
    default:
        widen_tokens(MC_KV_FP8_656, b, out);
    }
}

/* ---- mla_prep -------------------------------------------------------------------------- */

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
        if (p->slots[slot].bad)
            continue;
        memcpy(x, (const float *)p->kv_a + t0 * (kv->c + kv->r),
               (size_t)(kv->c + kv->r) * sizeof x[0]);
        rms_norm(x, p->kv_norm, p->eps, kv->c, x);
        rope_angles(&p->rope, pos, c, s);
        rope_head(x + kv->c, &p->rope, c, s);
        token_put(kv, p->layer,
                  mc_mla_at(kv, mc_kv_page(kv, p->layer, slot, pos), pos), x);
    }
}

static int mla_prep(struct mc_par *par, const struct mc_mla_prep_p *p)
{
    mc_par_for(par, p->rows.live[MC_LIVE_ROWS], 4, mla_prep_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(mla_prep), mla_prep, mla_prep_need, mla_prep);

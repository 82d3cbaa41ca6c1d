/* latent.inl - what the operations over latents and index keys share: how a token's values
 * are read, a piece of a block of tokens turned or widened once for all queries,
 * and the product that scores and values are made with.
 *
 * INVARIANT: a product adds its terms in rising order, each output by one chain of fma, which
 * may rest in memory between blocks: how many rows or tokens stand beside changes no bit. */

enum {
    MAX_LAT = 640, /* c + r */
    COLS = 64,     /* columns of a product; MC_PAGE tokens, or as many of c */
    DEEP = 64,     /* terms of a product at a time: 16 KiB of its right side, made and
                      used while it is in the nearest cache */
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
    uint16_t layout;
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

/* Values [from, to) of each token as out [to-from][MC_PAGE]: a token a column. */
VEC void turn_tokens(int layout, const struct block *b, int32_t from, int32_t to, float *out)
{
    vf x[VN];
    int32_t j, i, v;

    for (i = from; i < to; i += VN)
        for (j = 0; j < MC_PAGE; j += VN) {
            for (v = 0; v < VN; v++)
                x[v] = token_load(layout, b, b->tok[j + v], i);
            vf_transpose(x);
            for (v = 0; v < VN; v++)
                vf_store(out + (i - from + v) * MC_PAGE + j, x[v]);
        }
}

/* Latent values [from, from+COLS) of each token as out [n][COLS], rows pitch apart. */
VEC void widen_tokens(int layout, const struct block *b, int32_t from, float *out,
                      int32_t pitch)
{
    int32_t j, v;

    for (j = 0; j < b->n; j++)
        for (v = 0; v < COLS; v += VN)
            vf_store(out + j * pitch + v, token_load(layout, b, b->tok[j], from + v));
}

static void block_turn(uint16_t layout, const struct block *b, int32_t from, int32_t to,
                       float *out)
{
    switch (layout) {
    case MC_KV_F32:
        turn_tokens(MC_KV_F32, b, from, to, out);
        break;
    case MC_KV_BF16:
        turn_tokens(MC_KV_BF16, b, from, to, out);
        break;
    case MC_KV_FP8_PLAIN:
        turn_tokens(MC_KV_FP8_PLAIN, b, from, to, out);
        break;
    default:
        turn_tokens(MC_KV_FP8_656, b, from, to, out);
    }
}

static void block_widen(uint16_t layout, const struct block *b, int32_t from, float *out,
                        int32_t pitch)
{
    switch (layout) {
    case MC_KV_F32:
        widen_tokens(MC_KV_F32, b, from, out, pitch);
        break;
    case MC_KV_BF16:
        widen_tokens(MC_KV_BF16, b, from, out, pitch);
        break;
    case MC_KV_FP8_PLAIN:
        widen_tokens(MC_KV_FP8_PLAIN, b, from, out, pitch);
        break;
    default:
        widen_tokens(MC_KV_FP8_656, b, from, out, pitch);
    }
}

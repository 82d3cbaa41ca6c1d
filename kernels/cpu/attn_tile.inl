/* attn_tile.inl - the inner kernels of attention: tiles of queries times a page of keys, and
 * of values.
 *
 * INVARIANT: a score is a sum over d in the order of vf_sum4 (each lane its own chain of
 * fma, then lanes), whether keys lie as in the page (few queries) or turned round, a token a
 * lane (many). o adds tokens in rising order. */

/* A query at work on one split. */
struct query {
    const float *q; /* [d] */
    float *prob;    /* [MC_SPLIT] scores, then probabilities */
    float *o;       /* [d] */
    struct span see;
};

/* Heights of tiles of queries, falling; four tokens or four vectors of d stand beside. Of the
 * sums over turned keys so many lanes run side by side as registers hold. */
#if defined(__AVX512F__)
#define QUERY_HEIGHTS(F) F(4) F(3) F(2) F(1)
enum { TILE_Q = 4, LANES_Q = 4 };
#else
#define QUERY_HEIGHTS(F) F(2) F(1)
enum { TILE_Q = 2, LANES_Q = 2 };
#endif

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
    page_fn scores[MC_N_GQA_KV], values[MC_N_GQA_KV];
} query_tiles[] = {
#define ALL(N)                                                                             \
    {N,                                                                                    \
     {page_scores_MC_KV_F32_##N, page_scores_MC_KV_BF16_##N, page_scores_MC_KV_FP8_##N},   \
     {page_values_MC_KV_F32_##N, page_values_MC_KV_BF16_##N, page_values_MC_KV_FP8_##N}},
    QUERY_HEIGHTS(ALL)
#undef ALL
};

enum { ONE_QUERY = sizeof query_tiles / sizeof query_tiles[0] - 1 };

/* ---- many queries: a page unpacked once ------------------------------------------------ */

/* Keys of a page as f32 [d][MC_PAGE]. */
static void turn_keys(int layout, const void *k, int32_t d, float *out)
{
    vf x[VN];
    int32_t j, c, i;

    for (j = 0; j < MC_PAGE; j += VN)
        for (c = 0; c < d; c += VN) {
            for (i = 0; i < VN; i++)
                x[i] = kv_load(layout, k, (int64_t)(j + i) * d + c);
            vf_transpose(x);
            for (i = 0; i < VN; i++)
                vf_store(out + (c + i) * MC_PAGE + j, x[i]);
        }
}

/* Values of a page as f32 [MC_PAGE][d]. */
static void widen_values(int layout, const void *v, int32_t d, float *out)
{
    int32_t i;

    for (i = 0; i < MC_PAGE * d; i += VN)
        vf_store(out + i, kv_load(layout, v, i));
}

/* Lanes [4*quad, 4*quad+4) of the scores' sums: t of vf_sum4, for N queries and two vectors
 * of tokens from keys on. */
VEC void quad_sums(int N, const float *keys, int32_t d, const struct query *q, int quad,
                   vf t[2][2])
{
    vf part[4][2][2];
    int32_t c;
    int i, i0, n, v;

    FLAT for (i = 0; i < 4; i++)
        FLAT for (n = 0; n < N; n++)
            FLAT for (v = 0; v < 2; v++)
                part[i][n][v] = vf_set(0);
    FLAT for (i0 = 0; i0 < 4; i0 += LANES_Q)
        for (c = 4 * quad + i0; c < d; c += VN)
            FLAT for (i = i0; i < i0 + LANES_Q; i++)
                FLAT for (v = 0; v < 2; v++) {
                    vf key = vf_load(keys + (c + i - i0) * MC_PAGE + v * VN);

                    FLAT for (n = 0; n < N; n++)
                        part[i][n][v] =
                            vf_fma(vf_set(q[n].q[c + i - i0]), key, part[i][n][v]);
                }
    FLAT for (n = 0; n < N; n++)
        FLAT for (v = 0; v < 2; v++)
            t[n][v] = vf_add(vf_add(part[0][n][v], part[2][n][v]),
                             vf_add(part[1][n][v], part[3][n][v]));
}

/* Scores of N queries for tokens [j0, j1) of a page with turned keys, in whole steps of two
 * vectors. */
VEC void turned_tile(int N, const float *keys, int32_t d, struct query *q, int32_t at0,
                       int32_t j0, int32_t j1)
{
    vf t[4][2][2];
    int32_t j;
    int i, n, v;

    for (j = j0 / (2 * VN) * (2 * VN); j < j1; j += 2 * VN) {
        FLAT for (i = 0; i < VN / 4; i++)
            quad_sums(N, keys + j, d, q, i, t[i]);
        FLAT for (n = 0; n < N; n++)
            FLAT for (v = 0; v < 2; v++) {
                vf s = t[0][n][v];

                if (VN == 8)
                    s = vf_add(s, t[1][n][v]);
                if (VN == 16)
                    s = vf_add(vf_add(s, t[2][n][v]), vf_add(t[1][n][v], t[3][n][v]));
                vf_store(q[n].prob + at0 + j + v * VN, s);
            }
    }
}

static void turned_scores(int n, const float *keys, int32_t d, struct query *q, int32_t at0,
                          int32_t j0, int32_t j1)
{
    if (n == 1)
        turned_tile(1, keys, d, q, at0, j0, j1);
    else
        turned_tile(2, keys, d, q, at0, j0, j1);
}

/* tile.inl - the inner kernels: R rows times a panel of 16 outputs, y [R][16] += x . w.
 *
 * INVARIANT: an output's sum is built in one order whatever R is: integer dots are exact
 * within a step of 32 (or 16) columns, then acc = fma(dot, ws*s, acc) and, with mins,
 * acc = fma(wm, sum, acc), steps rising; floats acc = fma(w, x, acc), columns rising; scaled
 * floats (e4m3) the same within a chunk of columns, then y = fma(acc, scale, y). So rows may
 * be tiled in any way and sums put aside in memory between chunks of columns. */

/* Heights of tiles, falling; the first is what the registers hold. */
#if defined(__AVX512F__)
#define TILE_HEIGHTS(F) F(12) F(8) F(6) F(4) F(3) F(2) F(1)
enum { TILE_R = 12, PAIR_R = 12 };
#elif defined(__AVX2__)
#define TILE_HEIGHTS(F) F(4) F(3) F(2) F(1)
enum { TILE_R = 4, PAIR_R = 2 };
#else
#define TILE_HEIGHTS(F) F(2) F(1)
enum { TILE_R = 2, PAIR_R = 1 };
#endif

enum {
    PV = PANEL / VN, /* vectors a panel */
    DOTS = TILE_R > 4 ? TILE_R : 4,
};

/* How a tile reads weights: from a packed panel, or unpacked from scratch memory. */
enum { T_I4, T_N4, T_I8, T_W16, T_F32, T_F16, T_BF16, T_E4M3 };

/* How far ahead packed weights are asked for. The processor's own prefetching leaves a tile
 * waiting: with this, decode of SmolLM2-135M on one thread went from 91 to 133 tokens/s (and
 * 4096 to 8192 made no difference). Past the last panel it does no harm. */
enum { AHEAD = 4096, LINE = 64 };

/* ---- integers ------------------------------------------------------------------------- */

struct tile_i {
    const uint8_t *q;
    const float *ws, *wm; /* [steps][16] */
    int32_t n_block;
    const int16_t *x;     /* rows x_pitch apart */
    const float *s, *sum; /* of a row's blocks: scale, scale times sum; s_pitch apart */
    int64_t x_pitch, s_pitch;
    float *y; /* [R][16] */
};

/* Pair i of the four from column 8*four of block b as int16, vector v of the panel. */
VEC vi tile_pair(int from, const uint8_t *q, int b, int four, int i, int v)
{
    const int at = b * 16 + four * 4 + i;

    if (from == T_I4)
        return vi_nibbles(vi_load(q + (b * 4 + four) * 4 * PANEL + v * 4 * VN), i);
    if (from == T_N4)
        return vi_e2m1(vi_load(q + (b * 4 + four) * 4 * PANEL + v * 4 * VN), i);
    if (from == T_I8)
        return vi_load_i8((const int8_t *)q + at * 2 * PANEL + v * 2 * VN);
    return vi_load(q + at * 4 * PANEL + v * 4 * VN);
}

VEC void tile_ahead(int from, const uint8_t *q, int b)
{
    const int lines = from == T_W16 ? 0 : from == T_I8 ? 8 : 4;
    int i;

    FLAT for (i = 0; i < lines; i++)
        __builtin_prefetch(q + (b * lines + i) * LINE + AHEAD);
}

/* acc += step `at` of the scales times its dots; b: the block whose activations they saw. */
VEC void tile_scale(const struct tile_i *t, int min, int R, int at, int b,
                    vi dot[DOTS][PV], vf acc[TILE_R][PV])
{
    vf ws[PV], wm[PV];
    int r, v;

    FLAT for (v = 0; v < PV; v++) {
        ws[v] = vf_load(t->ws + at * PANEL + v * VN);
        wm[v] = min ? vf_load(t->wm + at * PANEL + v * VN) : ws[v];
    }
    FLAT for (r = 0; r < R; r++) {
        vf s = vf_set(t->s[r * t->s_pitch + b]);

        FLAT for (v = 0; v < PV; v++) {
            acc[r][v] = vf_fma(vi_float(dot[r][v]), vf_mul(ws[v], s), acc[r][v]);
            if (min)
                acc[r][v] = vf_fma(wm[v], vf_set(t->sum[r * t->s_pitch + b]), acc[r][v]);
        }
    }
}

VEC void tile_int(int from, int step, int min, int R, const struct tile_i *t)
{
    /* A dot of few rows runs in several chains, or it would wait for its own sums. */
    const int chains = R * PV >= 4 ? 1 : 4 / (R * PV);
    vf acc[TILE_R][PV];
    vi dot[DOTS][PV], w[PV], x;
    int b, four, i, r, v, part;

    FLAT for (r = 0; r < R; r++)
        FLAT for (v = 0; v < PV; v++)
            acc[r][v] = vf_load(t->y + r * PANEL + v * VN);
    for (b = 0; b < t->n_block; b++) {
        tile_ahead(from, t->q, b);
        for (part = 0; part < BLOCK / step; part++) {
            FLAT for (r = 0; r < chains * R; r++)
                FLAT for (v = 0; v < PV; v++)
                    dot[r][v] = vi_zero();
            for (four = part * step / 8; four < (part + 1) * step / 8; four++)
                FLAT for (i = 0; i < 4; i++) {
                    FLAT for (v = 0; v < PV; v++)
                        w[v] = tile_pair(from, t->q, b, four, i, v);
                    FLAT for (r = 0; r < R; r++) {
                        vi *d = dot[i % chains * R + r];

                        x = vi_set_pair(t->x + r * t->x_pitch + b * BLOCK + 8 * four + 2 * i);
                        FLAT for (v = 0; v < PV; v++)
                            d[v] = vi_madd(d[v], w[v], x);
                    }
                }
            FLAT for (r = R; r < chains * R; r++)
                FLAT for (v = 0; v < PV; v++)
                    dot[r % R][v] = vi_add(dot[r % R][v], dot[r][v]);
            tile_scale(t, min, R, b * (BLOCK / step) + part, b, dot, acc);
        }
    }
    FLAT for (r = 0; r < R; r++)
        FLAT for (v = 0; v < PV; v++)
            vf_store(t->y + r * PANEL + v * VN, acc[r][v]);
}

/* F(form, weights from, step, min, R) for every form of integer panel. */
#define TILE_FORMS(F, R)                                                                   \
    F(I4_MIN, T_I4, 32, 1, R)                                                              \
    F(N4, T_N4, 16, 0, R)                                                                  \
    F(I8, T_I8, 32, 0, R)                                                                  \
    F(I8_MIN, T_I8, 32, 1, R)                                                              \
    F(I8_16, T_I8, 16, 0, R)                                                               \
    F(W16, T_W16, 32, 0, R)                                                                \
    F(W16_MIN, T_W16, 32, 1, R)                                                            \
    F(W16_16, T_W16, 16, 0, R)

enum form {
#define F(form, from, step, min, R) FORM_##form,
    TILE_FORMS(F, 0)
#undef F
    N_FORM
};

#define F(form, from, step, min, R)                                                        \
    static void tile_##form##_##R(const struct tile_i *t)                                  \
    {                                                                                      \
        tile_int(from, step, min, R, t);                                                   \
    }
#define ALL(R) TILE_FORMS(F, R)
TILE_HEIGHTS(ALL)
#undef ALL
#undef F

static const struct {
    int rows;
    void (*fn[N_FORM])(const struct tile_i *t);
} tiles[] = {
#define F(form, from, step, min, R) tile_##form##_##R,
#define ALL(R) {R, {TILE_FORMS(F, R)}},
    TILE_HEIGHTS(ALL)
#undef ALL
#undef F
};

/* n rows of a tile. */
static void tile_ints(enum form form, int32_t n, struct tile_i t)
{
    int h = 0, rows;

    while (n > 0) {
        while (tiles[h].rows > n)
            h++;
        tiles[h].fn[form](&t);
        rows = tiles[h].rows;
        n -= rows;
        t.y += rows * PANEL;
        t.x += rows * t.x_pitch;
        t.s += rows * t.s_pitch;
        t.sum += rows * t.s_pitch;
    }
}

/* ---- floats --------------------------------------------------------------------------- */

struct tile_f {
    int from, k;
    const uint8_t *q;   /* panels, q_pitch bytes apart */
    const float *scale; /* [panels][16] of these columns, or NULL */
    const float *x;     /* rows x_pitch apart */
    int64_t q_pitch, x_pitch, y_pitch;
    float *y; /* [R][16], panels y_pitch floats apart */
};

/* Column c, vector v. E4M3 comes over 256: the scale makes up for it. */
VEC vf tile_column(int from, const uint8_t *q, int64_t c, int v)
{
    int64_t at = c * PANEL + v * VN;

    switch (from) {
    case T_F16:
        return vf_load_f16((const uint16_t *)q + at);
    case T_BF16:
        return vf_load_bf16((const uint16_t *)q + at);
    case T_E4M3:
        return vf_load_e4m3_256(q + at);
    default:
        return vf_load((const float *)q + at);
    }
}

/* n columns from c on, into w [n][PV]. E4M3 is decoded two vectors at a time where there are
 * two: decoding, not memory, is what its tiles of few rows wait for. */
VEC void tile_columns(int from, int n, const uint8_t *q, int64_t c, vf *w)
{
    int i;

    if (from == T_E4M3 && n * PV > 1)
        FLAT for (i = 0; i < n * PV; i += 2)
            vf_load2_e4m3_256(q + c * PANEL + i * VN, &w[i], &w[i + 1]);
    else
        FLAT for (i = 0; i < n * PV; i++)
            w[i] = tile_column(from, q, c + i / PV, i % PV);
}

/* acc += n columns times their activations. */
VEC void tile_step(int from, int R, int P, int n, const struct tile_f *t, int64_t c,
                   vf acc[TILE_R][2][PV])
{
    const int bytes = PANEL * (from == T_F32 ? 4 : from == T_E4M3 ? 1 : 2); /* a column */
    vf x, w[2][2 * PV];
    int i, r, p, v;

    FLAT for (p = 0; p < P; p++) {
        const uint8_t *q = t->q + p * t->q_pitch;

        __builtin_prefetch(q + c * bytes + AHEAD);
        tile_columns(from, n, q, c, w[p]);
    }
    FLAT for (i = 0; i < n; i++)
        FLAT for (r = 0; r < R; r++) {
            x = vf_set(t->x[r * t->x_pitch + c + i]);
            FLAT for (p = 0; p < P; p++)
                FLAT for (v = 0; v < PV; v++)
                    acc[r][p][v] = vf_fma(w[p][i * PV + v], x, acc[r][p][v]);
        }
}

/* P panels side by side: few rows of one panel would wait for their own sums. */
VEC void tile_float(int from, int R, int P, const struct tile_f *t)
{
    const int n = from == T_E4M3 && PV == 1 ? 2 : 1; /* columns a step */
    vf acc[TILE_R][2][PV];
    int c, r, p, v;

    FLAT for (p = 0; p < P; p++)
        FLAT for (v = 0; v < PV; v++)
            FLAT for (r = 0; r < R; r++)
                acc[r][p][v] = t->scale ? vf_set(0)
                                        : vf_load(t->y + p * t->y_pitch + r * PANEL + v * VN);
    for (c = 0; c + n <= t->k; c += n)
        tile_step(from, R, P, n, t, c, acc);
    if (c < t->k)
        tile_step(from, R, P, 1, t, c, acc);
    FLAT for (p = 0; p < P; p++)
        FLAT for (v = 0; v < PV; v++)
            FLAT for (r = 0; r < R; r++) {
                float *y = t->y + p * t->y_pitch + r * PANEL + v * VN;

                if (t->scale)
                    acc[r][p][v] = vf_fma(acc[r][p][v],
                                          vf_load(t->scale + p * PANEL + v * VN), vf_load(y));
                vf_store(y, acc[r][p][v]);
            }
}

/* F(weights from, panels, R) */
#define FLOAT_FORMS(F, R)                                                                  \
    F(T_F32, 1, R) F(T_F16, 1, R) F(T_BF16, 1, R) F(T_E4M3, 1, R)                          \
    F(T_F32, 2, R) F(T_F16, 2, R) F(T_BF16, 2, R) F(T_E4M3, 2, R)

#define F(from, P, R)                                                                      \
    static void tile_##from##_##P##_##R(const struct tile_f *t)                            \
    {                                                                                      \
        tile_float(from, R, P, t);                                                         \
    }
#define ALL(R) FLOAT_FORMS(F, R)
TILE_HEIGHTS(ALL)
#undef ALL
#undef F

static const struct {
    int rows;
    void (*fn[8])(const struct tile_f *t); /* from - T_F32, then the same of two panels */
} float_tiles[] = {
#define F(from, P, R) tile_##from##_##P##_##R,
#define ALL(R) {R, {FLOAT_FORMS(F, R)}},
    TILE_HEIGHTS(ALL)
#undef ALL
#undef F
};

/* n rows of np panels, 1 or 2. */
static void tile_floats(int32_t n, int np, struct tile_f t)
{
    int h = 0, rows;

    while (n > 0) {
        while (float_tiles[h].rows > n)
            h++;
        rows = float_tiles[h].rows;
        if (np == 2 && rows <= PAIR_R) {
            float_tiles[h].fn[4 + t.from - T_F32](&t);
        } else {
            struct tile_f one = t;
            int p;

            for (p = 0; p < np; p++) {
                float_tiles[h].fn[t.from - T_F32](&one);
                one.q += t.q_pitch;
                one.y += t.y_pitch;
                one.scale += t.scale ? PANEL : 0;
            }
        }
        n -= rows;
        t.y += rows * PANEL;
        t.x += rows * t.x_pitch;
    }
}

/* panel.inl - rows times panels over the tiles, whatever the panels' form.
 *
 * Few rows read the packed panel straight from memory; more unpack a chunk of its columns
 * once into a scratch of int16 or f32, which every tile of rows then reads from the nearest
 * cache. Owns nothing: scratch is on the stack. */

enum {
    ROWS = 96,     /* of an item; a multiple of every tile */
    CHUNK_I = 512, /* columns unpacked at a time: 16 KiB of int16 */
    CHUNK_F = 256, /* the same of f32 */
    PAIR = 2 * PANEL,
};

/* ---- scales --------------------------------------------------------------------------- */

/* The scales of columns [k0, k0 + n*step) of a panel, and the mins where there are any, as
 * f32 [n][16]. Returns whether there are. */
static bool scale_expand(const struct head *h, const uint8_t *rec0, int32_t k0, int32_t n,
                         float *ws, float *wm)
{
    int32_t i, v, sub, k = k0;

    for (i = 0; i < n; i++, k += h->step, ws += PANEL, wm += PANEL) {
        const uint8_t *rec = rec0 + (int64_t)(k / h->group) * h->scale_bytes;
        const uint16_t *half = (const uint16_t *)rec;
        const float *full = (const float *)rec;

        for (v = 0; v < PANEL; v += VN) {
            switch (h->scales) {
            case S_F32:
            case S_F32_8:
            case S_F32_MIN:
                vf_store(ws + v, vf_load(full + v));
                break;
            case S_BF16_8:
                vf_store(ws + v, vf_load_bf16(half + v));
                break;
            case S_K_MIN:
                sub = 4 * PANEL + k % 256 / 32 * 2 * PANEL + v;
                vf_store(ws + v, vf_mul(vf_load_f16(half + v), vf_load_u8(rec + sub)));
                vf_store(wm + v, vf_sub(vf_set(0), vf_mul(vf_load_f16(half + PANEL + v),
                                                          vf_load_u8(rec + sub + PANEL))));
                break;
            case S_K16:
                sub = 2 * PANEL + k % 256 / 16 * PANEL + v;
                vf_store(ws + v, vf_mul(vf_load_f16(half + v),
                                        vf_load_i8((const int8_t *)rec + sub)));
                break;
            default:
                vf_store(ws + v, vf_load_f16(half + v));
            }
            if (h->scales == S_F16_8 || h->scales == S_BF16_8 || h->scales == S_F32_8)
                vf_store(wm + v, vf_mul(vf_load(ws + v), vf_set(-8)));
            else if (h->scales == S_F32_MIN)
                vf_store(wm + v, vf_load(full + PANEL + v));
            else if (h->scales == S_F16_MIN)
                vf_store(wm + v, vf_load_f16(half + PANEL + v));
        }
    }
    return h->scales >= S_F16_8 && h->scales <= S_K_MIN;
}

static const uint8_t *panel_q(const struct mc_w *w, int64_t panel)
{
    const struct head *h = w->q;

    return (const uint8_t *)w->q + HEAD + panel * h->panel_bytes;
}

static const uint8_t *panel_scales(const struct mc_w *w, int64_t panel)
{
    const struct head *h = w->q;

    return (const uint8_t *)w->scale +
           panel * ((w->k + h->group - 1) / h->group) * h->scale_bytes;
}

/* ---- rows times panels ---------------------------------------------------------------- */

static void unpack_ints(int from, const uint8_t *q, int nb, uint8_t *out)
{
    int b, i, v;

    for (b = 0; b < nb; b++)
        for (i = 0; i < BLOCK / 2; i++)
            for (v = 0; v < PV; v++)
                vi_store(out + (b * 16 + i) * 4 * PANEL + v * 4 * VN,
                         tile_pair(from, q, b, i, v));
}

/* y [n][16] = rows [t0, t0+n) of a times one panel. */
static void panel_ints(const struct mc_act *a, int64_t t0, int32_t n, const struct mc_w *w,
                       int64_t panel, float *y)
{
    _Alignas(64) uint8_t wide[CHUNK_I * PANEL * 2];
    _Alignas(64) float ws[CHUNK_I / 16 * PANEL], wm[CHUNK_I / 16 * PANEL];
    const struct head *h = w->q;
    const uint8_t *q = panel_q(w, panel), *rec = panel_scales(w, panel);
    int from = w->layout == MC_W_I4 ? T_I4 : T_I8;
    int32_t k, nb;
    enum form form;
    bool min;

    memset(y, 0, (size_t)n * PANEL * sizeof y[0]);
    for (k = 0; k < w->k; k += CHUNK_I) {
        struct tile_i t = {q + (int64_t)k * (from == T_I4 ? PANEL / 2 : PANEL), ws, wm, 0,
                           (const int16_t *)a->x + t0 * a->k + k,
                           a->s + (t0 * a->k + k) / BLOCK,
                           (const float *)a->bf + (t0 * a->k + k) / BLOCK,
                           a->k, a->k / BLOCK, y};

        nb = t.n_block = (w->k - k < CHUNK_I ? w->k - k : CHUNK_I) / BLOCK;
        min = scale_expand(h, rec, k, nb * BLOCK / h->step, ws, wm);
        if (n > TILE_R) {
            unpack_ints(from, t.q, nb, wide);
            t.q = wide;
            form = h->step == 16 ? FORM_W16_16 : min ? FORM_W16_MIN : FORM_W16;
        } else if (from == T_I4) {
            form = FORM_I4_MIN;
        } else {
            form = h->step == 16 ? FORM_I8_16 : min ? FORM_I8_MIN : FORM_I8;
        }
        tile_ints(form, n, t);
    }
}

static void unpack_floats(const struct tile_f *t, int np, float *out)
{
    int p, c, v;

    for (p = 0; p < np; p++)
        for (c = 0; c < t->k; c++)
            for (v = 0; v < PV; v++)
                vf_store(out + (p * CHUNK_F + c) * PANEL + v * VN,
                         tile_column(t->from, t->q + p * t->q_pitch, c, v,
                                     vf_load(t->scale + p * PANEL + v * VN)));
}

/* y [np][ROWS][16] = rows [t0, t0+n) of a times np panels side by side, 1 or 2. */
static void panel_floats(const struct mc_act *a, int64_t t0, int32_t n, const struct mc_w *w,
                         int64_t panel, int np, float *y)
{
    static const uint8_t from[MC_N_RUN] = {[MC_W_F32] = T_F32, [MC_W_F16] = T_F16,
                                           [MC_W_BF16] = T_BF16, [MC_W_E4M3] = T_E4M3};
    _Alignas(64) float wide[2 * CHUNK_F * PANEL], scale[2 * PANEL] = {0};
    const struct head *h = w->q;
    int32_t k, nk, p, bytes = h->panel_bytes / w->k;

    memset(y, 0, (size_t)n * PANEL * sizeof y[0]);
    memset(y + ROWS * PANEL, 0, (size_t)n * PANEL * sizeof y[0]);
    for (k = 0; k < w->k; k += nk) {
        struct tile_f t = {from[w->layout], 0, panel_q(w, panel) + (int64_t)k * bytes, scale,
                           (const float *)a->x + t0 * a->k + k, h->panel_bytes, a->k,
                           ROWS * PANEL, y};

        nk = h->group - k % h->group; /* one scale a chunk */
        nk = nk < CHUNK_F ? nk : CHUNK_F;
        t.k = nk = nk < w->k - k ? nk : w->k - k;
        for (p = 0; p < np && h->scale_bytes; p++)
            memcpy(scale + p * PANEL,
                   panel_scales(w, panel + p) + (int64_t)(k / h->group) * h->scale_bytes,
                   PANEL * sizeof scale[0]);
        if (n > TILE_R && t.from != T_F32) {
            unpack_floats(&t, np, wide);
            t.from = T_F32;
            t.q = (const uint8_t *)wide;
            t.q_pitch = sizeof wide / 2;
        }
        tile_floats(n, np, t);
    }
}

/* y [2][ROWS][16] = rows [t0, t0+n) times panels 2*pair and the next, if there is one. */
static void pair_rows(const struct mc_act *a, int64_t t0, int32_t n, const struct mc_w *w,
                      int64_t pair, float *y)
{
    int np = panels(w->n) - 2 * pair > 1 ? 2 : 1, p;

    if (a->layout == MC_A_F32) {
        panel_floats(a, t0, n, w, 2 * pair, np, y);
        return;
    }
    for (p = 0; p < np; p++)
        panel_ints(a, t0, n, w, 2 * pair + p, y + p * ROWS * PANEL);
}

static const char *weight_refuse(const struct mc_act *a, const struct mc_w *w)
{
    bool ints = w->layout == MC_W_I4 || w->layout == MC_W_I8;

    if (w->layout >= MC_N_RUN)
        return "cpu: unknown run layout";
    if (w->n < 1 || w->k < 1 || w->k != a->k)
        return "cpu: the weight's columns are not the activation's";
    if (a->layout != (ints ? MC_A_I16 : MC_A_F32))
        return "cpu: another activation layout than the weight's";
    return act_refuse(a);
}

static int32_t pairs(int32_t n)
{
    return (n + PAIR - 1) / PAIR;
}

static int64_t spans(int32_t rows)
{
    return (rows + ROWS - 1) / ROWS;
}

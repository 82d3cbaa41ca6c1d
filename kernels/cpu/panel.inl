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

/* One record of scales, or one part of a k-quant's, as f32; min only where there is one. */
VEC void scale_read(uint16_t scales, const struct head *h, const uint8_t *rec, int32_t part,
                    float *ws, float *wm)
{
    const uint16_t *half = (const uint16_t *)rec;
    const float *full = (const float *)rec;
    const uint8_t *code;
    vf s, m = vf_set(0);
    int32_t v;

    for (v = 0; v < PANEL; v += VN) {
        switch (scales) {
        case S_E4M3:
            s = vf_mul(vf_load_e4m3(rec + v), vf_set(h->global));
            break;
        case S_F16:
        case S_F16_8:
            s = vf_load_f16(half + v);
            break;
        case S_BF16_8:
            s = vf_load_bf16(half + v);
            break;
        case S_F16_MIN:
            s = vf_load_f16(half + v);
            m = vf_load_f16(half + PANEL + v);
            break;
        case S_F32_MIN:
            s = vf_load(full + v);
            m = vf_load(full + PANEL + v);
            break;
        case S_K_MIN:
            code = rec + 4 * PANEL + part * 2 * PANEL + v;
            s = vf_mul(vf_load_f16(half + v), vf_load_u8(code));
            m = vf_mul(vf_load_f16(half + PANEL + v), vf_load_u8(code + PANEL));
            m = vf_sub(vf_set(0), m);
            break;
        case S_K16:
            code = rec + 2 * PANEL + part * PANEL + v;
            s = vf_mul(vf_load_f16(half + v), vf_load_i8((const int8_t *)code));
            break;
        default: /* S_F32, S_F32_8 */
            s = vf_load(full + v);
        }
        if (scales == S_F16_8 || scales == S_BF16_8 || scales == S_F32_8)
            m = vf_mul(s, vf_set(-8));
        vf_store(ws + v, s);
        if (has_min(scales))
            vf_store(wm + v, m);
    }
}

/* The scales of n steps from column k0 of a panel, and the mins where there are any, as f32
 * [n][16]. Returns whether there are. */
static bool scale_expand(const struct head *h, const uint8_t *rec, int32_t k0, int32_t n,
                         float *ws, float *wm)
{
    int32_t per = h->group / h->step, part = k0 % h->group / h->step, i;

    rec += (int64_t)(k0 / h->group) * h->scale_bytes;
    switch (h->scales) {
#define EACH(scales)                                                                       \
    case scales:                                                                           \
        for (i = 0; i < n; i++) {                                                          \
            scale_read(scales, h, rec, part, ws + i * PANEL, wm + i * PANEL);              \
            if (++part == per) {                                                           \
                part = 0;                                                                  \
                rec += h->scale_bytes;                                                     \
            }                                                                              \
        }                                                                                  \
        break;
        EACH(S_E4M3)
        EACH(S_F32)
        EACH(S_F16)
        EACH(S_F16_8)
        EACH(S_BF16_8)
        EACH(S_F32_8)
        EACH(S_F32_MIN)
        EACH(S_F16_MIN)
        EACH(S_K_MIN)
        EACH(S_K16)
#undef EACH
    }
    return has_min(h->scales);
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
    int b, four, i, v;

    for (b = 0; b < nb; b++) {
        tile_ahead(from, q, b);
        for (four = 0; four < BLOCK / 8; four++)
            FLAT for (i = 0; i < 4; i++)
                FLAT for (v = 0; v < PV; v++)
                    vi_store(out + (b * 16 + four * 4 + i) * 4 * PANEL + v * 4 * VN,
                             tile_pair(from, q, b, four, i, v));
    }
}

/* y [n][16] = rows [t0, t0+n) of a times one panel. */
static void panel_ints(const struct mc_act *a, int64_t t0, int32_t n, const struct mc_w *w,
                       int64_t panel, float *y)
{
    _Alignas(64) uint8_t wide[CHUNK_I * PANEL * 2];
    _Alignas(64) float ws[CHUNK_I / 16 * PANEL], wm[CHUNK_I / 16 * PANEL];
    const struct head *h = w->q;
    const uint8_t *q = panel_q(w, panel), *rec = panel_scales(w, panel);
    int from = w->layout == MC_W_I4 ? T_I4 : w->layout == MC_W_I8 ? T_I8 : T_N4;
    int32_t k, nb;
    enum form form;
    bool min;

    memset(y, 0, (size_t)n * PANEL * sizeof y[0]);
    for (k = 0; k < w->k; k += CHUNK_I) {
        struct tile_i t = {q + (int64_t)k * (from == T_I8 ? PANEL : PANEL / 2), ws, wm, 0,
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
        } else if (from != T_I8) {
            form = from == T_I4 ? FORM_I4_MIN : FORM_N4;
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
                         tile_column(t->from, t->q + p * t->q_pitch, c, v));
}

/* y [np][ROWS][16] = rows [t0, t0+n) of a times np panels side by side, 1 or 2. */
static void panel_floats(const struct mc_act *a, int64_t t0, int32_t n, const struct mc_w *w,
                         int64_t panel, int np, float *y)
{
    static const uint8_t from[MC_N_RUN] = {[MC_W_F32] = T_F32, [MC_W_F16] = T_F16,
                                           [MC_W_BF16] = T_BF16, [MC_W_E4M3] = T_E4M3};
    _Alignas(64) float wide[2 * CHUNK_F * PANEL], scale[2 * PANEL];
    const struct head *h = w->q;
    int32_t k, nk, p, bytes = h->panel_bytes / w->k;

    memset(y, 0, (size_t)n * PANEL * sizeof y[0]);
    memset(y + ROWS * PANEL, 0, (size_t)n * PANEL * sizeof y[0]);
    for (k = 0; k < w->k; k += nk) {
        struct tile_f t = {from[w->layout], 0, panel_q(w, panel) + (int64_t)k * bytes,
                           h->scale_bytes ? scale : NULL,
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
    if (w->layout >= MC_N_RUN)
        return "cpu: unknown run layout";
    if (w->n < 1 || w->k < 1 || w->k != a->k)
        return "cpu: the weight's columns are not the activation's";
    if (a->layout != (is_int(w->layout) ? MC_A_I16 : MC_A_F32))
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

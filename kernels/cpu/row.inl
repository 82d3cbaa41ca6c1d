/* row.inl - what is done to a row of f32: norm, rotation, and into activation layouts,
 * MC_A_F32 and MC_A_I16. */

enum { MAX_D = 512 /* values of a head */ };

/* out = x * r * w, over whole vectors. */
static void norm_row(const float *x, const float *w, float r, int32_t n, float *out)
{
    int32_t i;

    for (i = 0; i < n; i += VN)
        vf_store(out + i,
                 vf_mul(vf_mul(vf_load(x + i), vf_set(r)), vf_load(w + i)));
}

/* RMSNorm of n values; out may be x. */
static void rms_norm(const float *x, const float *w, float eps, int32_t n, float *out)
{
    vf sum = vf_set(0);
    int32_t i;

    for (i = 0; i < n; i += VN)
        sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    norm_row(x, w, 1 / sqrtf(vf_sum(sum) / (float)n + eps), n, out);
}

/* Cosines and sines of a position, rope->mul in them. */
static void rope_angles(const struct mc_rope *rope, int32_t pos, float *c, float *s)
{
    int32_t i;

    for (i = 0; i < rope->dim / 2; i++) {
        float angle = (float)pos * rope->inv_freq[i];

        c[i] = cosf(angle) * rope->mul;
        s[i] = sinf(angle) * rope->mul;
    }
}

/* Rotates the rope->dim values at x. */
static void rope_head(float *x, const struct mc_rope *rope, const float *c, const float *s)
{
    int32_t half = rope->dim / 2, i;

    if (rope->pair == MC_ROPE_HALVES) {
        for (i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];

            x[i] = a * c[i] - b * s[i];
            x[i + half] = b * c[i] + a * s[i];
        }
    } else {
        for (i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];

            x[2 * i] = a * c[i] - b * s[i];
            x[2 * i + 1] = b * c[i] + a * s[i];
        }
    }
}

/* ---- activations ----------------------------------------------------------------------- */

static const char *act_refuse(const struct mc_act *a)
{
    if (a->layout != MC_A_F32 && a->layout != MC_A_I16)
        return "cpu: activations are f32 or int16";
    if (a->layout == MC_A_I16 && a->k % BLOCK != 0)
        return "cpu: int16 activations need columns in multiples of 32";
    return NULL;
}

/* One block; at: its first column, counted over rows. See enum mc_act_layout. */
static void act_block(const struct mc_act *a, int64_t at, const float *x)
{
    int16_t *q = (int16_t *)a->x + at;
    vf top = vf_set(0), sum = vf_set(0), inv, y;
    float m, s;
    int i;

    for (i = 0; i < BLOCK; i += VN)
        top = vf_mag_max(top, vf_load(x + i));
    m = vf_mag_top(top);
    if (!(m < INFINITY)) {
        memset(q, 0, BLOCK * sizeof q[0]);
        a->s[at / BLOCK] = ((float *)a->bf)[at / BLOCK] = NAN;
        return;
    }
    inv = vf_set(m < MC_ACT_TINY ? 0 : 32767 / m);
    for (i = 0; i < BLOCK; i += VN) {
        y = vf_round(vf_mul(vf_load(x + i), inv));
        sum = vf_add(sum, y); /* whole numbers below 2^20: exact */
        vf_store_i16(q + i, y);
    }
    s = m / 32767;
    a->s[at / BLOCK] = s;
    ((float *)a->bf)[at / BLOCK] = s * vf_sum(sum);
}

/* Columns [c0, c0+n) of row t; for MC_A_I16 in whole blocks. */
static void act_put(const struct mc_act *a, int64_t t, int32_t c0, int32_t n, const float *x)
{
    int64_t at = t * a->k + c0;
    int32_t i;

    if (a->layout == MC_A_F32) {
        memcpy((float *)a->x + at, x, (size_t)n * sizeof x[0]);
        return;
    }
    for (i = 0; i < n; i += BLOCK)
        act_block(a, at + i, x + i);
}

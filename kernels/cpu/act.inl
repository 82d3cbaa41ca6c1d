/* act.inl - rows into activation layouts: MC_A_F32 and MC_A_I16. */

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

/* act.c - activation layouts and `quant`: the oracle for every rounding of an activation.
 * Owns nothing; any thread. */
#include "kernels/host/cast.h"
#include "kernels/ref/ref.h"

int32_t mc_ref_act_block(uint16_t layout)
{
    switch (layout) {
    case MC_A_I8:
    case MC_A_I16:
        return 32;
    case MC_A_E4M3:
        return 128;
    default:
        return 1;
    }
}

const char *mc_ref_act_refuse(uint16_t layout, int32_t k)
{
    if (layout >= MC_N_ACT)
        return "unknown activation layout";
    if ((layout == MC_A_I8 || layout == MC_A_I16) && k % 32 != 0)
        return "int8 and int16 activations need columns in multiples of 32";
    return NULL;
}

float mc_ref_amax(const float *x, int32_t n)
{
    float m = 0;
    int32_t i;

    for (i = 0; i < n; i++)
        if (isnan(x[i]) || fabsf(x[i]) > m)
            m = fabsf(x[i]);
    return m;
}

/* One block of 32: x*(top/amax), round to nearest even. Values that can't be scaled make a
 * scale that is not finite, which poisons what reads them. */
static void put_int(const struct mc_act *a, int64_t at, const float *x, float top)
{
    float m = mc_ref_amax(x, 32), inv = m >= MC_ACT_TINY && isfinite(m) ? top / m : 0;
    int32_t i, sum = 0;

    for (i = 0; i < 32; i++) {
        int32_t q = isfinite(m) ? (int32_t)nearbyintf(x[i] * inv) : 0;

        if (a->layout == MC_A_I8)
            ((int8_t *)a->x)[at + i] = (int8_t)q;
        else
            ((int16_t *)a->x)[at + i] = (int16_t)q;
        sum += q;
    }
    a->s[at / 32] = m / top;
    ((float *)a->bf)[at / 32] = a->s[at / 32] * (float)sum;
}

static void put_e4m3(const struct mc_act *a, int32_t t, int32_t c0, int32_t n,
                     const float *x)
{
    float m = mc_ref_amax(x, n), s = m / 448;
    uint8_t *q = (uint8_t *)a->x + (int64_t)t * a->k + c0;
    int32_t i;

    for (i = 0; i < n; i++)
        q[i] = m == 0 ? 0 : mc_e4m3_of_f32(x[i] / s);
    a->s[(int64_t)t * ((a->k + 127) / 128) + c0 / 128] = s;
}

void mc_ref_act_put(const struct mc_act *a, int32_t t, int32_t c0, int32_t n,
                    const float *x)
{
    int64_t at = (int64_t)t * a->k + c0;
    int32_t i;

    switch (a->layout) {
    case MC_A_F32:
        memcpy((float *)a->x + at, x, (size_t)n * sizeof x[0]);
        break;
    case MC_A_BF16:
        for (i = 0; i < n; i++)
            ((uint16_t *)a->x)[at + i] = mc_bf16_of_f32(x[i]);
        break;
    case MC_A_I8:
    case MC_A_I16:
        for (i = 0; i < n; i += 32)
            put_int(a, at + i, x + i, a->layout == MC_A_I8 ? 127 : 32767);
        break;
    case MC_A_E4M3:
        for (i = 0; i < n; i += 128)
            put_e4m3(a, t, c0 + i, n - i < 128 ? n - i : 128, x + i);
        break;
    }
}

void mc_ref_act_get(const struct mc_act *a, int32_t t, int32_t c0, int32_t n, float *x)
{
    int64_t at = (int64_t)t * a->k + c0;
    int64_t s = (int64_t)t * ((a->k + 127) / 128);
    int32_t i;

    for (i = 0; i < n; i++) {
        switch (a->layout) {
        case MC_A_F32:
            x[i] = ((const float *)a->x)[at + i];
            break;
        case MC_A_BF16:
            x[i] = mc_f32_of_bf16(((const uint16_t *)a->x)[at + i]);
            break;
        case MC_A_I8:
            x[i] = (float)((const int8_t *)a->x)[at + i] * a->s[(at + i) / 32];
            break;
        case MC_A_I16:
            x[i] = (float)((const int16_t *)a->x)[at + i] * a->s[(at + i) / 32];
            break;
        case MC_A_E4M3:
            x[i] = mc_f32_of_e4m3(((const uint8_t *)a->x)[at + i]) *
                   a->s[s + (c0 + i) / 128];
            break;
        }
    }
}

static int quant_need(const struct mc_quant_p *p, struct mc_need *need, const char **why)
{
    const char *no = mc_ref_act_refuse(p->act.layout, p->act.k);

    (void)need;
    return no ? mc_refuse(why, no) : 0;
}

static void quant_rows(void *ctx, int64_t t0, int64_t t1, int lane)
{
    const struct mc_quant_p *p = ctx;
    int64_t t;

    (void)lane;
    for (t = t0; t < t1; t++)
        mc_ref_act_put(&p->act, (int32_t)t, 0, p->act.k,
                       (const float *)p->x + t * p->act.k);
}

static int quant(struct mc_par *par, const struct mc_quant_p *p)
{
    mc_par_for(par, *p->n_live, 1, quant_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_quant, quant, quant_need, quant);

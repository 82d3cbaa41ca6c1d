/* linear.c - pack, linear and glu: everything that multiplies by a weight matrix.
 *
 * Weights are f32 [n,k], whatever they were on disk. A sum is one f32 accumulator with k
 * rising; four outputs are computed side by side, for pace, each in its own accumulator.
 * Owns nothing; bodies run on a stream's threads. */
#include <math.h>

#include "kernels/host/cast.h"
#include "kernels/ref/ref.h"

enum {
    COLS = MC_REF_COLS, /* outputs a chunk */
    MAX_K = MC_REF_MAX_K,
};

static int64_t chunks(int32_t n)
{
    return ((int64_t)n + COLS - 1) / COLS;
}

/* ---- pack -------------------------------------------------------------------------- */

static int pack_need(const struct mc_pack_p *p, struct mc_need *need, const char **why)
{
    if (p->disk.fmt >= MC_N_DISK)
        return mc_refuse(why, "pack: unknown disk format");
    if (p->w.layout != MC_W_F32)
        return mc_refuse(why, "pack: the reference keeps weights in f32 only");
    if (p->w.n < 1 || p->w.k < 1 || p->row0 < 0 || p->k0 < 0 ||
        p->row0 > p->disk.n - p->w.n || p->k0 > p->disk.k - p->w.k)
        return mc_refuse(why, "pack: the slice is outside the matrix");
    need->q = (size_t)p->w.n * (size_t)p->w.k * sizeof(float);
    return 0;
}

static void pack_rows(void *ctx, int64_t r0, int64_t r1, int lane)
{
    const struct mc_pack_p *p = ctx;
    int64_t r;

    (void)lane;
    for (r = r0; r < r1; r++)
        mc_disk_row(&p->disk, p->row0 + (int32_t)r, p->k0, p->k0 + p->w.k,
                    (float *)p->w.q + r * p->w.k);
}

static int pack(struct mc_par *par, const struct mc_pack_p *p)
{
    mc_par_for(par, p->w.n, 16, pack_rows, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_pack, pack, pack_need, pack);

/* ---- dot products ------------------------------------------------------------------ */

void mc_ref_dots(const float *x, const struct mc_w *w, int32_t n0, int32_t n, float *out)
{
    const float *r = (const float *)w->q + (int64_t)n0 * w->k;
    int64_t k = w->k, i;

    for (; n >= 4; n -= 4, r += 4 * k, out += 4) {
        float a = 0, b = 0, c = 0, d = 0;

        for (i = 0; i < k; i++) {
            a += x[i] * r[i];
            b += x[i] * r[k + i];
            c += x[i] * r[2 * k + i];
            d += x[i] * r[3 * k + i];
        }
        out[0] = a, out[1] = b, out[2] = c, out[3] = d;
    }
    for (; n > 0; n--, r += k, out++) {
        *out = 0;
        for (i = 0; i < k; i++)
            *out += x[i] * r[i];
    }
}

const float *mc_ref_act_row(const struct mc_act *a, int32_t t, float *buf)
{
    if (a->layout == MC_A_F32)
        return (const float *)a->x + (int64_t)t * a->k;
    mc_ref_act_get(a, t, 0, a->k, buf);
    return buf;
}

const char *mc_ref_mul_refuse(const struct mc_act *a, const struct mc_w *w)
{
    if (w->layout != MC_W_F32)
        return "the reference multiplies by f32 weights only";
    if (w->k != a->k)
        return "the weight's columns are not the activation's";
    if (a->layout != MC_A_F32 && a->k > MAX_K)
        return "more than 65536 columns of a rounded activation";
    return mc_ref_act_refuse(a->layout, a->k);
}

/* ---- linear ------------------------------------------------------------------------ */

static int linear_need(const struct mc_linear_p *p, struct mc_need *need,
                       const char **why)
{
    int32_t i;

    (void)need;
    if (p->n_w < 1 || p->n_w > MC_MAX_FAN)
        return mc_refuse(why, "linear: 1 to 4 matrices share an input");
    if (p->y_dt != MC_F32 && p->y_dt != MC_BF16)
        return mc_refuse(why, "linear: the output is neither f32 nor bf16");
    for (i = 0; i < p->n_w; i++) {
        const char *no = mc_ref_mul_refuse(&p->act, &p->w[i]);

        if (no)
            return mc_refuse(why, no);
    }
    return 0;
}

static void put_y(const struct mc_linear_p *p, int32_t i, int32_t t, int32_t n0,
                  int32_t n, const float *sum)
{
    int64_t at = (int64_t)t * p->pitch[i] + n0;
    int32_t j;

    for (j = 0; j < n; j++) {
        float y = p->bias[i] ? sum[j] + p->bias[i][n0 + j] : sum[j];

        if (p->y_dt == MC_F32)
            ((float *)p->y[i])[at + j] = y;
        else
            ((uint16_t *)p->y[i])[at + j] = mc_bf16_of_f32(y);
    }
}

/* Outputs [n0, n0+n) of matrix i for every row: the weights are read once. */
static void linear_cols(const struct mc_linear_p *p, int32_t i, int32_t n0, int32_t n)
{
    float sum[COLS], buf[MAX_K];
    int32_t t;

    for (t = 0; t < *p->n_live; t++) {
        mc_ref_dots(mc_ref_act_row(&p->act, t, buf), &p->w[i], n0, n, sum);
        put_y(p, i, t, n0, n, sum);
    }
}

static void linear_chunks(void *ctx, int64_t c0, int64_t c1, int lane)
{
    const struct mc_linear_p *p = ctx;
    int64_t c;

    (void)lane;
    for (c = c0; c < c1; c++) {
        int64_t at = c;
        int32_t i = 0, n0;

        while (at >= chunks(p->w[i].n))
            at -= chunks(p->w[i++].n);
        n0 = (int32_t)at * COLS;
        linear_cols(p, i, n0, p->w[i].n - n0 < COLS ? p->w[i].n - n0 : COLS);
    }
}

static int linear(struct mc_par *par, const struct mc_linear_p *p)
{
    int64_t n = 0;
    int32_t i;

    for (i = 0; i < p->n_w; i++)
        n += chunks(p->w[i].n);
    mc_par_for(par, n, 1, linear_chunks, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_linear, linear, linear_need, linear);

/* ---- glu --------------------------------------------------------------------------- */

static int glu_need(const struct mc_glu_p *p, struct mc_need *need, const char **why)
{
    const char *no = mc_ref_mul_refuse(&p->act, &p->gate);

    (void)need;
    if (!no)
        no = mc_ref_mul_refuse(&p->act, &p->up);
    if (!no)
        no = mc_ref_act_refuse(p->out.layout, p->out.k);
    if (!no && (p->gate.n != p->out.k || p->up.n != p->out.k))
        no = "glu: the rows of gate and up are not the output's columns";
    return no ? mc_refuse(why, no) : 0;
}

void mc_ref_glu_cols(const float *x, const struct mc_w *gate, const struct mc_w *up,
                     int32_t n0, int32_t n, float *out)
{
    float u[COLS];
    int32_t j;

    mc_ref_dots(x, gate, n0, n, out);
    mc_ref_dots(x, up, n0, n, u);
    for (j = 0; j < n; j++)
        out[j] = out[j] / (1 + expf(-out[j])) * u[j];
}

static void glu_chunks(void *ctx, int64_t c0, int64_t c1, int lane)
{
    const struct mc_glu_p *p = ctx;
    float mid[COLS], buf[MAX_K];
    int64_t c;
    int32_t t;

    (void)lane;
    for (c = c0; c < c1; c++) {
        int32_t n0 = (int32_t)c * COLS;
        int32_t n = p->out.k - n0 < COLS ? p->out.k - n0 : COLS;

        for (t = 0; t < *p->n_live; t++) {
            const float *x = mc_ref_act_row(&p->act, t, buf);

            mc_ref_glu_cols(x, &p->gate, &p->up, n0, n, mid);
            mc_ref_act_put(&p->out, t, n0, n, mid);
        }
    }
}

static int glu(struct mc_par *par, const struct mc_glu_p *p)
{
    mc_par_for(par, chunks(p->out.k), 1, glu_chunks, (void *)p);
    return 0;
}

MC_HOST_OP(mc_ref_glu, glu, glu_need, glu);

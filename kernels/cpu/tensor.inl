/* tensor.inl - tensor: views read as f32 a piece at a time, worked on in vectors, rounded to
 * the result's type. Sums and products of single elements have the oracle's bits. */
#include "kernels/host/strided.h"

enum { PIECE = 256, /* elements of a row at a time; whole vectors of every width */
       TILE_N = 64, TILE_K = 64, TILE_M = 16 /* of a product */ };

static int tensor_need(const struct mc_tensor_p *p, struct mc_need *need, const char **why)
{
    const char *no = mc_tensor_refuse(p);

    (void)need;
    return no ? mc_refuse(why, no) : 0;
}

/* n elements from `at`, `step` apart, as f32. */
static void fetch(const struct mc_strided *v, int64_t at, int64_t step, int32_t n, float *x)
{
    int32_t i;

    if (step == 1 && v->dt == MC_F32) {
        memcpy(x, (const float *)v->p + at, (size_t)n * sizeof *x);
    } else if (v->dt == MC_F32) {
        for (i = 0; i < n; i++)
            x[i] = ((const float *)v->p)[at + i * step];
    } else if (v->dt == MC_BF16) {
        for (i = 0; i < n; i++)
            x[i] = mc_f32_of_bf16(((const uint16_t *)v->p)[at + i * step]);
    } else {
        for (i = 0; i < n; i++)
            x[i] = mc_strided_get(v, at + i * step);
    }
}

static void store(const struct mc_strided *v, int64_t at, int64_t step, int32_t n,
                  const float *x)
{
    int32_t i;

    if (step == 1 && v->dt == MC_F32)
        memcpy((float *)v->p + at, x, (size_t)n * sizeof *x);
    else if (v->dt == MC_BF16)
        for (i = 0; i < n; i++)
            ((uint16_t *)v->p)[at + i * step] = mc_bf16_of_f32(x[i]);
    else
        for (i = 0; i < n; i++)
            mc_strided_put(v, at + i * step, x[i]);
}

/* ---- element by element ---------------------------------------------------------------- */

static void both(int32_t what, float *x, const float *y, int32_t n)
{
    int32_t i;

    for (i = 0; i < n; i += VN) {
        vf a = vf_load(x + i), b = vf_load(y + i);

        vf_store(x + i, what == MC_T_ADD   ? vf_add(a, b)
                        : what == MC_T_SUB ? vf_sub(a, b)
                        : what == MC_T_MUL ? vf_mul(a, b)
                                           : vf_div(a, b));
    }
}

static void move_ids(const struct mc_tensor_p *p, int64_t out, int64_t a, int32_t n)
{
    int32_t i;

    for (i = 0; i < n; i++)
        ((int32_t *)p->out.p)[out + i * p->out.step[3]] =
            ((const int32_t *)p->a.p)[a + i * p->a.step[3]];
}

/* Elements [i, i+n) of row r. */
static void piece(const struct mc_tensor_p *p, int64_t r, int32_t i, int32_t n)
{
    int64_t out = mc_strided_row(&p->out, &p->out, r) + i * p->out.step[3];
    int64_t a = mc_strided_row(&p->a, &p->out, r) + i * p->a.step[3];
    int64_t b = mc_strided_row(&p->b, &p->out, r) + i * p->b.step[3];
    float x[PIECE] = {0}, y[PIECE];
    int32_t j;

    if (p->a.dt == MC_I32 && p->out.dt == MC_I32) {
        move_ids(p, out, a, n);
        return;
    }
    fetch(&p->a, a, p->a.step[3], n, x);
    if (p->what != MC_T_COPY) {
        for (j = 0; j < PIECE; j++)
            y[j] = p->scale;
        if (p->b.p)
            fetch(&p->b, b, p->b.step[3], n, y);
        both(p->what, x, y, n);
    }
    store(&p->out, out, p->out.step[3], n, x);
}

/* ---- products --------------------------------------------------------------------------- */

/* TILE_M rows of a product (or fewer) by TILE_N of its columns. */
struct patch {
    const struct mc_tensor_p *p;
    int64_t a, b, out; /* where they begin */
    int32_t m, n;
};

/* b's [k, n] from k0 on as f32, zeros behind its columns. */
static void fetch_b(const struct patch *t, int32_t k0, int32_t k, float b[TILE_K][TILE_N])
{
    const struct mc_strided *v = &t->p->b;
    float column[TILE_K];
    int32_t i, j;

    memset(b, 0, sizeof(float[TILE_K][TILE_N]));
    if (v->step[2] != 1)
        for (i = 0; i < k; i++)
            fetch(v, t->b + (k0 + i) * v->step[2], v->step[3], t->n, b[i]);
    else
        for (j = 0; j < t->n; j++) {
            fetch(v, t->b + k0 + j * v->step[3], 1, k, column);
            for (i = 0; i < k; i++)
                b[i][j] = column[i];
        }
}

static void tile_product(const struct patch *t)
{
    const struct mc_tensor_p *p = t->p;
    float b[TILE_K][TILE_N], sum[TILE_M][TILE_N] = {{0}}, a[TILE_K];
    int32_t k0, i, j, k;

    for (k0 = 0; k0 < p->a.n[3]; k0 += TILE_K) {
        int32_t n = p->a.n[3] - k0 < TILE_K ? p->a.n[3] - k0 : TILE_K;

        fetch_b(t, k0, n, b);
        for (i = 0; i < t->m; i++) {
            fetch(&p->a, t->a + i * p->a.step[2] + k0 * p->a.step[3], p->a.step[3], n, a);
            for (j = 0; j < TILE_N; j += VN) {
                vf s = vf_load(sum[i] + j);

                for (k = 0; k < n; k++)
                    s = vf_fma(vf_set(a[k]), vf_load(b[k] + j), s);
                vf_store(sum[i] + j, s);
            }
        }
    }
    for (i = 0; i < t->m; i++)
        store(&p->out, t->out + i * p->out.step[2], p->out.step[3], t->n, sum[i]);
}

static int32_t cut(int32_t n, int32_t tile)
{
    return (n + tile - 1) / tile;
}

static void products(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_tensor_p *p = ctx;
    int32_t nm = cut(p->out.n[2], TILE_M), nn = cut(p->out.n[3], TILE_N);

    (void)lane;
    for (; i0 < i1; i0++) {
        int64_t batch = i0 / nn / nm, y = batch / p->out.n[1], z = batch % p->out.n[1];
        int32_t m = (int32_t)(i0 / nn % nm) * TILE_M, n = (int32_t)(i0 % nn) * TILE_N;
        struct patch t = {.p = p,
                         .m = p->out.n[2] - m < TILE_M ? p->out.n[2] - m : TILE_M,
                         .n = p->out.n[3] - n < TILE_N ? p->out.n[3] - n : TILE_N};

        t.a = y * p->a.step[0] + z * p->a.step[1] + m * p->a.step[2];
        t.b = y * p->b.step[0] + z * p->b.step[1] + n * p->b.step[3];
        t.out = y * p->out.step[0] + z * p->out.step[1] + m * p->out.step[2] +
                n * p->out.step[3];
        tile_product(&t);
    }
}

/* ---- over the last axis ------------------------------------------------------------------ */

static float fold_row(const struct mc_tensor_p *p, int64_t a)
{
    vf sum = vf_set(0);
    float x[PIECE], most = -INFINITY, s;
    bool nan = false;
    int32_t i0, i, n;

    for (i0 = 0; i0 < p->a.n[3]; i0 += PIECE) {
        n = p->a.n[3] - i0 < PIECE ? p->a.n[3] - i0 : PIECE;
        memset(x + n, 0, (size_t)(PIECE - n) * sizeof *x);
        fetch(&p->a, a + i0 * p->a.step[3], p->a.step[3], n, x);
        for (i = 0; p->what == MC_T_MAX && i < n; i++) {
            most = x[i] > most ? x[i] : most;
            nan |= x[i] != x[i];
        }
        for (i = 0; p->what != MC_T_MAX && i < n; i += VN) {
            vf v = vf_load(x + i);

            sum = p->what == MC_T_NORM ? vf_fma(v, v, sum) : vf_add(sum, v);
        }
    }
    s = vf_sum(sum);
    return p->what == MC_T_MAX    ? nan ? NAN : most
           : p->what == MC_T_NORM ? sqrtf(s)
           : p->what == MC_T_MEAN ? s / (float)p->a.n[3]
                                  : s;
}

static void softmax_of(const struct mc_tensor_p *p, int64_t a, int64_t out)
{
    float x[PIECE], most = -INFINITY, sum = 0;
    int32_t i0, i, n, pass;

    for (pass = 0; pass < 3; pass++)
        for (i0 = 0; i0 < p->a.n[3]; i0 += PIECE) {
            n = p->a.n[3] - i0 < PIECE ? p->a.n[3] - i0 : PIECE;
            fetch(&p->a, a + i0 * p->a.step[3], p->a.step[3], n, x);
            for (i = 0; i < n; i++)
                if (pass == 0)
                    most = x[i] > most ? x[i] : most;
                else if (pass == 1)
                    sum += expf(x[i] - most);
                else
                    x[i] = expf(x[i] - most) / sum;
            if (pass == 2)
                store(&p->out, out + i0 * p->out.step[3], p->out.step[3], n, x);
        }
}

/* The best so far, best first; what is no better than the last is passed by. */
static void topk_of(const struct mc_tensor_p *p, int64_t a, int64_t out, int64_t ids)
{
    float x[PIECE], best[MC_TOPK_MAX];
    int32_t place[MC_TOPK_MAX], n_best = 0, k = p->out.n[3], i0, i, n, j;

    for (i0 = 0; i0 < p->a.n[3]; i0 += PIECE) {
        n = p->a.n[3] - i0 < PIECE ? p->a.n[3] - i0 : PIECE;
        fetch(&p->a, a + i0 * p->a.step[3], p->a.step[3], n, x);
        for (i = 0; i < n; i++) {
            float v = x[i] != x[i] ? -INFINITY : x[i];

            if (n_best == k && !(v > best[k - 1]))
                continue;
            for (j = n_best < k ? n_best++ : k - 1; j > 0 && v > best[j - 1]; j--) {
                best[j] = best[j - 1];
                place[j] = place[j - 1];
            }
            best[j] = v;
            place[j] = i0 + i;
        }
    }
    for (j = 0; j < k; j++) { /* the values as they are: a NaN is a NaN */
        mc_strided_put(&p->out, out + j * p->out.step[3],
                       mc_strided_get(&p->a, a + place[j] * p->a.step[3]));
        ((int32_t *)p->ids.p)[ids + j * p->ids.step[3]] = place[j];
    }
}

static void tensor_rows(void *ctx, int64_t r0, int64_t r1, int lane)
{
    const struct mc_tensor_p *p = ctx;
    int64_t a, out;
    int32_t i;

    (void)lane;
    for (; r0 < r1; r0++) {
        a = mc_strided_row(&p->a, &p->out, r0);
        out = mc_strided_row(&p->out, &p->out, r0);
        if (p->what == MC_T_SOFTMAX)
            softmax_of(p, a, out);
        else if (p->what == MC_T_TOPK)
            topk_of(p, a, out, mc_strided_row(&p->ids, &p->out, r0));
        else if (p->what >= MC_T_SUM)
            mc_strided_put(&p->out, out, fold_row(p, a));
        else
            for (i = 0; i < p->out.n[3]; i += PIECE)
                piece(p, r0, i, p->out.n[3] - i < PIECE ? p->out.n[3] - i : PIECE);
    }
}

static int tensor(struct mc_par *par, const struct mc_tensor_p *p)
{
    if (p->what == MC_T_MATMUL)
        mc_par_for(par, (int64_t)p->out.n[0] * p->out.n[1] * cut(p->out.n[2], TILE_M) *
                            cut(p->out.n[3], TILE_N), 1, products, (void *)p);
    else
        mc_par_for(par, mc_strided_rows(&p->out), 1, tensor_rows, (void *)p);
    return 0;
}

MC_HOST_OP(ISA(tensor), tensor, tensor_need, tensor);

/* cost.c - a step's time as a sum of six terms, fitted to measured steps.
 *
 * Owns nothing. THREAD: as cost.h says.
 * A step of decode rows takes base + row * rows + pairs; prompt rows add a base of their own,
 * tokens and pairs. (A prompt row's own share can't be told from its tokens': there are one
 * or two a step.) A step's squared error is divided by what the last fit expected of it:
 * squares alone would let the few long prompt steps decide what a short one costs, relative
 * errors would hardly count steps that a busy machine held up, and this way the estimates of
 * all steps add up to the time that they took. A negative term is an artefact of what ran
 * together: the most negative is left out and the rest fitted again. */
#include "core/engine/cost.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BASE, ROW, KV, P_BASE, P_TOK, P_KV, N = MC_COST_TERMS, ROUNDS = 4 };

static void terms_of(const struct mc_cost_step *s, double x[N])
{
    x[BASE] = 1;
    x[ROW] = s->n_decode;
    x[KV] = (double)s->ktok_decode;
    x[P_BASE] = s->n_prompt_tok > 0;
    x[P_TOK] = s->n_prompt_tok;
    x[P_KV] = (double)s->ktok_prompt;
}

/* Solves a x = b over the terms in `used`, by elimination; a gets a little on its diagonal,
 * so that terms that always come together share. */
static void solve(double a[N][N], const double *b, const bool *used, double *x)
{
    double m[N][N + 1];

    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N; k++)
            m[i][k] = used[i] && used[k] ? a[i][k] : 0;
        m[i][i] = used[i] && a[i][i] > 0 ? a[i][i] * (1 + 1e-6) : 1;
        m[i][N] = used[i] ? b[i] : 0;
    }
    for (int i = 0; i < N; i++) /* positive definite: no pivoting */
        for (int r = i + 1; r < N; r++) {
            double f = m[r][i] / m[i][i];

            for (int k = i; k <= N; k++)
                m[r][k] -= f * m[i][k];
        }
    for (int i = N - 1; i >= 0; i--) {
        x[i] = m[i][N];
        for (int k = i + 1; k < N; k++)
            x[i] -= m[i][k] * x[k];
        x[i] /= m[i][i];
    }
}

/* One fit with each step weighted by what x says it takes, into x. */
static void fit(const struct mc_cost_step *s, int32_t n, double *x)
{
    double a[N][N] = {{0}}, b[N] = {0}, t[N];
    bool used[N];
    int worst;

    for (int32_t k = 0; k < n; k++) {
        double us = 0, w;

        terms_of(&s[k], t);
        for (int i = 0; i < N; i++)
            us += x[i] * t[i];
        w = us > 1 ? 1 / sqrt(us) : 1;
        for (int i = 0; i < N; i++) {
            b[i] += w * t[i] * w * (double)s[k].us;
            for (int j = 0; j < N; j++)
                a[i][j] += w * t[i] * w * t[j];
        }
    }
    for (int i = 0; i < N; i++)
        used[i] = a[i][i] > 0;
    do {
        solve(a, b, used, x);
        worst = -1;
        for (int i = 0; i < N; i++)
            if (x[i] < 0 &&
                (worst < 0 || x[i] * sqrt(a[i][i]) < x[worst] * sqrt(a[worst][worst])))
                worst = i;
        if (worst == BASE) /* every step has one: what rose along with it took its share */
            worst = used[KV] ? KV : used[ROW] ? ROW : BASE;
        if (worst >= 0)
            used[worst] = false;
    } while (worst >= 0);
}

double mc_cost_us(const struct mc_cost *decode, const struct mc_cost *prefill,
                  const struct mc_cost_step *s)
{
    double us = (double)decode->us_base + (double)decode->us_row * s->n_decode +
                (double)(decode->us_ktok_kv * s->ktok_decode);

    if (s->n_prompt_tok > 0)
        us += (double)prefill->us_base + (double)prefill->us_tok * s->n_prompt_tok +
              (double)(prefill->us_ktok_kv * s->ktok_prompt);
    return us;
}

void mc_cost_fit(const struct mc_cost_step *s, int32_t n, struct mc_cost *decode,
                 struct mc_cost *prefill)
{
    double x[N] = {0}, off = 0, all = 0;

    memset(decode, 0, sizeof *decode);
    memset(prefill, 0, sizeof *prefill);
    if (n < MC_COST_LEAST)
        return;
    for (int round = 0; round < ROUNDS; round++)
        fit(s, n, x);
    decode->us_base = (float)x[BASE];
    decode->us_row = (float)x[ROW];
    decode->us_ktok_kv = (float)x[KV];
    prefill->us_base = (float)x[P_BASE];
    prefill->us_tok = (float)x[P_TOK];
    prefill->us_ktok_kv = (float)x[P_KV];
    for (int32_t k = 0; k < n; k++) {
        off += fabs(mc_cost_us(decode, prefill, &s[k]) - (double)s[k].us);
        all += (double)s[k].us;
    }
    decode->rel_err = prefill->rel_err = all > 0 ? (float)(off / all) : 0;
}

void mc_cost_add(struct mc_cost_window *w, const struct mc_cost_step *s)
{
    int32_t n;

    w->step[w->n++ % MC_COST_STEPS] = *s;
    if (w->n % MC_COST_LEAST)
        return;
    n = w->n < MC_COST_STEPS ? (int32_t)w->n : MC_COST_STEPS;
    mc_cost_fit(w->step, n, &w->decode, &w->prefill);
}

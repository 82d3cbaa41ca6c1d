/* calibrate.c - runs a text through a model and sums the squares of every linear's
 * inputs.
 *
 * Owns the sums. THREAD: one. A matrix is known by where its packed bytes lie: an
 * operation names its matrices by that address. */
#include "core/compress/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/solo.h"

enum {
    WINDOW = 512,
    FEW = 64, /* rows that say too little of an expert's columns */
    TEXT_MAX = 64 << 20,
    MAX_K = 65536,
};

struct entry {
    const void *q; /* packed bytes */
    char module[MC_TENSOR_NAME + 32];
    bool expert;
    int32_t k;
    int64_t n;    /* rows that came to it, */
    int64_t lent; /* and of the layer's others */
    double *sum;
    float *weight;
};

struct mc_calib {
    struct mc_ranks *ranks;
    const struct mc_model *m; /* rank 0's */
    struct mc_solo *solo;
    struct entry *e; /* sorted by q while running, by module afterwards */
    int32_t n, cap;
    int32_t n_token;
    struct mc_stream *lend; /* while rows are lent: what computes them */
    int rc;
};

/* ---- entries ----------------------------------------------------------------------- */

static int add(struct mc_calib *c, const struct mc_tensor_spec *t, int32_t i,
               const void *q, int32_t k)
{
    struct entry *grown, *e;

    if (c->n == c->cap) {
        int32_t cap = c->cap ? 2 * c->cap : 256;

        grown = realloc(c->e, (size_t)cap * sizeof *grown);
        if (!grown)
            return MC_ENOMEM;
        c->e = grown;
        c->cap = cap;
    }
    e = &c->e[c->n];
    *e = (struct entry){.q = q, .expert = t->count > 1, .k = k};
    mc_tensor_name(t, c->m->cfg.prefix, i, e->module);
    e->sum = calloc((size_t)k, sizeof *e->sum);
    if (!e->sum)
        return MC_ENOMEM;
    c->n++;
    return 0;
}

static const struct mc_ws *stack_of(const struct mc_layer *y, uint8_t at)
{
    return at == MC_M_EXPERT_GATE ? &y->e_gate
           : at == MC_M_EXPERT_UP ? &y->e_up
                                  : &y->e_down;
}

static int add_spec(struct mc_calib *c, const struct mc_layer *y,
                    const struct mc_tensor_spec *t)
{
    bool experts = t->at == MC_M_EXPERT_GATE || t->at == MC_M_EXPERT_UP ||
                   t->at == MC_M_EXPERT_DOWN;
    int rc = 0;

    if (t->vector)
        return 0;
    if (!experts)
        return y->w[t->at].q ? add(c, t, 0, y->w[t->at].q, y->w[t->at].k) : 0;
    for (int32_t i = 0; i < t->count && rc == 0; i++) {
        const struct mc_w w = mc_ws_at(stack_of(y, t->at), i);

        rc = add(c, t, i, w.q, w.k);
    }
    return rc;
}

static int by_place(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct entry *)a)->q;
    uintptr_t y = (uintptr_t)((const struct entry *)b)->q;

    return x < y ? -1 : x > y;
}

static int by_module(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->module, ((const struct entry *)b)->module);
}

static int list_matrices(struct mc_calib *c)
{
    struct mc_tensor_spec spec[MC_MAX_SPECS];
    int rc = 0;

    for (int32_t i = 0; i < c->m->cfg.n_layer; i++) {
        int n = mc_tensors_of(&c->m->cfg, i, spec);

        for (int j = 0; j < n && rc == 0; j++)
            rc = add_spec(c, &c->m->layer[i], &spec[j]);
    }
    qsort(c->e, (size_t)c->n, sizeof *c->e, by_place);
    return rc;
}

/* ---- rows -------------------------------------------------------------------------- */

static float bf16_value(uint16_t v)
{
    uint32_t u = (uint32_t)v << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* Row t as f32; false for a layout that no host backend makes. */
static bool row_of(const struct mc_act *a, int64_t t, float *x)
{
    int32_t k = a->k, blocks = (k + 31) / 32;

    switch (a->layout) {
    case MC_A_F32:
        memcpy(x, (const float *)a->x + t * k, (size_t)k * sizeof *x);
        return true;
    case MC_A_BF16:
        for (int32_t i = 0; i < k; i++)
            x[i] = bf16_value(((const uint16_t *)a->x)[t * k + i]);
        return true;
    case MC_A_I8:
        for (int32_t i = 0; i < k; i++)
            x[i] = ((const int8_t *)a->x)[t * k + i] * a->s[t * blocks + i / 32];
        return true;
    case MC_A_I16:
        for (int32_t i = 0; i < k; i++)
            x[i] = ((const int16_t *)a->x)[t * k + i] * a->s[t * blocks + i / 32];
        return true;
    default:
        return false;
    }
}

static struct entry *entry_of(const struct mc_calib *c, const struct mc_w *w)
{
    const struct entry key = {.q = w->q};

    return bsearch(&key, c->e, (size_t)c->n, sizeof key, by_place);
}

/* The matrix w saw row t. */
static void saw(struct mc_calib *c, const struct mc_w *w, const struct mc_act *a,
                int64_t t)
{
    struct entry *e = entry_of(c, w);
    static _Thread_local float x[MAX_K];

    if (!e || e->k != a->k || a->k > MAX_K)
        return; /* the head; an absorbed form */
    if (!row_of(a, t, x)) {
        c->rc = MC_EUNSUP;
        return;
    }
    for (int32_t i = 0; i < e->k; i++)
        e->sum[i] += (double)x[i] * x[i];
    if (c->lend)
        e->lent++;
    else
        e->n++;
}

static void saw_all(struct mc_calib *c, const struct mc_w *w, const struct mc_act *a,
                    int32_t n)
{
    for (int32_t t = 0; t < n; t++)
        saw(c, w, a, t);
}

static void saw_experts(struct mc_calib *c, const struct mc_moe_p *p)
{
    int32_t n = *p->n_live * p->top_k;

    for (int32_t i = 0; i < n; i++) {
        int32_t at = p->order[i], e = p->ids[at];
        struct mc_w gate = mc_ws_at(&p->gate, e), up = mc_ws_at(&p->up, e);
        struct mc_w down = mc_ws_at(&p->down, e);

        saw(c, &gate, &p->act, at / p->top_k);
        saw(c, &up, &p->act, at / p->top_k);
        saw(c, &down, &p->mid, i);
    }
}

/* All rows through the experts that saw few. What moe kept between its matrices is of no
 * more use to it, and has the form and the room for that of one expert. */
static void lend_rows(struct mc_calib *c, const struct mc_moe_p *p)
{
    struct mc_backend *be = c->m->be;
    const struct mc_op *op = be->op[MC_OP_glu];

    for (int32_t i = 0; i < p->gate.n && c->rc == 0; i++) {
        struct mc_glu_p glu = {.n_live = p->n_live, .cap = p->cap, .act = p->act,
                               .gate = mc_ws_at(&p->gate, i), .up = mc_ws_at(&p->up, i),
                               .out = p->mid};
        struct mc_w down = mc_ws_at(&p->down, i);
        const struct entry *e = entry_of(c, &down);
        struct mc_need need = {0};

        if (!e || e->n >= FEW)
            continue;
        c->rc = op->need(&glu, &need, NULL);
        if (c->rc == 0 && need.scratch > 0)
            c->rc = MC_EUNSUP;
        if (c->rc == 0)
            c->rc = op->run(c->lend, &glu);
        if (c->rc == 0)
            c->rc = be->wait(c->lend, be->mark(c->lend));
        if (c->rc < 0)
            return;
        saw_all(c, &glu.gate, &p->act, *p->n_live);
        saw_all(c, &glu.up, &p->act, *p->n_live);
        saw_all(c, &down, &glu.out, *p->n_live);
    }
}

static void on_op(void *ctx, const struct mc_op *op, const void *params)
{
    struct mc_calib *c = ctx;
    const struct mc_backend *be = c->m->be;

    if (op != be->op[MC_OP_moe] &&
        (c->lend || (op != be->op[MC_OP_linear] && op != be->op[MC_OP_glu])))
        return;
    if (mc_solo_wait(c->solo) < 0)
        return; /* the run reports it */
    if (op == be->op[MC_OP_linear]) {
        const struct mc_linear_p *p = params;

        for (int32_t i = 0; i < p->n_w; i++)
            saw_all(c, &p->w[i], &p->act, *p->n_live);
    } else if (op == be->op[MC_OP_glu]) {
        const struct mc_glu_p *p = params;

        saw_all(c, &p->gate, &p->act, *p->n_live);
        saw_all(c, &p->up, &p->act, *p->n_live);
    } else if (c->lend) {
        lend_rows(c, params);
    } else {
        saw_experts(c, params);
    }
}

/* ---- running ----------------------------------------------------------------------- */

static int read_text(const char *path, char **out, size_t *n, struct mc_err *err)
{
    FILE *f = fopen(path, "rb");

    *out = malloc(TEXT_MAX);
    *n = f && *out ? fread(*out, 1, TEXT_MAX, f) : 0;
    if (f)
        fclose(f);
    if (*n == 0)
        return mc_fail_param(err, MC_EIO, "calibrate",
                             "--calibrate: %.120s holds no text", path);
    while (*n == TEXT_MAX && ((*out)[*n - 1] & 0xC0) == 0x80)
        --*n; /* not within a character */
    return 0;
}

static int run_window(struct mc_calib *c, const int32_t *ids, struct mc_err *err)
{
    const struct mc_pass_watch watch = {.on_op = on_op, .ctx = c};
    const int32_t last = WINDOW - 1;
    const float *logits;
    int rc;

    mc_solo_reset(c->solo);
    rc = mc_solo_run(c->solo, ids, WINDOW, &last, 1, &watch, &logits, err);
    return rc < 0 || c->rc == 0
               ? rc
               : mc_fail(err, c->rc,
                         "--calibrate: this backend's activations can't be read");
}

/* The first window once more, for experts that saw few rows. */
static int run_lent(struct mc_calib *c, const int32_t *ids, struct mc_err *err)
{
    struct mc_backend *be = c->m->be;
    bool few = false;
    int rc;

    for (int32_t i = 0; i < c->n; i++)
        few = few || (c->e[i].expert && c->e[i].n < FEW);
    if (!few)
        return 0;
    rc = be->stream_new(be, &c->lend);
    if (rc < 0)
        return mc_fail(err, rc, "no stream on backend %s", be->name);
    rc = run_window(c, ids, err);
    be->stream_free(c->lend);
    c->lend = NULL;
    return rc;
}

static int run_windows(struct mc_calib *c, const struct mc_ids *ids, int32_t n_token,
                       struct mc_err *err)
{
    const struct mc_solo_opts o = {.context = WINDOW, .rows = WINDOW, .outs = 1,
                                   .kv = MC_KV_F32};
    int rc;

    if (ids->n < WINDOW || n_token < WINDOW)
        return mc_fail_param(err, MC_EARG, "calibrate", "--calibrate: %zu tokens, %d are "
                             "needed", ids->n, WINDOW);
    rc = mc_solo_open(c->ranks, &o, &c->solo, err);
    for (size_t at = 0;
         rc == 0 && at + WINDOW <= ids->n && c->n_token + WINDOW <= n_token;
         at += WINDOW) {
        rc = run_window(c, ids->v + at, err);
        c->n_token += WINDOW;
    }
    if (rc == 0)
        rc = run_lent(c, ids->v, err);
    mc_solo_close(c->solo);
    c->solo = NULL;
    return rc;
}

/* Mean squares, scaled to a mean of 1; a hundredth of that is added, so that no column
 * counts for nothing. */
static int weigh(struct entry *e)
{
    double mean = 0;

    for (int32_t i = 0; i < e->k; i++)
        mean += e->sum[i] / e->k;
    if (!(mean > 0))
        return 0;
    e->weight = malloc((size_t)e->k * sizeof *e->weight);
    if (!e->weight)
        return MC_ENOMEM;
    for (int32_t i = 0; i < e->k; i++)
        e->weight[i] = (float)((e->sum[i] / mean + 0.01) / 1.01);
    return 0;
}

int mc_calib_run(struct mc_ranks *ranks, const struct mc_tok *tok, const char *path,
                 int32_t n_token, struct mc_calib **out, struct mc_err *err)
{
    struct mc_calib *c = calloc(1, sizeof *c);
    struct mc_ids ids = {0};
    char *text = NULL;
    size_t n;
    int rc = c ? read_text(path, &text, &n, err)
               : mc_fail(err, MC_ENOMEM, "no memory to calibrate");

    if (rc == 0)
        rc = mc_tok_encode(tok, text, n, 0, &ids, err);
    if (rc == 0) {
        c->ranks = ranks;
        c->m = &ranks->rank[0].model;
        rc = list_matrices(c);
        if (rc < 0)
            mc_fail(err, rc, "no memory to calibrate");
    }
    if (rc == 0)
        rc = run_windows(c, &ids, n_token, err);
    for (int32_t i = 0; rc == 0 && i < c->n; i++)
        if (weigh(&c->e[i]) < 0)
            rc = mc_fail(err, MC_ENOMEM, "no memory to calibrate");
    if (rc == 0)
        qsort(c->e, (size_t)c->n, sizeof *c->e, by_module);
    mc_ids_free(&ids);
    free(text);
    if (rc < 0)
        mc_calib_free(c);
    else
        *out = c;
    return rc;
}

void mc_calib_free(struct mc_calib *c)
{
    for (int32_t i = 0; c && i < c->n; i++) {
        free(c->e[i].sum);
        free(c->e[i].weight);
    }
    if (c)
        free(c->e);
    free(c);
}

const float *mc_calib_importance(void *calib, const char *module, int32_t columns)
{
    const struct mc_calib *c = calib;
    struct entry key, *e;

    if (strlen(module) >= sizeof key.module)
        return NULL;
    strcpy(key.module, module);
    e = bsearch(&key, c->e, (size_t)c->n, sizeof key, by_module);
    return e && e->k == columns ? e->weight : NULL;
}

void mc_calib_seen(const struct mc_calib *c, struct mc_calib_seen *out,
                   void (*each)(void *ctx, const char *module, int64_t rows,
                                int64_t lent),
                   void *ctx)
{
    double sum = 0;

    *out = (struct mc_calib_seen){.n_token = c->n_token};
    for (int32_t i = 0; i < c->n; i++) {
        const struct entry *e = &c->e[i];

        if (!e->expert || !strstr(e->module, ".down_proj"))
            continue; /* of an expert one matrix stands for the others */
        each(ctx, e->module, e->n, e->lent);
        out->least = out->n_expert == 0 || e->n < out->least ? e->n : out->least;
        out->most = e->n > out->most ? e->n : out->most;
        out->n_expert++;
        out->n_unseen += e->n == 0;
        out->n_lent += e->lent > 0;
        sum += (double)e->n;
    }
    out->mean = out->n_expert > 0 ? sum / out->n_expert : 0;
}

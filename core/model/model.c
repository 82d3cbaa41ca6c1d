/* model.c - loading a rank's part of a model into the run layouts of a backend.
 *
 * Owns the packed weights and norm vectors. THREAD: one, before the engine runs.
 * Always true after open: every tensor of tensors.h's list is there and has the shape
 * that the config says; body_bytes is what one pass reads of the layers' matrices.
 *
 * The checkpoint is read once, tensor by tensor: codes of matrices into staging, of which
 * the rank's cut is packed. What is looked at in place (scales, vectors, latents) is
 * dropped from the mapping afterwards, so that resident memory is the packed weights and
 * not both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/model_int.h"
#include "core/model/rope.h"
#include "core/model/strangers.h"

/* ---- one matrix -------------------------------------------------------------------- */

int mc_load_find(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                 struct mc_disk *d, void **own)
{
    char name[MC_TENSOR_NAME + 32];
    int rc;

    mc_tensor_name(t, l->m->cfg.prefix, e, name);
    rc = mc_ckpt_matrix_own(l->c, name, d, own, l->err);
    if (rc == 0 && (d->n != t->n || d->k != t->k))
        rc = mc_fail(l->err, MC_EFORMAT, "%s is [%d, %d], the config says [%d, %d]", name,
                     d->n, d->k, t->n, t->k);
    return rc;
}

int mc_load_cut(struct mc_loader *l, const struct mc_tensor_spec *t,
                const struct mc_disk *d, struct mc_pack_p *p)
{
    const struct mc_model *m = l->m;
    struct mc_span rows, cols;

    mc_tensor_cut(&m->cfg, t, m->slice, &rows, &cols);
    if (rows.n < 1 || cols.n < 1)
        return mc_fail_param(l->err, MC_EUNSUP, "ranks",
                             "--ranks %d: nothing of %s [%d, %d] "
                             "is left for rank %d",
                             m->slice.n, t->name, t->n, t->k, m->slice.rank);
    *p = (struct mc_pack_p){.disk = *d, .row0 = rows.at, .k0 = cols.at};
    p->w = (struct mc_w){.dt = m->be->row_dt, .n = rows.n, .k = cols.n};
    return 0;
}

/* Gate and up are read with one activation. Where their formats want different ones, both
 * are kept as f32, which every format can be. */
static bool same_act(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                     const struct mc_disk *d)
{
    struct mc_backend *be = l->m->be;
    struct mc_tensor_spec other = *t;
    struct mc_disk mate;
    char *at = strstr(other.name, ".gate_proj"), name[MC_TENSOR_NAME + 32];

    if (at)
        memcpy(at, ".up_proj", sizeof ".up_proj");
    else if ((at = strstr(other.name, ".up_proj")))
        snprintf(at, (size_t)(other.name + sizeof other.name - at), ".gate_proj");
    if (!at)
        return true;
    mc_tensor_name(&other, l->m->cfg.prefix, e, name);
    if (mc_ckpt_matrix_own(l->c, name, &mate, NULL, NULL) < 0)
        return true; /* said when its turn comes */
    return be->act_of(be, be->run_of(be, mate.fmt)) ==
           be->act_of(be, be->run_of(be, d->fmt));
}

/* With latents, heads are written one by one: a block of columns that share a scale must not
 * lie in two of them. */
static bool cuts_heads(const struct mc_loader *l, const struct mc_tensor_spec *t,
                       uint16_t layout)
{
    const struct mc_config *c = &l->m->cfg;
    uint16_t act = l->m->be->act_of(l->m->be, layout);

    return t->at == MC_M_O && c->attn == MC_ATTN_MLA && c->v_dim % 32 != 0 &&
           (act == MC_A_I8 || act == MC_A_I16);
}

uint16_t mc_load_layout(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                        const struct mc_disk *d)
{
    uint16_t layout = l->m->be->run_of(l->m->be, d->fmt);

    return same_act(l, t, e, d) && !cuts_heads(l, t, layout) ? layout : MC_W_F32;
}

int mc_load_need(struct mc_loader *l, const char *name, struct mc_pack_p *p,
                 struct mc_need *need)
{
    const struct mc_op *op = l->m->be->op[MC_OP_pack];
    const char *why = NULL;
    int rc = op->need(p, need, &why);

    if (rc < 0 && p->w.layout != MC_W_F32) {
        p->w.layout = MC_W_F32; /* columns, or a cut, inside of what the layout keeps together */
        rc = op->need(p, need, &why);
    }
    if (rc < 0)
        return mc_fail(l->err, rc, "%s (%s, [%d, %d]): %s", name,
                       mc_disk_name(p->disk.fmt), p->disk.n, p->disk.k,
                       why ? why : "not supported by this backend");
    p->w.bytes = need->q + need->scale + need->zero;
    return 0;
}

/* Reads the rank's rows to where they would lie in the whole matrix: of memory that is not
 * touched only the addresses are used. A copy that is no file stays where it is. */
static int stage_codes(struct mc_loader *l, struct mc_pack_p *p, void **own)
{
    uint64_t row = mc_disk_bytes(p->disk.fmt, 1, p->disk.k),
             all = row * (uint64_t)p->disk.n;
    uint64_t at = row * (uint64_t)p->row0, n = row * (uint64_t)p->w.n;
    const uint8_t *from = (const uint8_t *)p->disk.q + at;
    uint8_t *stage;
    int rc;

    if (row == 0 || !mc_ckpt_is_file(l->c, from, n))
        return 0;
    if (all > MC_STAGE)
        stage = *own = malloc(all);
    else
        stage = l->stage = l->stage ? l->stage : malloc(MC_STAGE);
    if (!stage)
        return mc_fail(l->err, MC_ENOMEM, "no memory to read a matrix of %llu bytes",
                       (unsigned long long)all);
    rc = mc_ckpt_read(l->c, from, n, stage + at, l->err);
    /* Columns are cut by every rank from the same rows: the last one is done with them. */
    if (rc == 0 && (p->w.k == p->disk.k || l->m->slice.rank == l->m->slice.n - 1))
        mc_ckpt_forget(l->c, from, n);
    p->disk.q = stage;
    return rc;
}

int mc_load_pack(struct mc_loader *l, const char *name, const struct mc_pack_p *p)
{
    struct mc_backend *be = l->m->be;
    struct mc_pack_p staged = *p;
    void *own = NULL;
    int rc;

    if (mc_comm_broken(be->peer.comm))
        return mc_fail(l->err, MC_ERANK, "another rank failed");
    rc = stage_codes(l, &staged, &own);
    if (rc == 0)
        rc = be->op[MC_OP_pack]->run(l->s, &staged);
    if (rc == 0)
        rc = be->wait(l->s, be->mark(l->s));
    free(own);
    if (rc < 0)
        return l->err && l->err->code == rc
                   ? mc_err_while(l->err, "packing %s", name)
                   : mc_fail(l->err, rc, "packing %s failed", name);
    mc_ckpt_drop(l->c, p->disk.q, mc_disk_bytes(p->disk.fmt, p->disk.n, p->disk.k));
    l->m->weight_bytes += p->w.bytes;
    atomic_fetch_add(&l->m->n_packed, 1);
    return 0;
}

static int pack_matrix(struct mc_loader *l, const struct mc_tensor_spec *t,
                       const struct mc_disk *d, struct mc_w *out)
{
    struct mc_mem *mem = &l->m->mem;
    struct mc_need need = {0};
    struct mc_pack_p p;
    int rc = mc_load_cut(l, t, d, &p);

    if (rc < 0)
        return rc;
    p.w.layout = mc_load_layout(l, t, 0, d);
    rc = mc_load_need(l, t->name, &p, &need);
    if (rc < 0)
        return rc;
    p.w.q = mc_mem_take(mem, need.q);
    p.w.scale = mc_mem_take(mem, need.scale);
    p.w.zero = mc_mem_take(mem, need.zero);
    if ((need.q && !p.w.q) || (need.scale && !p.w.scale) || (need.zero && !p.w.zero))
        return mc_fail(l->err, MC_ENOMEM, "no memory for %s: %zu bytes", t->name, need.q);
    rc = mc_load_pack(l, t->name, &p);
    *out = p.w;
    return rc;
}

static int load_matrix(struct mc_loader *l, const struct mc_tensor_spec *t,
                       struct mc_w *out)
{
    struct mc_disk d;
    void *own = NULL;
    int rc = mc_load_find(l, t, 0, &d, &own);

    if (rc == 0)
        rc = pack_matrix(l, t, &d, out);
    free(own);
    return rc;
}

/* ---- one vector -------------------------------------------------------------------- */

static int load_vector(struct mc_loader *l, const struct mc_tensor_spec *t, float **out)
{
    const struct mc_model *m = l->m;
    struct mc_span part, none;
    char name[MC_TENSOR_NAME + 32];
    float *host = malloc((size_t)t->n * sizeof *host);
    int rc;

    if (!host)
        return mc_fail(l->err, MC_ENOMEM, "no memory for %s", t->name);
    mc_tensor_cut(&m->cfg, t, m->slice, &part, &none);
    mc_tensor_name(t, m->cfg.prefix, 0, name);
    rc = mc_ckpt_vector(l->c, name, t->n, host, l->err);
    if (rc == 0) {
        *out = mc_mem_put(&l->m->mem, host + part.at, (size_t)part.n * sizeof *host);
        if (!*out)
            rc = mc_fail(l->err, MC_ENOMEM, "no device memory for %s", name);
    }
    free(host);
    return rc;
}

/* ---- layers ------------------------------------------------------------------------ */

static int load_one(struct mc_loader *l, const struct mc_tensor_spec *t,
                    struct mc_layer *y)
{
    if (t->vector)
        return load_vector(l, t, &y->v[t->at]);
    switch (t->at) {
    case MC_M_KV_B: {
        int rc = mc_load_latent(l, t, y);

        return rc == 0 && l->m->cfg.mla_expand > 0 ? load_matrix(l, t, &y->w[t->at]) : rc;
    }
    case MC_M_EXPERT_GATE:
        return mc_load_experts(l, t, &y->e_gate);
    case MC_M_EXPERT_UP:
        return mc_load_experts(l, t, &y->e_up);
    case MC_M_EXPERT_DOWN:
        return mc_load_experts(l, t, &y->e_down);
    default:
        return load_matrix(l, t, &y->w[t->at]);
    }
}

static int load_layer(struct mc_loader *l, int32_t i, struct mc_layer *y)
{
    struct mc_tensor_spec spec[MC_MAX_SPECS];
    int n = mc_tensors_of(&l->m->cfg, i, spec), rc = 0;

    for (int j = 0; j < n && rc == 0; j++)
        rc = load_one(l, &spec[j], y);
    return rc;
}

/* What a pass reads of a layer: of experts those of one row. */
static uint64_t bytes_read(const struct mc_config *c, const struct mc_layer *y)
{
    uint64_t bytes = y->w_uk.w.bytes * (uint64_t)y->w_uk.n +
                     y->w_uv.w.bytes * (uint64_t)y->w_uv.n;

    for (int j = 0; j < MC_N_MATRIX; j++)
        bytes += j == MC_M_KV_B ? 0 : y->w[j].bytes; /* long chunks alone read that */
    return bytes + (uint64_t)c->top_k_expert *
                       (y->e_gate.w.bytes + y->e_up.w.bytes + y->e_down.w.bytes);
}

static int load_all(struct mc_loader *l)
{
    struct mc_model *m = l->m;
    const struct mc_config *c = &m->cfg;
    int32_t n_index = 0;
    int rc = load_layer(l, -1, &m->end);

    for (int32_t i = 0; i < c->n_layer + c->n_mtp && rc == 0; i++) {
        struct mc_layer *y = &m->layer[i];

        n_index += c->layer[i] & MC_LAYER_INDEX ? 1 : 0;
        y->index = n_index - 1;
        rc = load_layer(l, i, y);
        if (i < c->n_layer)
            m->body_bytes += bytes_read(c, y);
    }
    if (rc < 0)
        return rc;
    if (c->tied)
        m->end.w[MC_M_HEAD] = m->end.w[MC_M_EMBED];
    m->head_bytes = m->end.w[MC_M_HEAD].bytes;
    m->row0 = mc_share(c->vocab, mc_width_unit(c->vocab, m->slice.n), m->slice).at;
    return 0;
}

static int load_rope(struct mc_loader *l)
{
    struct mc_model *m = l->m;
    size_t n = (size_t)mc_rope_dim(&m->cfg) / 2;
    float *freq = malloc(n * sizeof *freq);
    int rc;

    if (!freq)
        return mc_fail(l->err, MC_ENOMEM, "no memory for the rotary table");
    rc = mc_rope_freqs(&m->cfg, l->c, freq, l->err);
    if (rc == 0) {
        m->inv_freq = mc_mem_put(&m->mem, freq, n * sizeof *freq);
        if (!m->inv_freq)
            rc = mc_fail(l->err, MC_ENOMEM, "no device memory for the rotary table");
    }
    free(freq);
    return rc;
}

int mc_model_open(struct mc_backend *be, const struct mc_ckpt *c,
                  const struct mc_config *cfg, struct mc_slice slice, int32_t n_real,
                  struct mc_model *m, struct mc_err *err)
{
    struct mc_loader l = {.m = m, .c = c, .err = err};
    int rc;

    memset(m, 0, sizeof *m);
    m->be = be;
    m->cfg = *cfg;
    m->slice = slice;
    m->n_real = n_real < cfg->vocab ? n_real : cfg->vocab;
    m->rope_mul = cfg->rope_mul;
    mc_mem_init(&m->mem, be);
    rc = mc_strangers_check(c, cfg, err);
    if (rc < 0)
        return rc;
    if (!mc_share_heads(cfg, slice, &m->heads, &m->kv_heads))
        return mc_fail_param(err, MC_EUNSUP, "ranks",
                             "--ranks %d: %d heads over %d kv heads "
                             "can't be shared evenly",
                             slice.n, cfg->n_head, cfg->n_kv_head);
    m->layer = calloc((size_t)(cfg->n_layer + cfg->n_mtp), sizeof *m->layer);
    if (!m->layer)
        return mc_fail(err, MC_ENOMEM, "no memory for %d layers", cfg->n_layer);
    rc = be->stream_new(be, &l.s);
    if (rc < 0) {
        mc_fail(err, rc, "no stream on backend %s", be->name);
        goto fail;
    }
    rc = load_rope(&l);
    if (rc == 0)
        rc = load_all(&l);
    if (rc == 0)
        rc = mc_load_scales(&l);
    be->stream_free(l.s);
    free(l.stage);
    if (mc_ckpt_intact(c, err) < 0)
        rc = MC_EIO;
    if (rc < 0)
        goto fail;
    return 0;
fail:
    mc_model_close(m);
    return rc;
}

void mc_model_close(struct mc_model *m)
{
    mc_mem_fini(&m->mem);
    free(m->layer);
    m->layer = NULL;
}

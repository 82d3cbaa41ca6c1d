/* model.c - loading a model's weights into the run layouts of a backend.
 *
 * Owns the packed weights and norm vectors. THREAD: one, before the engine runs.
 * Always true after open: every matrix has the shape that the config says; body_bytes is
 * what one pass reads of the layers' matrices, whatever the number of rows.
 *
 * The checkpoint is read once, tensor by tensor: what was packed is dropped from the page
 * cache's mapping, so that resident memory is the packed weights and not both. */
#include "core/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/model/memory.h"
#include "core/model/rope.h"
#include "core/weights/weights.h"

struct loader {
    struct mc_model *m;
    const struct mc_ckpt *c;
    struct mc_stream *s;
    struct mc_err *err;
};

/* Packs one matrix of the given shape; rows beyond what the file has are an error. */
static int matrix(struct loader *l, const char *module, int32_t n, int32_t k,
                  struct mc_w *w)
{
    struct mc_backend *be = l->m->be;
    const struct mc_op *op = be->op[MC_OP_pack];
    struct mc_pack_p p = {0};
    struct mc_need need = {0};
    const char *why = NULL;
    int rc;

    rc = mc_ckpt_matrix(l->c, module, &p.disk, l->err);
    if (rc < 0)
        return rc;
    if (p.disk.n != n || p.disk.k != k)
        return mc_fail(l->err, MC_EFORMAT, "%s is [%d, %d], the config says [%d, %d]",
                       module, p.disk.n, p.disk.k, n, k);
    p.w = (struct mc_w){.layout = be->run_of(be, p.disk.fmt),
                        .dt = be->row_dt,
                        .n = n,
                        .k = k};
    rc = op->need(&p, &need, &why);
    if (rc < 0)
        return mc_fail(l->err, rc, "%s (%s, [%d, %d]): %s", module,
                       mc_disk_name(p.disk.fmt), n, k,
                       why ? why : "not supported by this backend");
    p.w.q = mc_mem_take(&l->m->mem, need.q);
    p.w.scale = mc_mem_take(&l->m->mem, need.scale);
    p.w.zero = mc_mem_take(&l->m->mem, need.zero);
    if ((need.q && !p.w.q) || (need.scale && !p.w.scale) || (need.zero && !p.w.zero))
        return mc_fail(l->err, MC_ENOMEM, "no memory for %s: %zu bytes", module, need.q);
    p.w.bytes = need.q + need.scale + need.zero;
    rc = op->run(l->s, &p);
    if (rc == 0)
        rc = be->wait(l->s, be->mark(l->s));
    if (rc < 0)
        return mc_fail(l->err, rc, "packing %s failed", module);
    mc_ckpt_drop(l->c, p.disk.q, mc_disk_bytes(p.disk.fmt, n, k));
    l->m->weight_bytes += p.w.bytes;
    *w = p.w;
    return 0;
}

/* A vector of n floats; *out stays NULL when it is optional and absent. */
static int vector(struct loader *l, const char *name, int32_t n, bool optional,
                  float **out)
{
    size_t bytes = (size_t)n * sizeof(float);
    float *host = malloc(bytes);
    int rc;

    if (!host)
        return mc_fail(l->err, MC_ENOMEM, "no memory for %s", name);
    rc = mc_ckpt_vector(l->c, name, n, host, l->err);
    if (rc == MC_ENOENT && optional)
        rc = 0;
    else if (rc == 0) {
        *out = mc_mem_put(&l->m->mem, host, bytes);
        if (!*out)
            rc = mc_fail(l->err, MC_ENOMEM, "no device memory for %s", name);
    }
    free(host);
    return rc;
}

static int layer_matrix(struct loader *l, int32_t i, const char *part, int32_t n,
                        int32_t k, struct mc_w *w)
{
    char name[96];
    int rc;

    snprintf(name, sizeof name, "model.layers.%d.%s", i, part);
    rc = matrix(l, name, n, k, w);
    if (rc == 0)
        l->m->body_bytes += w->bytes;
    return rc;
}

static int layer_vector(struct loader *l, int32_t i, const char *part, int32_t n,
                        bool optional, float **out)
{
    char name[96];

    snprintf(name, sizeof name, "model.layers.%d.%s", i, part);
    return vector(l, name, n, optional, out);
}

static int load_attention(struct loader *l, int32_t i, struct mc_layer *y)
{
    static const char *const proj[3] = {"self_attn.q_proj", "self_attn.k_proj",
                                        "self_attn.v_proj"};
    const struct mc_config *c = &l->m->cfg;
    int32_t kv = c->n_kv_head * c->head_dim, n[3] = {c->n_head * c->head_dim, kv, kv};
    char name[64];
    int rc = 0;

    for (int j = 0; j < 3 && rc == 0; j++) {
        rc = layer_matrix(l, i, proj[j], n[j], c->hidden, &y->qkv[j]);
        snprintf(name, sizeof name, "%s.bias", proj[j]);
        if (rc == 0 && c->qkv_bias)
            rc = layer_vector(l, i, name, n[j], false, &y->qkv_bias[j]);
    }
    if (rc == 0 && c->qk_norm)
        rc = layer_vector(l, i, "self_attn.q_norm.weight", c->head_dim, false,
                          &y->q_norm);
    if (rc == 0 && c->qk_norm)
        rc = layer_vector(l, i, "self_attn.k_norm.weight", c->head_dim, false,
                          &y->k_norm);
    if (rc == 0)
        rc = layer_matrix(l, i, "self_attn.o_proj", c->hidden, n[0], &y->o);
    return rc;
}

static int load_layer(struct loader *l, int32_t i, struct mc_layer *y)
{
    const struct mc_config *c = &l->m->cfg;
    int rc;

    rc = layer_vector(l, i, "input_layernorm.weight", c->hidden, false, &y->attn_norm);
    if (rc == 0)
        rc = load_attention(l, i, y);
    if (rc == 0)
        rc = layer_vector(l, i, "post_attention_layernorm.weight", c->hidden, false,
                          &y->mlp_norm);
    if (rc == 0)
        rc = layer_matrix(l, i, "mlp.gate_proj", c->inter, c->hidden, &y->gate);
    if (rc == 0)
        rc = layer_matrix(l, i, "mlp.up_proj", c->inter, c->hidden, &y->up);
    if (rc == 0)
        rc = layer_matrix(l, i, "mlp.down_proj", c->hidden, c->inter, &y->down);
    return rc;
}

static int load_ends(struct loader *l)
{
    struct mc_model *m = l->m;
    const struct mc_config *c = &m->cfg;
    int rc;

    rc = matrix(l, "model.embed_tokens", c->vocab, c->hidden, &m->embed);
    if (rc == 0 && c->tied)
        m->head = m->embed;
    else if (rc == 0)
        rc = matrix(l, "lm_head", c->vocab, c->hidden, &m->head);
    m->head_bytes = m->head.bytes;
    if (rc == 0)
        rc = vector(l, "model.norm.weight", c->hidden, false, &m->norm);
    return rc;
}

static int load_rope(struct loader *l)
{
    struct mc_model *m = l->m;
    float *freq = malloc((size_t)m->cfg.head_dim / 2 * sizeof(float));
    int rc;

    if (!freq)
        return mc_fail(l->err, MC_ENOMEM, "no memory for the rotary table");
    rc = mc_rope_freqs(&m->cfg, l->c, freq, &m->rope_mul, l->err);
    if (rc == 0) {
        m->inv_freq = mc_mem_put(&m->mem, freq,
                                 (size_t)m->cfg.head_dim / 2 * sizeof(float));
        if (!m->inv_freq)
            rc = mc_fail(l->err, MC_ENOMEM, "no device memory for the rotary table");
    }
    free(freq);
    return rc;
}

int mc_model_open(struct mc_backend *be, const struct mc_ckpt *c,
                  const struct mc_config *cfg, int32_t n_real, struct mc_model *m,
                  struct mc_err *err)
{
    struct loader l = {.m = m, .c = c, .err = err};
    int rc;

    memset(m, 0, sizeof *m);
    m->be = be;
    m->cfg = *cfg;
    m->n_real = n_real < cfg->vocab ? n_real : cfg->vocab;
    mc_mem_init(&m->mem, be);
    m->layer = calloc((size_t)cfg->n_layer, sizeof *m->layer);
    if (!m->layer)
        return mc_fail(err, MC_ENOMEM, "no memory for %d layers", cfg->n_layer);
    rc = be->stream_new(be, &l.s);
    if (rc < 0) {
        mc_fail(err, rc, "no stream on backend %s", be->name);
        goto fail;
    }
    rc = load_ends(&l);
    if (rc == 0)
        rc = load_rope(&l);
    for (int32_t i = 0; i < cfg->n_layer && rc == 0; i++)
        rc = load_layer(&l, i, &m->layer[i]);
    be->stream_free(l.s);
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

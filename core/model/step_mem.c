/* step_mem.c - the memory of a step: row arrays in one block, KV pool, slots, logits.
 *
 * Owns nothing: the buffers belong to the mc_mem that they were taken from. THREAD: one,
 * at boot; mc_step_upload: the engine's. */
#include "core/model/model.h"

struct cut {
    uintptr_t base; /* 0 when only sizes are summed */
    size_t at;
};

static int32_t *take_i32(struct cut *c, int64_t n)
{
    int32_t *p = (int32_t *)(c->base + c->at);

    c->at += ((size_t)n * sizeof(int32_t) + 63) & ~(size_t)63;
    return p;
}

static struct mc_rows cut_rows(struct cut *c, const struct mc_pass_caps *caps)
{
    struct mc_rows r = {.cap = caps->rows, .cap_seq = caps->seqs, .cap_out = caps->outs};

    r.live = take_i32(c, 4);
    r.tok = take_i32(c, r.cap);
    r.pos = take_i32(c, r.cap);
    r.row_seq = take_i32(c, r.cap);
    r.q0 = take_i32(c, r.cap_seq + 1);
    r.kv_len = take_i32(c, r.cap_seq);
    r.slot = take_i32(c, r.cap_seq);
    r.out_row = take_i32(c, r.cap_out);
    r.target = take_i32(c, r.cap_out);
    return r;
}

size_t mc_taps_bytes(const struct mc_pass_caps *caps)
{
    return caps->taps > 0
               ? sizeof(struct mc_taps) + (size_t)caps->taps * sizeof(struct mc_tap)
               : 0;
}

size_t mc_rows_bytes(const struct mc_pass_caps *caps)
{
    struct cut c = {0};

    cut_rows(&c, caps);
    return c.at;
}

struct mc_rows mc_rows_bind(void *base, const struct mc_pass_caps *caps)
{
    struct cut c = {.base = (uintptr_t)base};

    return cut_rows(&c, caps);
}

static int32_t count_indexes(const struct mc_config *c)
{
    int32_t n = 0;

    for (int32_t i = 0; i < c->n_layer + c->n_mtp; i++)
        n += c->layer[i] & MC_LAYER_INDEX ? 1 : 0;
    return n;
}

struct mc_kv mc_kv_of(const struct mc_config *c, struct mc_slice slice,
                      enum mc_kv_layout layout)
{
    struct mc_kv kv = {.n_layer = c->n_layer + c->n_mtp, .n_shard = 1,
                       .layout = (uint16_t)layout};
    struct mc_span heads, kv_heads;

    if (c->attn == MC_ATTN_MLA) {
        kv.c = c->kv_lora;
        kv.r = c->rope_dim;
        kv.layer_stride = MC_PAGE * mc_mla_token_bytes(kv.layout, kv.c, kv.r);
    } else {
        mc_share_heads(c, slice, &heads, &kv_heads);
        kv.hk = kv_heads.n;
        kv.d = c->head_dim;
        kv.layer_stride = mc_kv_layer_bytes(kv.layout, kv.hk, kv.d);
    }
    kv.index_off = kv.page_stride = kv.layer_stride * kv.n_layer;
    kv.n_index = count_indexes(c);
    if (kv.n_index > 0) {
        kv.index_d = c->index_dim;
        kv.index_stride = mc_index_bytes(kv.layout, kv.index_d);
        kv.page_stride += kv.index_stride * kv.n_index;
    }
    return kv;
}

struct mc_kv mc_model_kv(const struct mc_model *m, enum mc_kv_layout layout)
{
    struct mc_kv kv = mc_kv_of(&m->cfg, m->slice, layout);

    kv.k_scale = m->k_scale;
    kv.v_scale = m->v_scale;
    return kv;
}

/* The rows of logits, those of this rank's vocabulary and those that it samples. */
static int take_logits(struct mc_step_mem *d, struct mc_mem *m,
                       const struct mc_model *model, size_t outs)
{
    struct mc_slice s = model->slice;
    size_t v = (size_t)model->cfg.vocab, mine = (outs + (size_t)s.n - 1) / (size_t)s.n;

    for (s.rank = 0; s.rank < s.n; s.rank++) {
        int32_t n = mc_share(model->cfg.vocab, mc_width_unit(model->cfg.vocab, s.n), s).n;

        d->part_pitch = n > d->part_pitch ? n : d->part_pitch;
    }
    d->logits = mc_mem_take(m, mine * v * sizeof *d->logits);
    d->raw = mc_mem_take(m, mine * v * sizeof *d->raw);
    d->stat = mc_mem_take(m, mine * 4 * sizeof *d->stat);
    d->out = mc_mem_take(m, outs * sizeof *d->out);
    d->part = d->logits;
    d->mine = d->out;
    if (s.n > 1) {
        d->part = mc_mem_take(m, outs * (size_t)d->part_pitch * sizeof *d->part);
        d->mine = mc_mem_take(m, mine * sizeof *d->mine);
    }
    return d->logits && d->raw && d->stat && d->out && d->part && d->mine ? 0 : MC_ENOMEM;
}

int mc_step_mem_take(struct mc_step_mem *d, struct mc_mem *m,
                     const struct mc_model *model, const struct mc_pass_caps *caps)
{
    const struct mc_config *c = &model->cfg;
    struct mc_kv *kv = &d->kv;
    size_t v = (size_t)c->vocab, slots = (size_t)kv->n_slot;
    size_t pages = (size_t)kv->n_page, cells = slots * (size_t)kv->pitch;

    d->rows_bytes = mc_rows_bytes(caps);
    d->taps = mc_mem_take(m, mc_taps_bytes(caps));
    d->rows_base = mc_mem_take(m, d->rows_bytes);
    kv->base = mc_mem_take(m, pages * (size_t)kv->page_stride);
    kv->table = mc_mem_take(m, cells * sizeof *kv->table);
    kv->want_tag = mc_mem_take(m, cells * sizeof *kv->want_tag);
    kv->tag = mc_mem_take(m, pages * sizeof *kv->tag);
    d->slots = mc_mem_take(m, slots * sizeof *d->slots);
    d->counts = mc_mem_take(m, slots * v * sizeof *d->counts);
    d->bias = mc_mem_take(m, slots * MC_MAX_BIAS * sizeof *d->bias);
    d->masks = mc_mem_take(m, MC_MAX_SETS * ((v + 31) / 32) * sizeof *d->masks);
    d->eos = mc_mem_put(m, c->eos, sizeof c->eos);
    if (!d->rows_base || !kv->base || !kv->table || !kv->want_tag || !kv->tag ||
        (caps->taps > 0 && !d->taps) || !d->slots || !d->counts || !d->bias ||
        !d->masks || !d->eos || take_logits(d, m, model, (size_t)caps->outs) < 0)
        return MC_ENOMEM;
    d->rows = mc_rows_bind(d->rows_base, caps);
    return 0;
}

struct mc_table_apply_p mc_step_upload(const struct mc_step_mem *d, int32_t vocab,
                                       const void *rows_from)
{
    return (struct mc_table_apply_p){.kv = d->kv,
                                     .slots = d->slots,
                                     .counts = d->counts,
                                     .bias = d->bias,
                                     .vocab = vocab,
                                     .rows_from = rows_from,
                                     .rows_to = d->rows_base,
                                     .rows_bytes = d->rows_bytes};
}

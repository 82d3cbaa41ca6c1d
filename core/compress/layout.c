/* layout.c - which tensors the result has, and in which shard each lies.
 *
 * Owns the plan's memory. THREAD: one. Always true of a layout: every tensor of the
 * source is either copied by one output or is a part of exactly one item; outputs of an
 * item are neighbours in one shard; the order is the source's, so that the result is the
 * same whenever it is made. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/compress/compress_int.h"

enum { MODULE_CAP = 256, NAME_CAP = MODULE_CAP + 32, FIRST_PARTS = 3 };
#define SHARD_BYTES UINT64_C(5000000000)

/* Suffixes of tensors that are parts of a matrix; each has exactly one of the first
 * three. */
static const char *const parts[] = {
    "weight",         "weight_packed", "qweight",           "weight_scale",
    "weight_scale_inv", "weight_scale_2", "weight_shape",   "weight_zero_point",
    "weight_global_scale", "input_scale", "input_global_scale", "weight_g_idx",
    "qzeros",         "scales",        "g_idx",
};

static bool is_part(const char *suffix)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(suffix, parts[i]) == 0)
            return true;
    return false;
}

static const struct mc_stored *part_of(const struct mc_ckpt *c, const char *module,
                                       const char *suffix)
{
    char name[NAME_CAP];

    snprintf(name, sizeof name, "%.255s.%s", module, suffix);
    return mc_ckpt_find(c, name);
}

/* ---- growing ----------------------------------------------------------------------- */

static void *grow(void *v, int32_t n, int32_t *cap, size_t each)
{
    int32_t want = *cap ? 2 * *cap : 256;
    void *grown;

    if (n < *cap)
        return v;
    grown = realloc(v, (size_t)want * each);
    if (grown)
        *cap = want;
    return grown;
}

static struct mc_out_tensor *add_out(struct mc_plan_of *pl, const char *name,
                                     const char *dtype, enum mc_part part)
{
    struct mc_out_tensor *grown = grow(pl->out, pl->n_out, &pl->cap_out, sizeof *grown),
                         *o;

    if (!grown)
        return NULL;
    pl->out = grown;
    o = &pl->out[pl->n_out];
    *o = (struct mc_out_tensor){.name = strdup(name), .dtype = dtype, .part = part,
                                .item = -1};
    if (!o->name)
        return NULL;
    pl->n_out++;
    return o;
}

static int no_memory(struct mc_err *err)
{
    return mc_fail(err, MC_ENOMEM, "no memory for the plan of the result");
}

static bool is_gguf(const struct mc_plan_of *pl)
{
    return mc_ckpt_kind(pl->p->src) == MC_CKPT_GGUF;
}

/* A copy of a stored tensor under another name. */
static int add_copy(struct mc_plan_of *pl, const struct mc_stored *t, const char *name,
                    int32_t item, struct mc_err *err)
{
    struct mc_out_tensor *o = add_out(pl, name, t->dtype, MC_PART_COPY);

    if (!o)
        return no_memory(err);
    o->n_dim = t->n_dim;
    memcpy(o->dim, t->dim, sizeof o->dim);
    o->bytes = t->bytes;
    o->from = t->data;
    o->item = item;
    return 0;
}

/* A part that is computed; n_dim 1 when k is 0. */
static int add_part(struct mc_plan_of *pl, const char *module, const char *suffix,
                    const char *dtype, enum mc_part part, int64_t n, int64_t k,
                    size_t width, int32_t item, struct mc_err *err)
{
    char name[NAME_CAP];
    struct mc_out_tensor *o;

    snprintf(name, sizeof name, "%.255s.%s", module, suffix);
    o = add_out(pl, name, dtype, part);
    if (!o)
        return no_memory(err);
    o->n_dim = k ? 2 : 1;
    o->dim[0] = n;
    o->dim[1] = k;
    o->bytes = (uint64_t)n * (uint64_t)(k ? k : 1) * width;
    o->item = item;
    return 0;
}

/* ---- items ------------------------------------------------------------------------- */

/* Whether the matrix has the wanted format already. */
static bool same_format(const struct mc_disk *d, const struct mc_target *t)
{
    if (t->keep || d->fmt != t->fmt)
        return t->keep;
    if (t->fmt == MC_D_INT4)
        return d->group == t->group && !d->zero;
    return t->fmt != MC_D_E4M3 || (d->block_n == 128 && d->block_k == 128);
}

static int convert(struct mc_plan_of *pl, int32_t i, struct mc_err *err)
{
    const struct mc_item *it = &pl->item[i];
    int64_t n = it->disk.n, k = it->disk.k, g = it->to.group;
    const char *m = it->module;
    int rc;

    switch (it->to.fmt) {
    case MC_D_INT4:
        rc = add_part(pl, m, "weight_packed", "I32", MC_PART_Q, n, k / 8, 4, i, err);
        if (rc == 0)
            rc = add_part(pl, m, "weight_scale", "BF16", MC_PART_SCALE, n, k / g, 2, i,
                          err);
        return rc < 0 ? rc
                      : add_part(pl, m, "weight_shape", "I64", MC_PART_SHAPE, 2, 0, 8, i,
                                 err);
    case MC_D_NVFP4:
        rc = add_part(pl, m, "weight_packed", "U8", MC_PART_Q, n, k / 2, 1, i, err);
        if (rc == 0)
            rc = add_part(pl, m, "weight_scale", "F8_E4M3", MC_PART_SCALE, n, k / 16, 1,
                          i, err);
        return rc < 0 ? rc
                      : add_part(pl, m, "weight_global_scale", "F32", MC_PART_GLOBAL, 1,
                                 0, 4, i, err);
    case MC_D_E4M3:
        rc = add_part(pl, m, "weight", "F8_E4M3", MC_PART_Q, n, k, 1, i, err);
        return rc < 0
                   ? rc
                   : add_part(pl, m, pl->ct ? "weight_scale" : "weight_scale_inv", "F32",
                              MC_PART_SCALE, (n + 127) / 128, (k + 127) / 128, 4, i, err);
    default:
        return add_part(pl, m, "weight", "BF16", MC_PART_Q, n, k, 2, i, err);
    }
}

/* The parts as they are; a block scale takes the name that the result's convention has.
 */
static int copy_parts(struct mc_plan_of *pl, int32_t i, struct mc_err *err)
{
    const struct mc_item *it = &pl->item[i];
    char name[NAME_CAP];

    for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
        const char *suffix = parts[j];
        const struct mc_stored *t = part_of(pl->p->src, it->module, suffix);
        int rc;

        if (!t)
            continue;
        snprintf(name, sizeof name, "%.255s.%s", it->module, suffix);
        if (strcmp(suffix, "weight_scale_2") == 0)
            return mc_fail(
                err, MC_EUNSUP,
                "%.120s is nvfp4 as ModelOpt writes it, which "
                "can't be kept beside compressed-tensors' names: the recipe must "
                "say what it becomes",
                it->module);
        if (it->disk.fmt == MC_D_E4M3 && it->disk.block_n == 128 &&
            it->disk.block_k == 128 && t->n_dim == 2 &&
            strncmp(suffix, "weight_scale", 12) == 0)
            snprintf(name, sizeof name, "%.255s.%s", it->module,
                     pl->ct ? "weight_scale" : "weight_scale_inv");
        rc = add_copy(pl, t, name, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Rows as they are, but each in its place: what may be kept of a GGUF. */
static int copy_rows(struct mc_plan_of *pl, int32_t i, struct mc_err *err)
{
    const struct mc_disk *d = &pl->item[i].disk;
    const char *dtype = d->fmt == MC_D_F32 ? "F32" : d->fmt == MC_D_F16 ? "F16" : "BF16";

    return add_part(pl, pl->item[i].module, "weight", dtype, MC_PART_Q, d->n, d->k,
                    d->fmt == MC_D_F32 ? 4 : 2, i, err);
}

static uint64_t stored_bytes(const struct mc_ckpt *c, const char *module,
                             const struct mc_disk *d)
{
    uint64_t sum = 0;

    if (mc_ckpt_kind(c) == MC_CKPT_GGUF)
        return mc_disk_bytes(d->fmt, d->n, d->k);
    for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
        const struct mc_stored *t = part_of(c, module, parts[j]);

        sum += t ? t->bytes : 0;
    }
    return sum;
}

/* Whether a matrix is stored in a form that the result has no name for. */
static bool only_here(const struct mc_item *it)
{
    return it->other_order || it->disk.fmt >= MC_D_Q4_0;
}

/* What must be converted though the recipe would keep it. */
static int settle(struct mc_item *it, struct mc_err *err)
{
    if (same_format(&it->disk, &it->to) && !it->other_order)
        it->to.keep = true;
    if (it->to.keep && it->other_order)
        return mc_fail(err, MC_EUNSUP,
                       "%.120s is in AutoAWQ's or AutoGPTQ's order, which "
                       "can't be kept: the recipe must say what it becomes",
                       it->module);
    if (it->to.keep && only_here(it))
        it->to = (struct mc_target){.fmt = MC_D_BF16, .rule = it->to.rule};
    return 0;
}

/* The rows of a head that llama.cpp has reordered in this matrix. */
static int32_t pairs_of(const struct mc_plan_of *pl, const char *module)
{
    const char *dot = strrchr(module, '.');

    if (!is_gguf(pl) || !pl->cfg.rope_neighbours || !dot ||
        (strcmp(dot, ".q_proj") != 0 && strcmp(dot, ".k_proj") != 0))
        return 0;
    return pl->cfg.head_dim;
}

/* Adds the module as an item; the outputs come later. */
static int add_item(struct mc_plan_of *pl, const char *module, struct mc_err *err)
{
    const struct mc_press *p = pl->p;
    struct mc_item *grown = grow(pl->item, pl->n_item, &pl->cap_item, sizeof *grown), *it;
    int rc;

    if (!grown)
        return no_memory(err);
    pl->item = grown;
    it = &pl->item[pl->n_item];
    *it = (struct mc_item){.role = mc_role_of(module)};
    rc = mc_ckpt_matrix_own(p->src, module, &it->disk, NULL, err);
    if (rc < 0)
        return rc;
    it->other_order = part_of(p->src, module, "qweight") != NULL;
    it->pairs = pairs_of(pl, module);
    it->module = strdup(module);
    if (!it->module)
        return no_memory(err);
    pl->n_item++;
    it->to = mc_recipe_decide(p->recipe, module, it->disk.k);
    it->from_bytes = stored_bytes(p->src, module, &it->disk);
    rc = settle(it, err);
    if (rc < 0)
        return rc;
    it->to_bytes = it->to.keep ? it->from_bytes
                               : mc_target_bytes(&it->to, it->disk.n, it->disk.k);
    return 0;
}

/* ---- over the source --------------------------------------------------------------- */

/* The module that tensor i is a part of, if it is one of a matrix that the recipe may
 * touch. */
static bool module_of(const struct mc_ckpt *c, int32_t i, char *module)
{
    const char *name = mc_ckpt_hf_name(c, i), *dot = strrchr(name, '.');
    size_t n = dot ? (size_t)(dot - name) : 0;

    if (!dot || n >= MODULE_CAP || !is_part(dot + 1))
        return false;
    memcpy(module, name, n);
    module[n] = 0;
    return mc_role_of(module) != MC_ROLE_OTHER;
}

/* The part by which a matrix is known; NULL when the module is none. */
static const struct mc_stored *first_part(const struct mc_ckpt *c, const char *module)
{
    const struct mc_stored *t = NULL;

    for (size_t j = 0; j < FIRST_PARTS && !t; j++)
        t = part_of(c, module, parts[j]);
    return t && t->n_dim == 2 ? t : NULL;
}

/* How many matrices tensor t of a module begins: of a GGUF's stack of experts each is
 * one. */
static int32_t begins(const struct mc_ckpt *c, const char *module,
                      const struct mc_stored *t)
{
    if (mc_ckpt_kind(c) == MC_CKPT_GGUF)
        return t->n_dim == 3 ? (int32_t)t->dim[0]
               : t->n_dim == 2 || mc_role_of(module) == MC_ROLE_ROUTER ? 1 : 0;
    return first_part(c, module) == t;
}

/* "x.experts.up_proj" -> "x.experts.3.up_proj" */
static void name_expert(const char *stack, int32_t e, char *out)
{
    const char *dot = strrchr(stack, '.');

    snprintf(out, MODULE_CAP, "%.*s.%d%s", (int)(dot - stack), stack, e, dot);
}

static int find_items(struct mc_plan_of *pl, struct mc_err *err)
{
    const struct mc_ckpt *c = pl->p->src;
    char module[MODULE_CAP], expert[MODULE_CAP];
    int rc = 0;

    for (int32_t i = 0; i < mc_ckpt_n(c) && rc == 0; i++) {
        const struct mc_stored *t = mc_ckpt_at(c, i);
        int32_t n = module_of(c, i, module) ? begins(c, module, t) : 0;

        for (int32_t e = 0; e < n && rc == 0; e++) {
            if (t->n_dim == 3)
                name_expert(module, e, expert);
            rc = add_item(pl, t->n_dim == 3 ? expert : module, err);
        }
    }
    return rc;
}

static bool uses_ct(const struct mc_item *it)
{
    uint16_t fmt = it->to.keep ? it->disk.fmt : it->to.fmt;

    return fmt == MC_D_INT4 || fmt == MC_D_NVFP4 ||
           (it->to.keep && fmt == MC_D_E4M3 &&
            (it->disk.block_n != 128 || it->disk.block_k != 128));
}

static int place_item(struct mc_plan_of *pl, int32_t i, struct mc_err *err)
{
    struct mc_item *it = &pl->item[i];
    int rc;

    it->first = pl->n_out;
    rc = !it->to.keep   ? convert(pl, i, err)
         : is_gguf(pl) ? copy_rows(pl, i, err)
                        : copy_parts(pl, i, err);
    it->n_out = pl->n_out - it->first;
    return rc;
}

static int place_outputs(struct mc_plan_of *pl, struct mc_err *err)
{
    const struct mc_ckpt *c = pl->p->src;
    char module[MODULE_CAP];
    int32_t next = 0, n;
    int rc = 0;

    for (int32_t i = 0; i < mc_ckpt_n(c) && rc == 0; i++) {
        const struct mc_stored *t = mc_ckpt_at(c, i);

        n = module_of(c, i, module) ? begins(c, module, t) : 0;
        if (is_gguf(pl) && strcmp(t->name, "rope_freqs.weight") == 0)
            continue; /* config.json says it */
        if (n == 0 && (is_gguf(pl) || !module_of(c, i, module) || !first_part(c, module)))
            rc = add_copy(pl, t, mc_ckpt_hf_name(c, i), -1, err);
        while (n-- > 0 && rc == 0) /* 0: a part, which comes with its matrix's first */
            rc = place_item(pl, next++, err);
    }
    return rc;
}

/* ---- shards ------------------------------------------------------------------------ */

/* Outputs [first, ...) go to shard s; an item's are never parted. */
static void fill_shard(struct mc_plan_of *pl, struct mc_shard *s, int32_t first)
{
    uint64_t most = pl->p->shard_bytes ? pl->p->shard_bytes : SHARD_BYTES;
    int32_t i = first;

    *s = (struct mc_shard){.first = first};
    while (i < pl->n_out) {
        int32_t item = pl->out[i].item, j = i;
        uint64_t bytes = 0;

        do
            bytes += pl->out[j++].bytes;
        while (j < pl->n_out && item >= 0 && pl->out[j].item == item);
        if (i > first && s->bytes + bytes > most)
            break;
        for (; i < j; i++) {
            pl->out[i].offset = s->bytes;
            s->bytes += pl->out[i].bytes;
        }
    }
    s->n_out = i - first;
}

static int make_header(const struct mc_plan_of *pl, struct mc_shard *s,
                       struct mc_err *err)
{
    json_t *all = json_object();
    char *text;
    size_t n;

    json_object_set_new(all, "__metadata__", json_pack("{s:s}", "format", "pt"));
    for (int32_t i = s->first; i < s->first + s->n_out; i++) {
        const struct mc_out_tensor *o = &pl->out[i];
        json_t *shape = json_array();

        for (int32_t d = 0; d < o->n_dim; d++)
            json_array_append_new(shape, json_integer(o->dim[d]));
        json_object_set_new(all, o->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", o->dtype, "shape",
                                      shape, "data_offsets", (json_int_t)o->offset,
                                      (json_int_t)(o->offset + o->bytes)));
    }
    text = json_dumps(all, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(all);
    n = text ? strlen(text) : 0;
    s->n_header = (n + 7) & ~(size_t)7;
    s->header = text ? malloc(s->n_header) : NULL;
    if (s->header) {
        memset(s->header, ' ', s->n_header);
        memcpy(s->header, text, n);
    }
    free(text);
    return s->header ? 0 : no_memory(err);
}

static int cut_shards(struct mc_plan_of *pl, struct mc_err *err)
{
    int32_t cap = 0, at = 0;
    int rc = 0;

    while (at < pl->n_out) {
        struct mc_shard *grown = grow(pl->shard, pl->n_shard, &cap, sizeof *grown);

        if (!grown)
            return no_memory(err);
        pl->shard = grown;
        fill_shard(pl, &pl->shard[pl->n_shard], at);
        at += pl->shard[pl->n_shard].n_out;
        pl->bytes += pl->shard[pl->n_shard++].bytes;
    }
    for (int32_t i = 0; i < pl->n_shard && rc == 0; i++) {
        struct mc_shard *s = &pl->shard[i];

        if (pl->n_shard == 1)
            snprintf(s->file, sizeof s->file, "model.safetensors");
        else
            snprintf(s->file, sizeof s->file, "model-%05d-of-%05d.safetensors", i + 1,
                     pl->n_shard);
        rc = make_header(pl, s, err);
    }
    return rc;
}

/* ---- the border -------------------------------------------------------------------- */

int mc_layout(const struct mc_press *p, struct mc_plan_of *pl, struct mc_err *err)
{
    int rc;

    *pl = (struct mc_plan_of){.p = p};
    rc = is_gguf(pl) ? mc_from_gguf_read(p->src, &pl->cfg, err) : 0;
    if (rc == 0)
        rc = find_items(pl, err);
    for (int32_t i = 0; i < pl->n_item && rc == 0; i++)
        pl->ct |= uses_ct(&pl->item[i]);
    if (rc == 0)
        rc = place_outputs(pl, err);
    if (rc == 0)
        rc = cut_shards(pl, err);
    if (rc < 0)
        mc_layout_free(pl);
    return rc;
}

void mc_layout_free(struct mc_plan_of *pl)
{
    for (int32_t i = 0; i < pl->n_item; i++) {
        free(pl->item[i].module);
        free(pl->item[i].own);
    }
    for (int32_t i = 0; i < pl->n_out; i++)
        free(pl->out[i].name);
    for (int32_t i = 0; i < pl->n_shard; i++)
        free(pl->shard[i].header);
    free(pl->item);
    free(pl->out);
    free(pl->shard);
    *pl = (struct mc_plan_of){.p = pl->p};
}

void mc_layout_add(const struct mc_item *it, struct mc_press_report *out)
{
    char to[16];
    int i;

    mc_target_name(&it->to, to, sizeof to);
    for (i = 0; i < out->n_cls; i++)
        if (out->cls[i].role == it->role && strcmp(out->cls[i].to, to) == 0 &&
            strcmp(out->cls[i].from, mc_disk_name(it->disk.fmt)) == 0)
            break;
    if (i == MC_PRESS_CLASSES)
        return;
    if (i == out->n_cls) {
        struct mc_press_class *c = &out->cls[out->n_cls++];

        *c = (struct mc_press_class){.role = it->role};
        snprintf(c->from, sizeof c->from, "%s", mc_disk_name(it->disk.fmt));
        snprintf(c->to, sizeof c->to, "%s", to);
    }
    out->cls[i].n_matrix++;
    out->cls[i].n_weight += (int64_t)it->disk.n * it->disk.k;
    out->cls[i].from_bytes += it->from_bytes;
    out->cls[i].to_bytes += it->to_bytes;
    out->cls[i].loss.ref2 += it->loss.ref2;
    out->cls[i].loss.err2 += it->loss.err2;
    out->cls[i].loss.dot += it->loss.dot;
    out->cls[i].loss.got2 += it->loss.got2;
}

void mc_layout_report(const struct mc_plan_of *pl, struct mc_press_report *out)
{
    const struct mc_ckpt *c = pl->p->src;

    for (int32_t i = 0; i < mc_ckpt_n(c); i++)
        out->from_bytes += mc_ckpt_at(c, i)->bytes;
    out->to_bytes = pl->bytes;
    out->n_shard = pl->n_shard;
}

/* matrix.c - finds the tensors that together store one matrix, and checks that they
 * agree.
 *
 * Owns nothing: a struct mc_disk points into the maps. THREAD: any, after opening.
 *
 * Which layout a module has is decided by the tensors that exist, never by the `ignore`
 * patterns of quantization_config; but what that does declare (group sizes, block sizes,
 * symmetry) must be what the tensors say, since a wrong group size reads plausible
 * nonsense. Always true of a matrix handed out: n, k > 0; q has exactly the bytes of n
 * rows of k columns; scale and zero have one entry a row and group, or a block; each part
 * is aligned to its elements; no part of the module was left unused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/weights/auto4.h"
#include "core/weights/ckpt_int.h"
#include "core/weights/kv_b.h"

enum part {
    P_WEIGHT,
    P_PACKED,
    P_SCALE,
    P_SCALE_INV,
    P_SCALE_2,
    P_GLOBAL,
    P_SHAPE,
    P_ZERO,
    P_G_IDX,
    P_QWEIGHT,
    P_QZEROS,
    P_SCALES,
    P_AUTO_G_IDX,
    P_K_B,
    P_V_B,
    N_PART,
};

static const char *const suffix[N_PART] = {
    "weight", "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2",
    "weight_global_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "qweight",
    "qzeros", "scales", "g_idx", "k_b", "v_b",
};

struct module {
    const struct mc_ckpt *c;
    const char *name;
    const struct mc_stored *part[N_PART];
    unsigned used; /* bit i: part i is what the layout needs */
    struct mc_stored slice; /* one expert of a tensor of all */
    bool convert;  /* another order may be turned to one of ours, */
    void **own;    /* to here; NULL: only its form is asked */
};

/* quantization_config, which Kimi's files have inside text_config. May be NULL. */
static const json_t *declared(const struct mc_ckpt *c)
{
    const json_t *q = json_object_get(c->config, "quantization_config");

    return q ? q : json_object_get(json_object_get(c->config, "text_config"),
                                   "quantization_config");
}

static bool is_dtype(const struct mc_stored *t, const char *dtype)
{
    return t && strcmp(t->dtype, dtype) == 0;
}

/* Elements in all, and the shape as text for messages. */
static int64_t count(const struct mc_stored *t)
{
    int64_t n = 1;

    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->dim[i];
    return n;
}

static const char *shape_text(const struct mc_stored *t, char *out, size_t cap)
{
    size_t at = (size_t)snprintf(out, cap, "[");

    for (int32_t i = 0; i < t->n_dim && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%lld", i ? "," : "",
                               (long long)t->dim[i]);
    if (at < cap)
        snprintf(out + at, cap - at, "]");
    return out;
}

static int fail_shape(const struct module *m, enum part p, const char *want, int64_t n,
                      int64_t k, int64_t group, struct mc_err *err)
{
    char have[64];

    return mc_fail(err, MC_EFORMAT,
                   "%.110s.%s has shape %s, want %s (N %lld, K %lld, group %lld)",
                   m->name, suffix[p], shape_text(m->part[p], have, sizeof have), want,
                   (long long)n, (long long)k, (long long)group);
}

static bool shape_is(const struct mc_stored *t, int64_t rows, int64_t cols)
{
    return t->n_dim == 2 && t->dim[0] == rows && t->dim[1] == cols;
}

/* Is s one of the words in "A|B"? */
static bool one_of(const char *s, const char *words)
{
    size_t n = strlen(s);

    for (const char *w = words; w; w = strchr(w, '|')) {
        w += *w == '|';
        if (strncmp(w, s, n) == 0 && (w[n] == 0 || w[n] == '|'))
            return true;
    }
    return false;
}

/* Takes part p for the layout: it is there, of one of the dtypes ("A|B"), and aligned. */
static int use(struct module *m, enum part p, const char *dtypes, size_t align,
               struct mc_err *err)
{
    const struct mc_stored *t = m->part[p];

    if (!t)
        return mc_fail(err, MC_EFORMAT, "%.110s has no %s", m->name, suffix[p]);
    if (!one_of(t->dtype, dtypes))
        return mc_fail(err, MC_EUNSUP, "%.110s.%s has dtype %s, want %s", m->name,
                       suffix[p], t->dtype, dtypes);
    if ((uintptr_t)t->data % align != 0)
        return mc_fail(
            err, MC_EUNSUP,
            "%.110s.%s is not aligned to %zu bytes in its file: save it again with "
            "a current safetensors",
            m->name, suffix[p], align);
    m->used |= 1u << p;
    return 0;
}

static size_t width_of(const struct mc_stored *t)
{
    return is_dtype(t, "F32") ? 4 : 2;
}

static uint16_t dt_of(const struct mc_stored *t)
{
    return is_dtype(t, "F32") ? MC_F32 : is_dtype(t, "F16") ? MC_F16 : MC_BF16;
}

/* Takes a scale of one of the float types. */
static int use_scale(struct module *m, enum part p, struct mc_disk *d, struct mc_err *err)
{
    int rc = use(m, p, "F32|F16|BF16", m->part[p] ? width_of(m->part[p]) : 1, err);

    if (rc < 0)
        return rc;
    d->scale = m->part[p]->data;
    d->scale_dt = dt_of(m->part[p]);
    return 0;
}

/* The size that q's shape gives, and that it fits. */
static int set_size(const struct module *m, struct mc_disk *d, int64_t n, int64_t k,
                    struct mc_err *err)
{
    if (n <= 0 || k <= 0 || n > INT32_MAX || k > INT32_MAX)
        return mc_fail(err, MC_EFORMAT, "%.110s is a matrix of %lld x %lld", m->name,
                       (long long)n, (long long)k);
    d->n = (int32_t)n;
    d->k = (int32_t)k;
    return 0;
}

/* ---- plain and ggml ---------------------------------------------------------------- */

static int plain(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_stored *t = m->part[P_WEIGHT];
    int fmt = mc_format_of_dtype(t->dtype), rc;

    if (fmt < 0)
        return mc_fail(err, MC_EUNSUP, "%.110s.weight has dtype %s, not one for a matrix",
                       m->name, t->dtype);
    if (t->n_dim != 2)
        return fail_shape(m, P_WEIGHT, "[N,K]", 0, 0, 0, err);
    d->fmt = (uint16_t)fmt;
    d->q = t->data;
    rc = use(m, P_WEIGHT, t->dtype, fmt == MC_D_F32 ? 4 : 2, err);
    return rc < 0 ? rc : set_size(m, d, t->dim[0], t->dim[1], err);
}

/* ---- fp8 --------------------------------------------------------------------------- */

/* A declared pair of block sides, else 128 x 128. */
static void block_sides(const json_t *pair, struct mc_disk *d)
{
    json_int_t n = json_integer_value(json_array_get(pair, 0));
    json_int_t k = json_integer_value(json_array_get(pair, 1));
    bool ok = json_array_size(pair) == 2 && n > 0 && k > 0 && n <= 65536 && k <= 65536;

    d->block_n = ok ? (int32_t)n : 128;
    d->block_k = ok ? (int32_t)k : 128;
}

/* compressed-tensors says the sides in a group of config_groups. */
static const json_t *block_structure(const struct mc_ckpt *c)
{
    json_t *groups = json_object_get(declared(c), "config_groups"), *g;
    const char *key;

    json_object_foreach (groups, key, g) {
        const json_t *b = json_object_get(json_object_get(g, "weights"),
                                          "block_structure");

        if (json_is_array(b))
            return b;
    }
    return NULL;
}

static int fp8(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_stored *w = m->part[P_WEIGHT], *s;
    enum part p = m->part[P_SCALE_INV] ? P_SCALE_INV : P_SCALE;
    int64_t n, k;
    int rc;

    rc = use(m, P_WEIGHT, "F8_E4M3", 1, err);
    if (rc == 0)
        rc = use_scale(m, p, d, err);
    if (rc == 0 && w->n_dim != 2)
        rc = fail_shape(m, P_WEIGHT, "[N,K]", 0, 0, 0, err);
    if (rc == 0)
        rc = set_size(m, d, w->dim[0], w->dim[1], err);
    if (rc < 0)
        return rc;
    d->fmt = MC_D_E4M3;
    d->q = w->data;
    s = m->part[p];
    n = d->n;
    k = d->k;
    if (p == P_SCALE && count(s) == 1) { /* one for the tensor */
        d->block_n = d->n;
        d->block_k = d->k;
        return 0;
    }
    if (p == P_SCALE &&
        (shape_is(s, n, 1) || (s->n_dim == 1 && s->dim[0] == n))) { /* a row */
        d->block_n = 1;
        d->block_k = d->k;
        return 0;
    }
    block_sides(p == P_SCALE_INV ? json_object_get(declared(m->c), "weight_block_size")
                                 : block_structure(m->c), d);
    if (!shape_is(s, (n + d->block_n - 1) / d->block_n,
                  (k + d->block_k - 1) / d->block_k))
        return fail_shape(m, p, p == P_SCALE ? "[1], [N,1] or one a block"
                                             : "one a block", n, k, d->block_k, err);
    return 0;
}

/* ---- int4 -------------------------------------------------------------------------- */

/* weight_shape: two I32 or I64. */
static int read_shape(struct module *m, int64_t out[2], struct mc_err *err)
{
    const struct mc_stored *t = m->part[P_SHAPE];
    int32_t v[2];
    int rc;

    rc = use(m, P_SHAPE, "I32|I64", 1, err);
    if (rc < 0)
        return rc;
    if (t->n_dim != 1 || t->dim[0] != 2)
        return fail_shape(m, P_SHAPE, "[2]", 0, 0, 0, err);
    if (is_dtype(t, "I64")) {
        memcpy(out, t->data, 2 * sizeof *out);
    } else {
        memcpy(v, t->data, sizeof v);
        out[0] = v[0];
        out[1] = v[1];
    }
    return 0;
}

/* A group of config_groups whose weights are int4 in groups of that many columns, and
 * symmetric if there are no zero points. */
static int check_declared_int4(const struct module *m, int64_t k, int64_t group,
                               struct mc_err *err)
{
    const json_t *q = declared(m->c);
    const char *method = json_string_value(json_object_get(q, "quant_method")), *key;
    json_t *groups = json_object_get(q, "config_groups"), *g;
    bool zero = m->part[P_ZERO] != NULL;
    json_int_t said = 0;

    if (!method || strcmp(method, "compressed-tensors") != 0)
        return mc_fail(
            err, MC_EFORMAT,
            "%.110s.weight_packed, but quantization_config.quant_method is %.40s",
            m->name, method ? method : "absent");
    json_object_foreach (groups, key, g) {
        const json_t *w = json_object_get(g, "weights");
        const char *type = json_string_value(json_object_get(w, "type"));
        const char *strategy = json_string_value(json_object_get(w, "strategy"));
        json_int_t size = json_integer_value(json_object_get(w, "group_size"));
        bool symmetric = !json_is_false(json_object_get(w, "symmetric"));

        if (json_integer_value(json_object_get(w, "num_bits")) != 4 || !type ||
            strcmp(type, "int") != 0)
            continue;
        if (strategy && strcmp(strategy, "channel") == 0)
            size = k;
        if (size == group && symmetric != zero)
            return 0;
        said = size;
    }
    return mc_fail(err, MC_EFORMAT,
                   "%.110s: scales for int4 groups of %lld (K %lld, %s), but "
                   "quantization_config declares %lld", m->name, (long long)group,
                   (long long)k, zero ? "zero points" : "symmetric", (long long)said);
}

static int int4(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_stored *w = m->part[P_PACKED], *s = m->part[P_SCALE];
    int64_t shape[2] = {0, 0}, groups;
    int rc;

    rc = use(m, P_PACKED, "I32", 4, err);
    if (rc == 0)
        rc = use_scale(m, P_SCALE, d, err);
    if (rc == 0)
        rc = read_shape(m, shape, err);
    if (rc == 0)
        rc = set_size(m, d, shape[0], shape[1], err);
    if (rc < 0)
        return rc;
    if (d->k % 8 != 0 || !shape_is(w, d->n, d->k / 8))
        return fail_shape(m, P_PACKED, "[N,K/8]", d->n, d->k, 0, err);
    groups = s->n_dim == 2 ? s->dim[1] : 0;
    if (groups <= 0 || d->k % groups != 0 || s->dim[0] != d->n)
        return fail_shape(m, P_SCALE, "[N,K/group]", d->n, d->k,
                          groups > 0 ? d->k / groups : 0, err);
    d->fmt = MC_D_INT4;
    d->q = w->data;
    d->group = (int32_t)(d->k / groups);
    if (m->part[P_ZERO]) {
        rc = use(m, P_ZERO, "I32", 4, err);
        if (rc < 0)
            return rc;
        if (!shape_is(m->part[P_ZERO], (d->n + 7) / 8, groups))
            return fail_shape(m, P_ZERO, "[N/8,K/group]", d->n, d->k, d->group, err);
        d->zero = m->part[P_ZERO]->data;
    }
    return check_declared_int4(m, d->k, d->group, err);
}

/* ---- nvfp4 ------------------------------------------------------------------------- */

/* compressed-tensors divides by weight_global_scale, ModelOpt multiplies by
 * weight_scale_2. */
static int nvfp4(struct module *m, enum part codes, enum part global, struct mc_disk *d,
                 struct mc_err *err)
{
    const struct mc_stored *w = m->part[codes];
    float g = 0;
    int rc;

    rc = use(m, codes, "U8", 1, err);
    if (rc == 0)
        rc = use(m, P_SCALE, "F8_E4M3", 1, err);
    if (rc == 0)
        rc = use(m, global, "F32", 1, err);
    if (rc == 0 && w->n_dim != 2)
        rc = fail_shape(m, codes, "[N,K/2]", 0, 0, 16, err);
    if (rc == 0)
        rc = set_size(m, d, w->dim[0], w->dim[1] <= INT32_MAX ? 2 * w->dim[1] : 0, err);
    if (rc < 0)
        return rc;
    if (d->k % 16 != 0 || !shape_is(m->part[P_SCALE], d->n, d->k / 16))
        return fail_shape(m, P_SCALE, "[N,K/16]", d->n, d->k, 16, err);
    if (count(m->part[global]) != 1)
        return fail_shape(m, global, "[1]", d->n, d->k, 16, err);
    memcpy(&g, m->part[global]->data, sizeof g);
    if (!isfinite(g) || g <= 0)
        return mc_fail(err, MC_EFORMAT, "%.110s.%s is %g", m->name, suffix[global],
                       (double)g);
    d->fmt = MC_D_NVFP4;
    d->q = w->data;
    d->scale = m->part[P_SCALE]->data;
    d->scale_dt = MC_E4M3;
    d->group = 16;
    d->global = global == P_GLOBAL ? 1 / g : g;
    return 0;
}

/* ---- the border -------------------------------------------------------------------- */

static int auto4(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_auto4 a = {.module = m->name, .qweight = m->part[P_QWEIGHT],
                               .qzeros = m->part[P_QZEROS], .scales = m->part[P_SCALES],
                               .g_idx = m->part[P_AUTO_G_IDX], .config = declared(m->c)};
    int rc;

    m->used |= 1u << P_QWEIGHT | 1u << P_QZEROS | 1u << P_SCALES | 1u << P_AUTO_G_IDX;
    rc = mc_auto4_read(&a, d, m->own, err);
    if (rc == 0 && m->own)
        mc_ckpt_drop(m->c, a.qweight->data, a.qweight->bytes);
    return rc;
}

static int kv_b(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_kv_b b = {.module = m->name, .keys = m->part[P_K_B],
                              .values = m->part[P_V_B]};
    int rc = mc_kv_b_read(&b, d, m->own, err);

    m->used |= 1u << P_K_B | 1u << P_V_B;
    if (rc == 0 && m->own) {
        mc_ckpt_drop(m->c, b.keys->data, b.keys->bytes);
        mc_ckpt_drop(m->c, b.values->data, b.values->bytes);
    }
    return rc;
}

static int decide(struct module *m, struct mc_disk *d, struct mc_err *err)
{
    const struct mc_stored *w = m->part[P_WEIGHT];

    if (m->part[P_QWEIGHT] && m->convert)
        return auto4(m, d, err);
    if ((m->part[P_K_B] || m->part[P_V_B]) && m->convert)
        return kv_b(m, d, err);
    if (m->part[P_K_B] || m->part[P_V_B])
        return mc_fail(err, MC_EUNSUP, "%.110s: keys' and values' parts can't be read in "
                       "place", m->name);
    if (m->part[P_QWEIGHT])
        return mc_fail(err, MC_EUNSUP,
                       "%.110s.qweight: AutoAWQ's and AutoGPTQ's order can't "
                       "be read in place",
                       m->name);
    if (m->part[P_G_IDX])
        return mc_fail(err, MC_EUNSUP,
                       "%.110s.weight_g_idx: activation order is not supported", m->name);
    if (m->part[P_PACKED])
        return is_dtype(m->part[P_PACKED], "U8") ? nvfp4(m, P_PACKED, P_GLOBAL, d, err)
                                                 : int4(m, d, err);
    if (!w)
        return mc_fail(err, MC_ENOENT, "no tensor %.110s.weight", m->name);
    if (is_dtype(w, "U8"))
        return nvfp4(m, P_WEIGHT, P_SCALE_2, d, err);
    if (is_dtype(w, "F8_E4M3"))
        return fp8(m, d, err);
    return plain(m, d, err);
}

/* GGUF keeps a layer's experts in one tensor [E,N,K]: "x.experts.3.up_proj" is the fourth
 * part of "x.experts.up_proj". A vector that is a matrix of one row has one dimension
 * there. */
static void find_in_gguf(struct module *m)
{
    const char *mark = strstr(m->name, ".experts.");
    const struct mc_stored *all = m->part[P_WEIGHT];
    char name[320];
    int e = -1, end = 0;

    if (all && all->n_dim == 1) {
        m->slice = *all;
        m->slice.n_dim = 2;
        m->slice.dim[1] = all->dim[0];
        m->slice.dim[0] = 1;
        m->part[P_WEIGHT] = &m->slice;
    }
    if (all || !mark || sscanf(mark, ".experts.%d.%n", &e, &end) != 1 || end == 0)
        return;
    snprintf(name, sizeof name, "%.*s.experts.%s.weight", (int)(mark - m->name), m->name,
             mark + end);
    all = mc_ckpt_find(m->c, name);
    if (!all || all->n_dim != 3 || e < 0 || e >= all->dim[0])
        return;
    m->slice = *all;
    m->slice.n_dim = 2;
    m->slice.dim[0] = all->dim[1];
    m->slice.dim[1] = all->dim[2];
    m->slice.bytes = all->bytes / (uint64_t)all->dim[0];
    m->slice.data = (const uint8_t *)all->data + (uint64_t)e * m->slice.bytes;
    m->part[P_WEIGHT] = &m->slice;
}

static int find(struct module *m, struct mc_disk *out, struct mc_err *err)
{
    char name[320];
    int rc;

    memset(out, 0, sizeof *out);
    for (int i = 0; i < N_PART; i++) {
        int n = snprintf(name, sizeof name, "%s.%s", m->name, suffix[i]);

        if (n > 0 && (size_t)n < sizeof name)
            m->part[i] = mc_ckpt_find(m->c, name);
    }
    if (mc_ckpt_kind(m->c) == MC_CKPT_GGUF)
        find_in_gguf(m);
    else
        m->part[P_K_B] = m->part[P_V_B] = NULL;
    rc = decide(m, out, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < N_PART; i++)
        if (m->part[i] && !(m->used >> i & 1))
            return mc_fail(err, MC_EFORMAT,
                           "%.110s.%s has no part in a matrix stored as %s", m->name,
                           suffix[i], mc_disk_name(out->fmt));
    return 0;
}

int mc_ckpt_matrix(const struct mc_ckpt *c, const char *module, struct mc_disk *out,
                   struct mc_err *err)
{
    struct module m = {.c = c, .name = module};

    return find(&m, out, err);
}

int mc_ckpt_matrix_own(const struct mc_ckpt *c, const char *module, struct mc_disk *out,
                       void **own, struct mc_err *err)
{
    struct module m = {.c = c, .name = module, .convert = true, .own = own};

    if (own)
        *own = NULL;
    return find(&m, out, err);
}

int mc_ckpt_vector(const struct mc_ckpt *c, const char *name, int32_t n, float *out,
                   struct mc_err *err)
{
    const struct mc_stored *t = mc_ckpt_find(c, name);
    int fmt = t ? mc_format_of_dtype(t->dtype) : -1;
    struct mc_disk d = {.fmt = (uint16_t)fmt, .n = 1, .k = n};

    if (!t)
        return mc_fail(err, MC_ENOENT, "no tensor %.110s", name);
    if (fmt != MC_D_F32 && fmt != MC_D_F16 && fmt != MC_D_BF16)
        return mc_fail(err, MC_EUNSUP, "%.110s has dtype %s, want F32, F16 or BF16",
                       t->name, t->dtype);
    if (t->n_dim > 1 || count(t) != n) {
        char have[64];

        return mc_fail(err, MC_EFORMAT, "%.110s has shape %s, want [%d]", t->name,
                       shape_text(t, have, sizeof have), n);
    }
    d.q = t->data;
    mc_disk_row(&d, 0, 0, n, out);
    return 0;
}

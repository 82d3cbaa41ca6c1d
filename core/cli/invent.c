/* invent.c - a checkpoint of random weights: the shape of a model that can't be brought
 * along.
 *
 * Owns the open file for the length of the call. THREAD: any.
 * Values are normal (the sum of four uniforms) with a deviation of 1/sqrt(columns), so
 * that activations neither grow nor vanish; norms are about 1, biases small. The tensors
 * are walked twice, once for the header and once for the bytes, which follow in its
 * order. */
#include "core/cli/invent.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/form.h"
#include "core/model/tokenizer.h"
#include "core/weights/weights.h"

enum { PIECE = 128, PARTS = 3, PATH_CAP = 512 };

/* One tensor of the file. */
struct part {
    const char *suffix, *dtype;
    int64_t n, k; /* k 0: a vector */
    uint64_t bytes;
};

struct writer {
    const struct mc_invent *v;
    struct mc_ckpt *c; /* of the config alone */
    struct mc_config cfg;
    struct mc_scheme *scheme;
    json_t *header;
    FILE *f;
    uint64_t begin, at; /* where data begin; bytes of data so far */
    uint64_t rng;
    struct mc_err *err;
};

/* ---- random numbers ---------------------------------------------------------------- */

static uint64_t draw(struct writer *w) /* splitmix64 */
{
    uint64_t z = w->rng += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float normal(struct writer *w)
{
    uint64_t z = draw(w);
    float sum = (float)(z & 0xffff) + (float)(z >> 16 & 0xffff) +
                (float)(z >> 32 & 0xffff) + (float)(z >> 48);

    return (sum / 65536 - 2) * 1.7320508f; /* the variance of the sum is 1/3 */
}

/* ---- parts ------------------------------------------------------------------------- */

/* How a matrix of this form lies in the file: its parts, or 0 when it is not known here.
 */
static int parts_of(const struct mc_form *f, int64_t n, int64_t k, struct part p[PARTS])
{
    int64_t rows = (n + 127) / 128, cols = (k + 127) / 128, group = f->block_k;

    switch (f->fmt) {
    case MC_D_BF16:
        p[0] = (struct part){".weight", "BF16", n, k, (uint64_t)(n * k * 2)};
        return 1;
    case MC_D_E4M3:
        if (f->block_n != 128 || f->block_k != 128 || f->scale_bytes != 4)
            return 0;
        p[0] = (struct part){".weight", "F8_E4M3", n, k, (uint64_t)(n * k)};
        p[1] = (struct part){".weight_scale_inv", "F32", rows, cols,
                             (uint64_t)(rows * cols * 4)};
        return 2;
    case MC_D_INT4:
        p[0] = (struct part){".weight_packed", "I32", n, k / 8, (uint64_t)(n * k / 2)};
        p[1] = (struct part){".weight_scale", "BF16", n, k / group,
                             (uint64_t)(n * (k / group) * 2)};
        p[2] = (struct part){".weight_shape", "I64", 2, 0, 16};
        return 3;
    default:
        return 0;
    }
}

static void announce(struct writer *w, const char *name, const struct part *p)
{
    char full[PATH_CAP];
    json_t *shape = p->k ? json_pack("[I, I]", (json_int_t)p->n, (json_int_t)p->k)
                         : json_pack("[I]", (json_int_t)p->n);

    snprintf(full, sizeof full, "%s%s", name, p->suffix);
    json_object_set_new(w->header, full,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", p->dtype, "shape",
                                  shape, "data_offsets", (json_int_t)w->at,
                                  (json_int_t)(w->at + p->bytes)));
    w->at += p->bytes;
}

static int put(struct writer *w, uint64_t at, const void *data, size_t n)
{
    if (fseeko(w->f, (off_t)(w->begin + at), SEEK_SET) != 0 ||
        fwrite(data, 1, n, w->f) != n)
        return mc_fail(w->err, MC_EIO, "writing random weights: %s", strerror(errno));
    return 0;
}

/* ---- tensors ----------------------------------------------------------------------- */

typedef int (*tensor_fn)(struct writer *w, const struct mc_tensor_spec *t,
                         const char *name);

static int announce_tensor(struct writer *w, const struct mc_tensor_spec *t,
                           const char *name)
{
    struct part p[PARTS] = {{"", "F32", t->n, 0, (uint64_t)t->n * 4}};
    struct mc_form form = mc_scheme_of(w->scheme, t, name);
    int n = t->vector ? 1 : parts_of(&form, t->n, t->k, p);

    for (int i = 0; i < n; i++)
        announce(w, name, &p[i]);
    return n > 0 ? 0
                 : mc_fail(w->err, MC_EUNSUP, "random weights are not written as %s",
                           mc_disk_name(form.fmt));
}

static int write_vector(struct writer *w, const struct mc_tensor_spec *t)
{
    bool bias = strstr(t->name, "bias") != NULL;
    float *x = malloc((size_t)t->n * sizeof *x);
    int rc;

    if (!x)
        return mc_fail(w->err, MC_ENOMEM, "no memory for %s", t->name);
    for (int32_t i = 0; i < t->n; i++)
        x[i] = (bias ? 0.02f : 0.1f) * normal(w) + !bias;
    rc = put(w, w->at, x, (size_t)t->n * sizeof *x);
    w->at += (uint64_t)t->n * sizeof *x;
    free(x);
    return rc;
}

/* Rows [r, r+n), encoded: q and scale are as large as a piece needs. */
static int write_rows(struct writer *w, const struct mc_tensor_spec *t,
                      const struct part p[PARTS], struct mc_encode *e, float *x,
                      int32_t r)
{
    int32_t n = t->n - r < PIECE ? t->n - r : PIECE;
    int64_t s_row = e->fmt == MC_D_E4M3 ? r / 128 : r, s_n = e->fmt == MC_D_E4M3 ? 1 : n;
    uint64_t q_pitch = p[0].bytes / (uint64_t)p[0].n, s_pitch = 0;
    float scale = 1 / sqrtf((float)t->k);
    struct mc_loss loss = {0};
    int rc;

    if (t->at == MC_M_EMBED)
        scale = 1;
    for (int64_t i = 0; i < (int64_t)n * t->k; i++)
        x[i] = scale * normal(w);
    rc = mc_encode_rows(e, n, x, &loss);
    if (rc < 0)
        return mc_fail(w->err, rc, "%s [%d, %d] can't be written so", t->name, t->n,
                       t->k);
    rc = put(w, w->at + (uint64_t)r * q_pitch, e->q, (size_t)((uint64_t)n * q_pitch));
    if (rc == 0 && e->fmt != MC_D_BF16) {
        s_pitch = p[1].bytes / (uint64_t)p[1].n;
        rc = put(w, w->at + p[0].bytes + (uint64_t)s_row * s_pitch, e->scale,
                 (size_t)((uint64_t)s_n * s_pitch));
    }
    return rc;
}

static int write_matrix(struct writer *w, const struct mc_tensor_spec *t,
                        const char *name)
{
    struct part p[PARTS] = {0};
    struct mc_form form = mc_scheme_of(w->scheme, t, name);
    int n = parts_of(&form, t->n, t->k, p), rc = 0;
    size_t piece = (size_t)PIECE * (size_t)t->k;
    float *x = malloc(piece * sizeof *x);
    struct mc_encode e = {.fmt = form.fmt, .k = t->k, .group = form.block_k,
                          .q = malloc(piece * 2), .scale = malloc(piece * 2 + 4)};

    if (!x || !e.q || !e.scale)
        rc = mc_fail(w->err, MC_ENOMEM, "no memory for rows of %s", name);
    for (int32_t r = 0; r < t->n && rc == 0; r += PIECE)
        rc = write_rows(w, t, p, &e, x, r);
    if (rc == 0 && form.fmt == MC_D_INT4)
        rc = put(w, w->at + p[0].bytes + p[1].bytes, (int64_t[2]){t->n, t->k}, 16);
    for (int i = 0; i < n; i++)
        w->at += p[i].bytes;
    free(x), free(e.q), free(e.scale);
    return rc;
}

static int write_tensor(struct writer *w, const struct mc_tensor_spec *t,
                        const char *name)
{
    return t->vector ? write_vector(w, t) : write_matrix(w, t, name);
}

static int each_tensor(struct writer *w, tensor_fn fn)
{
    struct mc_tensor_spec spec[MC_MAX_SPECS];
    char name[MC_TENSOR_NAME + 32];
    int rc = 0;

    w->at = 0;
    for (int32_t layer = -1; layer < w->cfg.n_layer + w->cfg.n_mtp; layer++)
        for (int i = 0, n = mc_tensors_of(&w->cfg, layer, spec); i < n; i++)
            for (int32_t e = 0; e < spec[i].count && rc == 0; e++) {
                mc_tensor_name(&spec[i], w->cfg.prefix, e, name);
                rc = fn(w, &spec[i], name);
            }
    return rc;
}

static int write_weights(struct writer *w, const char *path)
{
    char *text = NULL;
    uint64_t n;
    int rc = each_tensor(w, announce_tensor);

    if (rc == 0)
        text = json_dumps(w->header, JSON_COMPACT);
    if (rc == 0 && text)
        w->f = fopen(path, "wb");
    if (rc == 0 && (!text || !w->f))
        rc = mc_fail(w->err, MC_EIO, "%s: %s", path, strerror(errno));
    n = text ? strlen(text) : 0;
    w->begin = 8 + (n + 7) / 8 * 8;
    if (rc == 0 && (fwrite(&(uint64_t){w->begin - 8}, 8, 1, w->f) != 1 ||
                    fprintf(w->f, "%-*s", (int)(w->begin - 8), text) < 0))
        rc = mc_fail(w->err, MC_EIO, "%s: %s", path, strerror(errno));
    if (rc == 0)
        rc = each_tensor(w, write_tensor);
    if (w->f && fclose(w->f) != 0 && rc == 0)
        rc = mc_fail(w->err, MC_EIO, "%s: %s", path, strerror(errno));
    free(text);
    return rc;
}

/* ---- the tokenizer ----------------------------------------------------------------- */

static int make_tokenizer(const struct writer *w, const char *path)
{
    json_t *vocab = json_object(), *all;
    char text[24];
    int rc;

    for (int32_t i = 0; i < w->cfg.vocab; i++) {
        if (i < 256)
            text[mc_bpe_spell(&(char){(char)i}, 1, text)] = 0;
        else
            snprintf(text, sizeof text, "<%d>", i);
        json_object_set_new(vocab, text, json_integer(i));
    }
    all = json_pack("{s:[], s:n, s:{s:s, s:b, s:b}, s:{s:s}, s:{s:s, s:o, s:[]}}",
                    "added_tokens", "normalizer", "pre_tokenizer", "type", "ByteLevel",
                    "add_prefix_space", 0, "use_regex", 1, "decoder", "type", "ByteLevel",
                    "model", "type", "BPE", "vocab", vocab, "merges");
    rc = json_dump_file(all, path, JSON_COMPACT);
    json_decref(all);
    return rc == 0 ? 0 : mc_fail(w->err, MC_EIO, "%s can't be written", path);
}

static int copy_file(const char *from, const char *to, struct mc_err *err)
{
    FILE *in = fopen(from, "rb"), *out;
    char buf[1 << 16];
    size_t n = 1;
    int bad;

    if (!in)
        return 0; /* a tokenizer has not every file */
    out = fopen(to, "wb");
    while (out && n > 0) {
        n = fread(buf, 1, sizeof buf, in);
        fwrite(buf, 1, n, out);
    }
    bad = !out || ferror(in) || ferror(out);
    fclose(in);
    if (out && fclose(out) != 0)
        bad = 1;
    return bad ? mc_fail(err, MC_EIO, "%s can't be copied to %s", from, to) : 0;
}

static int copy_tokenizer(const char *from, const char *dir, struct mc_err *err)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "tiktoken.model", "chat_template.jinja",
                                        "generation_config.json"};
    char a[PATH_CAP], b[PATH_CAP];
    int rc = 0;

    for (size_t i = 0; i < sizeof files / sizeof *files && rc == 0; i++) {
        snprintf(a, sizeof a, "%s/%s", from, files[i]);
        snprintf(b, sizeof b, "%s/%s", dir, files[i]);
        rc = copy_file(a, b, err);
    }
    return rc;
}

/* ---- all of it --------------------------------------------------------------------- */

static int write_all(struct writer *w, const char *dir)
{
    char path[PATH_CAP];
    int rc;

    snprintf(path, sizeof path, "%s/config.json", dir);
    if (json_dump_file(w->v->config, path, JSON_INDENT(1)) != 0)
        return mc_fail(w->err, MC_EIO, "%s can't be written", path);
    rc = mc_ckpt_open_config(path, &w->c, w->err);
    if (rc == 0)
        rc = mc_config_load(w->c, &w->cfg, w->err);
    if (rc == 0)
        rc = mc_scheme_open(mc_ckpt_config(w->c), &w->scheme, w->err);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (rc == 0)
        rc = w->v->tokenizer ? copy_tokenizer(w->v->tokenizer, dir, w->err)
                             : make_tokenizer(w, path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return rc < 0 ? rc : write_weights(w, path);
}

int mc_invent(const struct mc_invent *v, const char *dir, struct mc_err *err)
{
    struct writer *w = calloc(1, sizeof *w);
    int rc;

    if (!w)
        return mc_fail(err, MC_ENOMEM, "no memory for random weights");
    w->v = v;
    w->rng = v->seed;
    w->err = err;
    w->header = json_object();
    rc = write_all(w, dir);
    mc_scheme_close(w->scheme);
    mc_ckpt_close(w->c);
    json_decref(w->header);
    free(w);
    return rc;
}

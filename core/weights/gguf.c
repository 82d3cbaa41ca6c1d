/* gguf.c - checks a mapped GGUF file (versions 2 and 3) and lists its tensors.
 *
 * Owns nothing: the index of metadata and the tensors go to the checkpoint. THREAD: opening.
 *
 * A file is: magic, version, counts, metadata, tensor infos (name, dims, type, offset),
 * padding, data. Nothing in it is believed: counts are bounded by the bytes that are left,
 * and tensors lie one after the other at the alignment, as llama.cpp demands too, so that
 * each is inside the file and no two overlap. Their types are ones that we can decode. */
#include "core/weights/gguf_int.h"

enum {
    DIMS_MAX = 4,
    INFO_MIN = 8 + 1 + 4 + 4 + 8, /* a tensor info: length, name, n_dims, type, offset */
    ALIGN_DEFAULT = 32,
    ALIGN_MIN = 8,
    ALIGN_MAX = 1 << 16,
};

static int read_dims(struct mc_cursor *c, struct mc_stored *s, struct mc_err *err)
{
    uint64_t dim[DIMS_MAX], all = 1;
    uint32_t n;

    if (!mc_take(c, &n, 4))
        return mc_fail(err, MC_EFORMAT, "the file ends in a tensor's dimensions");
    if (n > DIMS_MAX)
        return mc_fail(err, MC_EFORMAT, "%u dimensions, at most %d", n, DIMS_MAX);
    if (!mc_take(c, dim, n * sizeof *dim))
        return mc_fail(err, MC_EFORMAT, "the file ends in a tensor's dimensions");
    s->n_dim = (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        if (dim[i] == 0 || __builtin_mul_overflow(all, dim[i], &all) || all > INT64_MAX)
            return mc_fail(err, MC_EFORMAT, "dimension %u is %llu", i,
                           (unsigned long long)dim[i]);
        s->dim[n - 1 - i] = (int64_t)dim[i];
    }
    return 0;
}

/* Dims, type and offset of a tensor whose data must begin at `next`. */
static int read_info(struct mc_cursor *c, uint64_t next, struct mc_stored *s,
                     struct mc_err *err)
{
    int64_t rows = 1, cols;
    uint64_t offset;
    uint32_t type;
    int rc, fmt;

    rc = read_dims(c, s, err);
    if (rc < 0)
        return rc;
    if (!mc_take(c, &type, 4) || !mc_take(c, &offset, 8))
        return mc_fail(err, MC_EFORMAT, "the file ends in its type or offset");
    fmt = mc_format_of_gguf(type);
    if (fmt < 0)
        return mc_fail(err, MC_EUNSUP,
                       "ggml type %u is not one of F32 F16 BF16 Q4_0 Q4_1 Q5_0 "
                       "Q5_1 Q8_0 Q4_K Q5_K Q6_K",
                       type);
    s->dtype = mc_format_dtype(fmt);
    cols = s->n_dim ? s->dim[s->n_dim - 1] : 1;
    for (int32_t i = 0; i < s->n_dim - 1; i++)
        rows *= s->dim[i];
    s->bytes = mc_disk_bytes((uint16_t)fmt, rows, cols);
    if (s->bytes == 0)
        return mc_fail(err, MC_EFORMAT,
                       "%lld rows of %lld columns are no whole blocks of %s, or "
                       "too many",
                       (long long)rows, (long long)cols, s->dtype);
    if (offset != next)
        return mc_fail(err, MC_EFORMAT,
                       "its data is at %llu, but the one before ends at %llu",
                       (unsigned long long)offset, (unsigned long long)next);
    return 0;
}

/* Whether the architecture's files go by DeepSeek's names. */
static bool is_deepseek(const struct mc_gguf *g)
{
    const char *s;
    size_t n;

    return mc_gguf_str(g, "general.architecture", &s, &n) &&
           ((n == 9 && memcmp(s, "deepseek2", n) == 0) ||
            (n == 7 && memcmp(s, "glm-dsa", n) == 0));
}

/* Leaves an offset into the data in s.data's place; place() makes it an address. */
static int read_infos(struct mc_ckpt *c, int32_t map, struct mc_cursor *cur, uint64_t n,
                      uint64_t align, struct mc_err *err)
{
    bool deepseek = is_deepseek(c->gguf);
    uint64_t next = 0;

    if (n > (cur->n - cur->at) / INFO_MIN)
        return mc_fail(err, MC_EFORMAT, "%llu tensors in %zu bytes that are left",
                       (unsigned long long)n, cur->n - cur->at);
    for (uint64_t i = 0; i < n; i++) {
        struct mc_stored s = {0};
        char own[256], hf[320];
        const char *name;
        uint64_t n_name;
        int rc;

        if (!mc_take_string(cur, &name, &n_name) ||
            !mc_ckpt_name_ok(name, (size_t)n_name))
            return mc_fail(err, MC_EFORMAT,
                           "the name of tensor %llu is not 1 to 255 printable "
                           "bytes",
                           (unsigned long long)i);
        memcpy(own, name, (size_t)n_name);
        own[n_name] = 0;
        rc = read_info(cur, next, &s, err);
        if (rc < 0) {
            mc_err_while(err, "reading tensor '%.100s'", own);
            return rc;
        }
        s.data = (const void *)(uintptr_t)next;
        if (__builtin_add_overflow(next, s.bytes, &next) || next > cur->n)
            return mc_fail(err, MC_EFORMAT, "tensor '%.100s' passes the end of the file",
                           own);
        next = (next + align - 1) / align * align;
        rc = mc_ckpt_add(c, &s, own, (size_t)n_name,
                         mc_gguf_hf_name(own, deepseek, hf, sizeof hf) ? hf : NULL, map,
                         err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Now that the infos are read, where the data begins is known. */
static int place(struct mc_ckpt *c, const struct mc_cursor *cur, uint64_t align,
                 struct mc_err *err)
{
    uint64_t start = ((uint64_t)cur->at + align - 1) / align * align;

    for (int32_t i = 0; i < c->n; i++) {
        struct mc_stored *s = &c->tensor[i].s;
        uint64_t at = (uintptr_t)s->data;

        if (start > cur->n || at > cur->n - start || s->bytes > cur->n - start - at)
            return mc_fail(err, MC_EFORMAT, "tensor '%.100s' passes the end of the file",
                           s->name);
        s->data = cur->p + start + at;
    }
    return 0;
}

static int read_head(struct mc_cursor *c, uint64_t *n_tensor, uint64_t *n_key,
                     struct mc_err *err)
{
    uint32_t version;
    char magic[4];

    if (!mc_take(c, magic, 4) || memcmp(magic, "GGUF", 4) != 0)
        return mc_fail(err, MC_EFORMAT,
                       "not a GGUF (no magic); of safetensors give the directory");
    if (!mc_take(c, &version, 4) || !mc_take(c, n_tensor, 8) || !mc_take(c, n_key, 8))
        return mc_fail(err, MC_EFORMAT, "the file ends in its header");
    if (version != 2 && version != 3)
        return mc_fail(err, MC_EUNSUP, "GGUF version %u%s, not 2 or 3",
                       version & 0xFFFF ? version : version >> 24,
                       version & 0xFFFF ? "" : " (big-endian)");
    return 0;
}

static int read_alignment(const struct mc_gguf *g, uint64_t *align, struct mc_err *err)
{
    *align = ALIGN_DEFAULT;
    if (mc_gguf_has(g, "general.alignment") &&
        !mc_gguf_u64(g, "general.alignment", align))
        return mc_fail(err, MC_EFORMAT, "general.alignment is not a number");
    if (*align < ALIGN_MIN || *align > ALIGN_MAX || (*align & (*align - 1)) != 0)
        return mc_fail(err, MC_EFORMAT,
                       "general.alignment %llu is no power of two in %d..%d",
                       (unsigned long long)*align, ALIGN_MIN, ALIGN_MAX);
    return 0;
}

int mc_gguf_read(struct mc_ckpt *c, int32_t map, struct mc_err *err)
{
    struct mc_cursor cur = {c->map[map].p, c->map[map].n, 0};
    uint64_t n_tensor = 0, n_key = 0, align, parts;
    int rc;

    rc = read_head(&cur, &n_tensor, &n_key, err);
    if (rc == 0)
        rc = mc_gguf_read_meta(&cur, n_key, &c->gguf, err);
    if (rc == 0)
        rc = read_alignment(c->gguf, &align, err);
    if (rc < 0)
        return rc;
    if (mc_gguf_u64(c->gguf, "split.count", &parts) && parts > 1)
        return mc_fail(err, MC_EUNSUP,
                       "one of %llu parts (split.count): merge them first",
                       (unsigned long long)parts);
    rc = read_infos(c, map, &cur, n_tensor, align, err);
    return rc < 0 ? rc : place(c, &cur, align, err);
}

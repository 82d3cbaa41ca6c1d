/* safetensors.c - checks the header of a mapped safetensors file and lists its tensors.
 *
 * Owns nothing: names go to the checkpoint, data stays in the map. THREAD: opening.
 *
 * A file is: header length n (u64), n bytes of JSON, data. Nothing in it is believed:
 *  1. 2 <= n <= min(HEADER_MAX, file size - 8), before anything is allocated.
 *  2. The header begins with '{' (so says the format), may end in spaces, has no key twice.
 *  3. A name is printable ASCII. A dtype is a known one, also of a tensor nobody asks for.
 *  4. data_offsets are two integers, and end - begin is what dtype and shape take.
 *  5. In the order of their offsets the tensors tile the data: no overlap, no gap, no rest.
 * So every mc_stored lies inside its file and no two share a byte. */
#include <stdlib.h>
#include <string.h>

#include "core/weights/ckpt_int.h"

/* The reference implementation's cap; the longest header seen in practice is 0.5 MB. */
#define HEADER_MAX 100000000u

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {
    {"BOOL", 8},    {"F4", 4},       {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},      {"F8_E5M2", 8},  {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},     {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32},    {"C64", 64},     {"F64", 64},    {"I64", 64},    {"U64", 64},
};

struct span {
    uint64_t begin, end;
    int32_t i; /* of c->tensor */
};

static int fail_entry(struct mc_err *err, const char *name, const char *what)
{
    return mc_fail(err, MC_EFORMAT, "tensor '%.120s': %s", name, what);
}

/* Static name and width of a dtype; 0 when it is none that we know. */
static unsigned dtype_bits(const char *name, const char **out)
{
    for (size_t i = 0; name && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i].name;
            return dtypes[i].bits;
        }
    }
    return 0;
}

/* Fills n_dim, dim and bytes. */
static int read_shape(const char *name, const json_t *shape, unsigned bits,
                      struct mc_stored *s, struct mc_err *err)
{
    uint64_t all = bits;

    if (!json_is_array(shape))
        return fail_entry(err, name, "shape is not an array");
    if (json_array_size(shape) > MC_CKPT_DIMS)
        return mc_fail(err, MC_EFORMAT, "tensor '%.120s': %zu dimensions, at most %d",
                       name, json_array_size(shape), MC_CKPT_DIMS);
    s->n_dim = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < s->n_dim; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);

        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return fail_entry(err, name, "a dimension is not a natural number");
        s->dim[i] = json_integer_value(d);
        if (__builtin_mul_overflow(all, (uint64_t)s->dim[i], &all))
            return fail_entry(err, name, "shape is larger than any memory");
    }
    if (all % 8 != 0)
        return fail_entry(err, name, "shape does not fill whole bytes");
    s->bytes = all / 8;
    return 0;
}

static int read_offsets(const char *name, const json_t *offsets,
                        const struct mc_stored *s, uint64_t n_data, struct span *out,
                        struct mc_err *err)
{
    const json_t *b = json_array_get(offsets, 0), *e = json_array_get(offsets, 1);
    json_int_t begin, end;

    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return fail_entry(err, name, "data_offsets is not two integers");
    begin = json_integer_value(b);
    end = json_integer_value(e);
    if (begin < 0 || end < begin || (uint64_t)end > n_data)
        return mc_fail(err, MC_EFORMAT,
                       "tensor '%.120s': data_offsets [%lld, %lld] outside 0..%llu", name,
                       (long long)begin, (long long)end, (unsigned long long)n_data);
    if ((uint64_t)(end - begin) != s->bytes)
        return mc_fail(err, MC_EFORMAT,
                       "tensor '%.120s': %lld bytes at data_offsets, but shape and dtype %s "
                       "take %llu", name, (long long)(end - begin), s->dtype,
                       (unsigned long long)s->bytes);
    out->begin = (uint64_t)begin;
    out->end = (uint64_t)end;
    return 0;
}

static int read_tensor(struct mc_ckpt *c, int32_t map, const char *name,
                       const json_t *entry, const uint8_t *data, uint64_t n_data,
                       struct span *span, struct mc_err *err)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    struct mc_stored s = {0};
    unsigned bits;
    int rc;

    if (!mc_ckpt_name_ok(name, strlen(name)))
        return mc_fail(err, MC_EFORMAT,
                       "a tensor's name is not 1 to 255 printable bytes");
    if (!json_is_object(entry))
        return fail_entry(err, name, "its entry is not an object");
    bits = dtype_bits(dtype, &s.dtype);
    if (bits == 0)
        return mc_fail(err, MC_EUNSUP, "tensor '%.120s': unknown dtype %s", name,
                       dtype ? dtype : "(not a string)");
    rc = read_shape(name, json_object_get(entry, "shape"), bits, &s, err);
    if (rc == 0)
        rc = read_offsets(name, json_object_get(entry, "data_offsets"), &s, n_data, span,
                          err);
    if (rc < 0)
        return rc;
    s.data = data + span->begin;
    span->i = c->n;
    return mc_ckpt_add(c, &s, name, strlen(name), NULL, map, err);
}

static int by_offset(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Rule 5. */
static int check_tiling(const struct mc_ckpt *c, struct span *span, size_t n,
                        uint64_t n_data, struct mc_err *err)
{
    uint64_t at = 0;

    qsort(span, n, sizeof *span, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (span[i].begin != at)
            return mc_fail(err, MC_EFORMAT,
                           "tensor '%.120s' begins at %llu, but the one before ends at %llu "
                           "(%s)", c->tensor[span[i].i].s.name,
                           (unsigned long long)span[i].begin, (unsigned long long)at,
                           span[i].begin < at ? "overlap" : "gap");
        at = span[i].end;
    }
    if (at != n_data)
        return mc_fail(err, MC_EFORMAT,
                       "the tensors end at %llu, but the data at %llu%s%.100s",
                       (unsigned long long)at, (unsigned long long)n_data,
                       n > 0 ? "; the last is " : "",
                       n > 0 ? c->tensor[span[n - 1].i].s.name : "");
    return 0;
}

/* __metadata__ may be absent or empty; it maps strings to strings and is not used. */
static int check_metadata(const json_t *header, struct mc_err *err)
{
    json_t *meta = json_object_get(header, "__metadata__"), *value;
    const char *key;

    if (meta && !json_is_object(meta))
        return mc_fail(err, MC_EFORMAT, "__metadata__ is not an object");
    json_object_foreach(meta, key, value) if (!json_is_string(value)) return mc_fail(
        err, MC_EFORMAT, "__metadata__ has a value that is no string: %s", key);
    return 0;
}

static int read_header(const struct mc_map *m, uint64_t *n_header, json_t **out,
                       struct mc_err *err)
{
    const char *text = (const char *)m->p + 8;
    uint64_t n = 0;

    if (m->n >= 8)
        memcpy(&n, m->p, 8);
    if (m->n < 8 || n < 2 || n > m->n - 8 || n > HEADER_MAX)
        return mc_fail(err, MC_EFORMAT,
                       "header length %llu is not within 2..%u in a file of %zu bytes",
                       (unsigned long long)n, HEADER_MAX, m->n);
    if (text[0] != '{')
        return mc_fail(err, MC_EFORMAT, "the header does not begin with '{'");
    *n_header = n;
    return mc_json_parse(text, (size_t)n, 0, 1, out, err);
}

int mc_safetensors_read(struct mc_ckpt *c, int32_t map, struct mc_err *err)
{
    const struct mc_map *m = &c->map[map];
    json_t *header = NULL, *entry;
    struct span *span = NULL;
    uint64_t n_header = 0, n_data;
    const char *name;
    size_t n = 0;
    int rc;

    rc = read_header(m, &n_header, &header, err);
    if (rc == 0)
        rc = check_metadata(header, err);
    if (rc < 0)
        goto fail;
    n_data = m->n - 8 - n_header;
    span = calloc(json_object_size(header) + 1, sizeof *span);
    if (!span) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for %zu tensors",
                     json_object_size(header));
        goto fail;
    }
    json_object_foreach (header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        rc = read_tensor(c, map, name, entry, m->p + 8 + n_header, n_data, &span[n++],
                         err);
        if (rc < 0)
            goto fail;
    }
    rc = check_tiling(c, span, n, n_data, err);
fail:
    free(span);
    json_decref(header);
    return rc;
}

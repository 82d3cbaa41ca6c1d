/* gguf_meta.c - the metadata of a GGUF file: checked, indexed, looked up by key.
 *
 * Owns the index (struct mc_gguf); names and values stay in the map. THREAD: read by any
 * after opening.
 * Always true: every value lies inside the file; keys are unique printable ASCII; arrays
 * hold no arrays. A count is compared with what the bytes left can hold before it is used
 * to allocate or to loop, so the memory taken is of the order of the file's size. The
 * offsets of an array's strings are kept: the i-th costs no scan. */
#include <stdlib.h>

#include "core/weights/gguf_int.h"

enum type {
    T_U8,
    T_I8,
    T_U16,
    T_I16,
    T_U32,
    T_I32,
    T_F32,
    T_BOOL,
    T_STR,
    T_ARR,
    T_U64,
    T_I64,
    T_F64,
    N_TYPE,
};

/* Bytes of a value; of a string or an array at least that (its counts). */
static const uint8_t width[N_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

enum {
    KEY_MIN = 8 + 1 + 4 + 1, /* an entry takes at least: length, name, type, value */
    KEYS_MAX = 1 << 16,
};

struct key {
    const char *name; /* n_name bytes in the map */
    size_t n_name;
    uint32_t type, elem; /* elem: of an array */
    uint64_t n;          /* elements of an array, bytes of a string */
    const uint8_t *value;
    uint64_t *at; /* array of strings: where each one's length is, from value */
};

struct mc_gguf {
    struct key *key; /* [n], sorted by name */
    size_t n;
};

/* ---- metadata ---------------------------------------------------------------------- */

static int fail_key(struct mc_err *err, const struct key *k, const char *what)
{
    return mc_fail(err, MC_EFORMAT, "metadata '%.*s': %s", (int)k->n_name, k->name, what);
}

static int read_strings(struct mc_cursor *c, struct key *k, struct mc_err *err)
{
    const char *s;
    uint64_t n;

    k->at = malloc((size_t)(k->n + 1) * sizeof *k->at);
    if (!k->at)
        return fail_key(err, k, "no memory for an array of strings");
    for (uint64_t i = 0; i < k->n; i++) {
        k->at[i] = (uint64_t)(c->p + c->at - k->value);
        if (!mc_take_string(c, &s, &n))
            return fail_key(err, k, "a string passes the end of the file");
    }
    return 0;
}

static int read_array(struct mc_cursor *c, struct key *k, struct mc_err *err)
{
    if (!mc_take(c, &k->elem, 4) || !mc_take(c, &k->n, 8))
        return fail_key(err, k, "the file ends in it");
    if (k->elem >= N_TYPE || k->elem == T_ARR)
        return mc_fail(err, MC_EUNSUP, "metadata '%.*s': an array of type %u",
                       (int)k->n_name, k->name, k->elem);
    if (k->n > (c->n - c->at) / width[k->elem])
        return mc_fail(err, MC_EFORMAT,
                       "metadata '%.*s': %llu elements in %zu bytes that are left",
                       (int)k->n_name, k->name, (unsigned long long)k->n, c->n - c->at);
    k->value = c->p + c->at;
    if (k->elem == T_STR)
        return read_strings(c, k, err);
    mc_skip(c, k->n * width[k->elem]);
    return 0;
}

static int read_key(struct mc_cursor *c, struct key *k, struct mc_err *err)
{
    uint64_t n;

    if (!mc_take_string(c, &k->name, &n) || !mc_ckpt_name_ok(k->name, (size_t)n))
        return mc_fail(err, MC_EFORMAT,
                       "a metadata key at byte %zu is not 1 to 255 printable "
                       "bytes",
                       c->at);
    k->n_name = (size_t)n;
    if (!mc_take(c, &k->type, 4))
        return fail_key(err, k, "the file ends in it");
    if (k->type >= N_TYPE)
        return mc_fail(err, MC_EUNSUP, "metadata '%.*s': unknown type %u", (int)k->n_name,
                       k->name, k->type);
    if (k->type == T_ARR)
        return read_array(c, k, err);
    k->value = c->p + c->at;
    if (k->type == T_STR ? !mc_take_string(c, (const char **)&k->value, &k->n)
                         : !mc_skip(c, width[k->type]))
        return fail_key(err, k, "its value passes the end of the file");
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    int d = memcmp(x->name, y->name, x->n_name < y->n_name ? x->n_name : y->n_name);

    return d ? d : x->n_name < y->n_name ? -1 : x->n_name > y->n_name;
}

int mc_gguf_read_meta(struct mc_cursor *c, uint64_t n, struct mc_gguf **out,
                      struct mc_err *err)
{
    struct mc_gguf *g;
    int rc;

    if (n > (c->n - c->at) / KEY_MIN || n > KEYS_MAX)
        return mc_fail(err, MC_EFORMAT,
                       "%llu metadata entries in %zu bytes that are left (at most %d)",
                       (unsigned long long)n, c->n - c->at, KEYS_MAX);
    g = *out = calloc(1, sizeof *g);
    if (g)
        g->key = calloc((size_t)n + 1, sizeof *g->key);
    if (!g || !g->key)
        return mc_fail(err, MC_ENOMEM, "no memory for %llu keys", (unsigned long long)n);
    while (g->n < n) {
        rc = read_key(c, &g->key[g->n++], err);
        if (rc < 0)
            return rc;
    }
    qsort(g->key, g->n, sizeof *g->key, by_key);
    for (size_t i = 1; i < g->n; i++)
        if (by_key(&g->key[i - 1], &g->key[i]) == 0)
            return fail_key(err, &g->key[i], "duplicate key");
    return 0;
}

void mc_gguf_free(struct mc_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++)
        free(g->key[i].at);
    free(g->key);
    free(g);
}

/* ---- lookup ------------------------------------------------------------------------ */

static const struct key *find(const struct mc_gguf *g, const char *name)
{
    struct key k = {.name = name, .n_name = strlen(name)};

    return bsearch(&k, g->key, g->n, sizeof k, by_key);
}

/* An integer of any width: its value as sign and magnitude does not fit one type, so a
 * negative one is in *i, others in *u. */
static bool integer(uint32_t type, const uint8_t *p, bool *negative, uint64_t *u)
{
    int64_t i = 0;

    *u = 0;
    switch (type) {
    case T_U8: case T_U16: case T_U32: case T_U64:
        memcpy(u, p, width[type]);
        *negative = false;
        return true;
    case T_I8: case T_I16: case T_I32: case T_I64:
        memcpy(&i, p, width[type]);
        /* Sign-extends: the value's top bit to the top, and back. */
        i = (int64_t)((uint64_t)i << (64 - 8 * width[type])) >> (64 - 8 * width[type]);
        *negative = i < 0;
        *u = (uint64_t)i;
        return true;
    }
    return false;
}

bool mc_gguf_has(const struct mc_gguf *g, const char *key)
{
    return find(g, key) != NULL;
}

bool mc_gguf_u64(const struct mc_gguf *g, const char *key, uint64_t *out)
{
    const struct key *k = find(g, key);
    bool negative;
    uint64_t u;

    if (!k || !integer(k->type, k->value, &negative, &u) || negative)
        return false;
    *out = u;
    return true;
}

bool mc_gguf_f64(const struct mc_gguf *g, const char *key, double *out)
{
    const struct key *k = find(g, key);
    bool negative;
    uint64_t u;
    float f;

    if (!k)
        return false;
    if (k->type == T_F32) {
        memcpy(&f, k->value, sizeof f);
        *out = (double)f;
        return true;
    }
    if (k->type == T_F64) {
        memcpy(out, k->value, sizeof *out);
        return true;
    }
    if (!integer(k->type, k->value, &negative, &u))
        return false;
    *out = negative ? (double)(int64_t)u : (double)u;
    return true;
}

bool mc_gguf_bool(const struct mc_gguf *g, const char *key, bool *out)
{
    const struct key *k = find(g, key);

    if (!k || k->type != T_BOOL)
        return false;
    *out = *k->value != 0;
    return true;
}

bool mc_gguf_str(const struct mc_gguf *g, const char *key, const char **s, size_t *n)
{
    const struct key *k = find(g, key);

    if (!k || k->type != T_STR)
        return false;
    *s = (const char *)k->value;
    *n = (size_t)k->n;
    return true;
}

bool mc_gguf_arr_n(const struct mc_gguf *g, const char *key, uint64_t *n)
{
    const struct key *k = find(g, key);

    if (!k || k->type != T_ARR)
        return false;
    *n = k->n;
    return true;
}

/* Element i of an array, NULL when there is none. */
static const uint8_t *element(const struct key *k, uint64_t i)
{
    if (!k || k->type != T_ARR || i >= k->n)
        return NULL;
    return k->elem == T_STR ? k->value + k->at[i] : k->value + i * width[k->elem];
}

bool mc_gguf_arr_str(const struct mc_gguf *g, const char *key, uint64_t i, const char **s,
                     size_t *n)
{
    const struct key *k = find(g, key);
    const uint8_t *p = element(k, i);
    uint64_t bytes;

    if (!p || k->elem != T_STR)
        return false;
    memcpy(&bytes, p, 8);
    *s = (const char *)p + 8;
    *n = (size_t)bytes;
    return true;
}

bool mc_gguf_arr_f32(const struct mc_gguf *g, const char *key, uint64_t i, float *out)
{
    const struct key *k = find(g, key);
    const uint8_t *p = element(k, i);

    if (!p || k->elem != T_F32)
        return false;
    memcpy(out, p, sizeof *out);
    return true;
}

bool mc_gguf_arr_i32(const struct mc_gguf *g, const char *key, uint64_t i, int32_t *out)
{
    const struct key *k = find(g, key);
    const uint8_t *p = element(k, i);
    bool negative;
    uint64_t u;

    if (p && k->elem == T_BOOL) {
        *out = *p != 0;
        return true;
    }
    if (!p || !integer(k->elem, p, &negative, &u))
        return false;
    if (negative ? (int64_t)u < INT32_MIN : u > INT32_MAX)
        return false;
    *out = (int32_t)(int64_t)u;
    return true;
}

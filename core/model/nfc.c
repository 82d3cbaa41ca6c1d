/* nfc.c - Unicode normalisation form C by utf8proc, but for the ordering of marks.
 *
 * Owns nothing. THREAD: any.
 * utf8proc_decompose orders a run of combining marks by exchanging neighbours: quadratic,
 * minutes for a hostile megabyte. So characters are decomposed one by one, each run of
 * marks is sorted here, and utf8proc_normalize_utf32, which is linear, composes.
 * Tables are Unicode 15. PyPI's tokenizers 0.23 still orders by Unicode 9 and leaves about
 * a hundred rarer marks where they stand; this follows the standard. */
#include "core/model/nfc.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "core/base/err.h"
#include "core/base/utf8.h"

/* A decomposed character as one number that sorts as canonical order wants: combining
 * class (8 bits), place (35), code point (21). */
#define MARK(cls, place, cp) ((uint64_t)(cls) << 56 | (uint64_t)(place) << 21 | (cp))
#define MARK_CLASS(m) ((m) >> 56)
#define MARK_CP(m) ((uint32_t)(m) & 0x1fffff)

struct marks {
    uint64_t *v;
    size_t n, cap;
};

/* Every character below U+0300 is a starter and itself in form C. */
static bool plainly_nfc(const char *s, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++)
        if ((unsigned char)s[i] >= 0xcc)
            return false;
    return true;
}

static int decompose(struct marks *m, uint32_t cp)
{
    utf8proc_int32_t part[8]; /* canonical decompositions have at most 4 */
    utf8proc_ssize_t i, n;
    uint64_t *v;
    int bound = 0;

    n = utf8proc_decompose_char((utf8proc_int32_t)cp, part, 8,
                                UTF8PROC_COMPOSE | UTF8PROC_STABLE, &bound);
    if (m->n + 8 > m->cap) {
        m->cap = m->cap ? m->cap * 2 : 256;
        v = realloc(m->v, m->cap * sizeof *v);
        if (!v)
            return MC_ENOMEM;
        m->v = v;
    }
    for (i = 0; i < n; i++, m->n++)
        m->v[m->n] = MARK(utf8proc_get_property(part[i])->combining_class, m->n,
                          (uint32_t)part[i]);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static void order(struct marks *m)
{
    size_t i, from;
    bool sorted;

    for (i = 0; i < m->n; i++) {
        if (MARK_CLASS(m->v[i]) == 0)
            continue;
        sorted = true;
        for (from = i; i + 1 < m->n && MARK_CLASS(m->v[i + 1]) != 0; i++)
            sorted = sorted && m->v[i] < m->v[i + 1];
        if (!sorted)
            qsort(m->v + from, i + 1 - from, sizeof *m->v, by_value);
    }
}

int mc_nfc(const char *s, size_t n, char **out, size_t *n_out)
{
    struct marks m = {0};
    utf8proc_int32_t *cp = NULL;
    utf8proc_ssize_t n_cp;
    size_t i;
    int rc;

    *out = NULL;
    if (plainly_nfc(s, n))
        return 0;
    for (i = 0; i < n; i += mc_utf8_len(s[i])) {
        rc = decompose(&m, mc_utf8_get(s + i));
        if (rc < 0)
            goto done;
    }
    order(&m);
    rc = MC_ENOMEM;
    cp = malloc(m.n * sizeof *cp);
    *out = malloc(m.n * 4);
    if (!cp || !*out)
        goto done;
    for (i = 0; i < m.n; i++)
        cp[i] = (utf8proc_int32_t)MARK_CP(m.v[i]);
    n_cp = utf8proc_normalize_utf32(cp, (utf8proc_ssize_t)m.n,
                                    UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    *n_out = 0;
    for (i = 0; i < (size_t)n_cp; i++)
        *n_out += mc_utf8_put((uint32_t)cp[i], *out + *n_out);
    rc = 0;
done:
    if (rc < 0) {
        free(*out);
        *out = NULL;
    }
    free(cp);
    free(m.v);
    return rc;
}

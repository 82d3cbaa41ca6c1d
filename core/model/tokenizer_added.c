/* tokenizer_added.c - tokens that are found in text as a whole.
 *
 * Owns the mc_added_sets. THREAD: put and seal: the one that opens; next: any.
 * A set is an array sorted by bytes. Matching at a place narrows a range of it byte by
 * byte; the shortest of a range comes first, so the last whole name met is the longest
 * match. Names are at most NEEDLE_MAX bytes, which keeps searching linear in the text. */
#define _GNU_SOURCE
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "core/model/nfc.h"
#include "core/model/ucat.h"
#include "core/base/utf8.h"

enum { NEEDLE_MAX = 1024 };

static int set_push(struct mc_added_set *set, struct mc_added a)
{
    uint32_t cap = set->cap ? set->cap * 2 : 64;
    struct mc_added *v;

    if (set->n == set->cap) {
        v = realloc(set->v, cap * sizeof *v);
        if (!v)
            return MC_ENOMEM;
        set->v = v;
        set->cap = cap;
    }
    set->v[set->n++] = a;
    return 0;
}

/* What to search for: the token's own bytes, or their normal form. */
static int set_needle(struct mc_tok *t, struct mc_added *a, bool normalized,
                      struct mc_err *err)
{
    char *nfc = NULL;
    size_t n = 0;
    int rc = 0;

    a->off = t->token[a->id].off;
    a->len = t->token[a->id].len;
    if (!normalized || !t->nfc)
        return 0;
    if (mc_nfc(t->text + a->off, a->len, &nfc, &n) < 0)
        return mc_fail(err, MC_ENOMEM, "no memory for added tokens");
    if (nfc) {
        rc = mc_text_keep(t, nfc, n, &a->off, err);
        a->len = (uint32_t)n;
    }
    free(nfc);
    return rc;
}

int mc_added_put(struct mc_tok *t, int32_t id, struct mc_added_flags flags,
                 struct mc_err *err)
{
    struct mc_added a = {.id = id, .single_word = flags.single_word,
                         .lstrip = flags.lstrip, .rstrip = flags.rstrip};
    const struct mc_token *k = &t->token[id];
    char quoted[MC_QUOTE];
    int rc;

    if (k->len == 0 || k->len > NEEDLE_MAX)
        return mc_fail(err, MC_EFORMAT,
                       "added token %d has %u bytes, not 1 to %d: \"%s\"", id, k->len,
                       NEEDLE_MAX, mc_quote(quoted, t->text + k->off, k->len));
    if (!mc_utf8_valid(t->text + k->off, k->len))
        return mc_fail(err, MC_EFORMAT, "added token %d is not valid UTF-8", id);
    rc = set_needle(t, &a, flags.normalized, err);
    if (rc < 0)
        return rc;
    if (set_push(flags.normalized ? &t->normal : &t->raw, a) < 0)
        return mc_fail(err, MC_ENOMEM, "no memory for added tokens");
    return 0;
}

static int by_bytes(const void *x, const void *y, void *text)
{
    const struct mc_added *a = x, *b = y;
    int c = memcmp((char *)text + a->off, (char *)text + b->off,
                   a->len < b->len ? a->len : b->len);

    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

static int seal_set(struct mc_tok *t, struct mc_added_set *set, struct mc_err *err)
{
    char quoted[MC_QUOTE];
    uint32_t i, c = 0;

    if (set->n > 0)
        qsort_r(set->v, set->n, sizeof *set->v, by_bytes, t->text);
    for (i = 1; i < set->n; i++)
        if (by_bytes(&set->v[i - 1], &set->v[i], t->text) == 0)
            return mc_fail(err, MC_EFORMAT, "added tokens %d and %d are the same: \"%s\"",
                           set->v[i - 1].id, set->v[i].id,
                           mc_quote(quoted, t->text + set->v[i].off, set->v[i].len));
    for (i = 0; i < set->n; i++)
        while (c <= (unsigned char)t->text[set->v[i].off])
            set->first[c++] = i;
    while (c <= 256)
        set->first[c++] = set->n;
    return 0;
}

int mc_added_seal(struct mc_tok *t, struct mc_err *err)
{
    int rc = seal_set(t, &t->raw, err);

    return rc < 0 ? rc : seal_set(t, &t->normal, err);
}

/* First of v[lo..hi), which agree on depth bytes, whose byte there is at least c. */
static uint32_t bound(const struct mc_tok *t, const struct mc_added *v, uint32_t lo,
                      uint32_t hi, uint32_t depth, unsigned c)
{
    uint32_t mid;

    while (lo < hi) {
        mid = lo + (hi - lo) / 2;
        if (v[mid].len <= depth || (unsigned char)t->text[v[mid].off + depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static const struct mc_added *longest(const struct mc_tok *t,
                                      const struct mc_added_set *set, const char *s,
                                      size_t n)
{
    unsigned c = (unsigned char)s[0];
    uint32_t lo = set->first[c], hi = set->first[c + 1], depth = 1;
    const struct mc_added *found = NULL;

    while (lo < hi) {
        if (set->v[lo].len == depth)
            found = &set->v[lo];
        if (depth == n)
            break;
        c = (unsigned char)s[depth];
        lo = bound(t, set->v, lo, hi, depth, c);
        hi = bound(t, set->v, lo, hi, depth, c + 1);
        depth++;
    }
    return found;
}

static bool between(uint32_t cp, uint32_t lo, uint32_t hi)
{
    return cp >= lo && cp <= hi;
}

/* \w: Alphabetic (letters, letter numbers, circled letters), marks, decimal digits,
 * connectors, joiners. */
static bool word_char(const char *s)
{
    uint32_t cp = mc_utf8_get(s);

    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_SO:
        return between(cp, 0x24b6, 0x24e9) || between(cp, 0x1f130, 0x1f149) ||
               between(cp, 0x1f150, 0x1f169) || between(cp, 0x1f170, 0x1f189);
    default:
        return mc_ucat(cp) & (MC_U_L | MC_U_M) || cp == 0x200c || cp == 0x200d;
    }
}

static size_t char_before(const char *s, size_t i)
{
    do
        i--;
    while (((unsigned char)s[i] & 0xc0) == 0x80);
    return i;
}

const struct mc_added *mc_added_next(const struct mc_tok *t,
                                     const struct mc_added_set *set, const char *s,
                                     size_t from, size_t n, size_t *at, size_t *end)
{
    const struct mc_added *a;
    size_t i, stop, back;

    for (i = from; i < n; i++) {
        a = longest(t, set, s + i, n - i);
        if (!a)
            continue;
        stop = i + a->len;
        if (a->single_word && ((i > 0 && word_char(s + char_before(s, i))) ||
                               (stop < n && word_char(s + stop)))) {
            i = stop - 1;
            continue;
        }
        while (a->rstrip && stop < n && mc_ucat(mc_utf8_get(s + stop)) & MC_U_SPACE)
            stop += mc_utf8_len(s[stop]);
        while (a->lstrip && i > from) {
            back = char_before(s, i);
            if (!(mc_ucat(mc_utf8_get(s + back)) & MC_U_SPACE))
                break;
            i = back;
        }
        *at = i;
        *end = stop;
        return a;
    }
    return NULL;
}

/* diff.c - Myers' O(ND) walk over lines that remain after the common head and tail.
 *
 * Owns nothing after it returns. THREAD: any.
 * v[d][k] is how far along diagonal k = x - y d edits reach; one row a d is kept, so that
 * the way back can be read off. */
#include "core/base/diff.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"

enum { MAX_EDITS = 1000, CONTEXT = 3 };

struct line {
    const char *p;
    size_t n; /* without its end */
};

struct side {
    struct line *line;
    int n;
    bool *changed; /* [n]: deleted from a, added in b */
};

static int split(const struct mc_text *t, struct side *s)
{
    const char *p = t->p, *end = p ? p + t->n : p;
    int n = 1;

    for (const char *q = p; q && q < end; q++)
        n += *q == '\n';
    s->line = malloc((size_t)n * sizeof *s->line);
    s->changed = calloc((size_t)n, sizeof *s->changed);
    if (!s->line || !s->changed)
        return MC_ENOMEM;
    while (p && p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end;

        s->line[s->n++] = (struct line){p, (size_t)(stop - p)};
        p = stop + 1;
    }
    return 0;
}

static bool same(const struct side *a, int i, const struct side *b, int k)
{
    return a->line[i].n == b->line[k].n &&
           memcmp(a->line[i].p, b->line[k].p, a->line[i].n) == 0;
}

/* Row d of v: diagonals -d..d, found at v[k + d]. */
static int *row_of(int *v, int d)
{
    return v + (size_t)d * (size_t)d;
}

/* Where the best way with d edits enters diagonal k, from row d - 1. */
static int enter(const int *before, int d, int k, bool *down)
{
    *down = k == -d || (k != d && before[k - 1 + d - 1] < before[k + 1 + d - 1]);
    return *down ? before[k + 1 + d - 1] : before[k - 1 + d - 1] + 1;
}

/* Marks what differs in a[from..an) and b[from..bn). Returns false when it is too much. */
static bool walk(struct side *a, int an, struct side *b, int bn, int from, int *v)
{
    int n = an - from, m = bn - from, d, k = 0, x = 0, y;
    bool done = false, down;

    for (d = 0; d <= MAX_EDITS && !done; d++) {
        for (k = -d; k <= d && !done; k += 2) {
            x = d == 0 ? 0 : enter(row_of(v, d - 1), d, k, &down);
            y = x - k;
            while (x < n && y >= 0 && y < m && same(a, from + x, b, from + y))
                x++, y++;
            row_of(v, d)[k + d] = x;
            done = x >= n && y >= m;
        }
        if (done)
            break;
    }
    if (!done)
        return false;
    for (k = n - m; d > 0; d--) { /* back: one edit a row */
        x = enter(row_of(v, d - 1), d, k, &down);
        y = x - k;
        if (down)
            b->changed[from + y - 1] = true, k++;
        else
            a->changed[from + x - 1] = true, k--;
    }
    return true;
}

static void mark(struct side *a, struct side *b, int *v)
{
    int from = 0, an = a->n, bn = b->n;

    while (from < an && from < bn && same(a, from, b, from))
        from++;
    while (an > from && bn > from && same(a, an - 1, b, bn - 1))
        an--, bn--;
    if (walk(a, an, b, bn, from, v))
        return;
    memset(a->changed + from, true, (size_t)(an - from));
    memset(b->changed + from, true, (size_t)(bn - from));
}

static void put(FILE *out, char sign, const struct line *l)
{
    fprintf(out, "%c%.*s\n", sign, (int)l->n, l->p);
}

/* One hunk from lines i, k on; both end behind its last context line. */
static void hunk(FILE *out, const struct side *a, int *i, const struct side *b, int *k)
{
    int i0 = *i > CONTEXT ? *i - CONTEXT : 0, k0 = *k - (*i - i0), quiet = 0, x = *i,
        y = *k;

    while ((x < a->n || y < b->n) && quiet <= 2 * CONTEXT) {
        bool old = x < a->n && a->changed[x], new = y < b->n && b->changed[y];

        quiet = old || new ? 0 : quiet + 1;
        x += old || !new;
        y += new || !old;
        if (old && new)
            y--; /* deletions first */
    }
    if (quiet > CONTEXT) {
        x -= quiet - CONTEXT;
        y -= quiet - CONTEXT;
    }
    fprintf(out, "@@ -%d,%d +%d,%d @@\n", x > i0 ? i0 + 1 : i0, x - i0,
            y > k0 ? k0 + 1 : k0, y - k0);
    while (i0 < x || k0 < y) {
        if (i0 < x && a->changed[i0])
            put(out, '-', &a->line[i0++]);
        else if (k0 < y && b->changed[k0])
            put(out, '+', &b->line[k0++]);
        else
            put(out, ' ', &a->line[i0++]), k0++;
    }
    *i = x;
    *k = y;
}

static void show(FILE *out, const char *name_a, const struct side *a, const char *name_b,
                 const struct side *b)
{
    bool begun = false;
    int i = 0, k = 0;

    while (i < a->n || k < b->n) {
        if (!(i < a->n && a->changed[i]) && !(k < b->n && b->changed[k])) {
            i++, k++;
            continue;
        }
        if (!begun)
            fprintf(out, "--- %s\n+++ %s\n", name_a, name_b);
        begun = true;
        hunk(out, a, &i, b, &k);
    }
}

int mc_diff(FILE *out, const struct mc_text *a, const struct mc_text *b)
{
    struct side old = {0}, new = {0};
    int *v = malloc((size_t)(MAX_EDITS + 1) * (MAX_EDITS + 1) * sizeof *v);
    int rc = v ? 0 : MC_ENOMEM;

    if (rc == 0)
        rc = split(a, &old);
    if (rc == 0)
        rc = split(b, &new);
    if (rc == 0) {
        mark(&old, &new, v);
        show(out, a->p ? a->name : "/dev/null", &old, b->p ? b->name : "/dev/null", &new);
    }
    free(v);
    free(old.line), free(old.changed), free(new.line), free(new.changed);
    return rc;
}

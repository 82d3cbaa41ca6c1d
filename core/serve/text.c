/* text.c - holding text back: incomplete characters and beginnings of stop strings.
 *
 * Owns what struct mc_text says. THREAD: one at a time.
 *
 * Always true: buf is valid UTF-8; its last `hold` bytes are the longest end of the text
 * that begins some stop (0 once cut). Taken text lies before them, so a stop is matched
 * (Knuth, Morris, Pratt: constant time a byte, no second look) in buf alone.
 *
 * The first stop to be complete wins, and of those complete at the same byte the longest.
 * This cuts alike however the bytes are dealt out; the leftmost match would have to wait
 * for text that may never come. */
#include "core/serve/text.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

static void stop_init(struct mc_stop *st)
{
    uint16_t k = 0;

    st->fail[0] = 0;
    for (uint16_t i = 1; i < st->len; i++) {
        while (k > 0 && st->s[i] != st->s[k])
            k = st->fail[k - 1];
        if (st->s[i] == st->s[k])
            k++;
        st->fail[i] = k;
    }
}

/* The text goes on with c; true when that completes the stop, after which it is no longer
 * asked. */
static bool stop_step(struct mc_stop *st, char c)
{
    while (st->match > 0 && st->s[st->match] != c)
        st->match = st->fail[st->match - 1];
    if (st->s[st->match] == c)
        st->match++;
    return st->match == st->len;
}

/* Takes in the n bytes of UTF-8 that lie at buf + len, up to where a stop is complete;
 * that stop is dropped. */
static void take_in(struct mc_text *t, size_t n)
{
    t->hold = 0;
    for (size_t i = 0; i < n && !t->cut; i++) {
        char c = t->buf[t->len++];
        uint16_t found = 0;

        for (int32_t j = 0; j < t->n_stop; j++)
            if (stop_step(&t->stop[j], c) && t->stop[j].len > found)
                found = t->stop[j].len;
        if (found > 0) {
            t->len -= found;
            t->cut = true;
        }
    }
    for (int32_t j = 0; j < t->n_stop && !t->cut; j++)
        if (t->stop[j].match > t->hold)
            t->hold = t->stop[j].match;
}

/* Makes *p hold at least need bytes. */
static bool reserve(char **p, size_t *room, size_t need)
{
    size_t n = *room ? *room : 64;
    char *mem;

    while (n < need)
        n *= 2;
    if (n == *room)
        return true;
    mem = realloc(*p, n);
    if (!mem)
        return false;
    *p = mem;
    *room = n;
    return true;
}

static void drop_taken(struct mc_text *t)
{
    if (t->taken == 0)
        return;
    t->len -= t->taken;
    memmove(t->buf, t->buf + t->taken, t->len);
    t->taken = 0;
}

int mc_text_add(struct mc_text *t, const char *s, size_t n)
{
    size_t all = t->n_raw + n, ready;

    drop_taken(t);
    if (n == 0 || t->cut)
        return 0;
    /* A byte cleans to at most the 3 of U+FFFD. */
    if (!reserve(&t->raw, &t->raw_room, all) ||
        !reserve(&t->buf, &t->room, t->len + 3 * all))
        return MC_ENOMEM;
    memcpy(t->raw + t->n_raw, s, n);
    ready = mc_utf8_ready(t->raw, all);
    take_in(t, mc_utf8_clean(t->raw, ready, t->buf + t->len));
    t->n_raw = all - ready;
    memmove(t->raw, t->raw + ready, t->n_raw);
    return 0;
}

int mc_text_flush(struct mc_text *t)
{
    drop_taken(t);
    if (t->cut)
        return 0;
    if (t->n_raw > 0) {
        if (!reserve(&t->buf, &t->room, t->len + 3 * t->n_raw))
            return MC_ENOMEM;
        take_in(t, mc_utf8_clean(t->raw, t->n_raw, t->buf + t->len));
        t->n_raw = 0;
    }
    t->hold = 0;
    return 0;
}

bool mc_text_held(const struct mc_text *t)
{
    return !t->cut && (t->hold > 0 || t->n_raw > 0);
}

const char *mc_text_take(struct mc_text *t, size_t *n)
{
    drop_taken(t);
    *n = t->taken = t->len - t->hold;
    return t->buf ? t->buf : "";
}

static int check(const char *const *stop, const size_t *len, int32_t n,
                 struct mc_err *err)
{
    if (n < 0 || n > MC_TEXT_MAX_STOP)
        return mc_fail_param(err, MC_EARG, "stop", "%d stop strings, at most %d", n,
                             MC_TEXT_MAX_STOP);
    for (int32_t i = 0; i < n; i++) {
        if (len[i] < 1 || len[i] > MC_TEXT_MAX_STOP_LEN)
            return mc_fail_param(err, MC_EARG, "stop",
                                 "stop string %d has %zu bytes, must have 1 to %d", i,
                                 len[i], MC_TEXT_MAX_STOP_LEN);
        if (!mc_utf8_valid(stop[i], len[i]))
            return mc_fail_param(err, MC_EARG, "stop",
                                 "stop string %d is not valid UTF-8", i);
    }
    return 0;
}

/* stop_mem: the fail tables, then the strings. */
int mc_text_init(struct mc_text *t, const char *const *stop, const size_t *stop_len,
                 int32_t n_stop, struct mc_err *err)
{
    size_t all = 0;
    uint16_t *fail;
    char *s;
    int rc = check(stop, stop_len, n_stop, err);

    if (rc < 0 || n_stop == 0)
        return rc;
    for (int32_t i = 0; i < n_stop; i++)
        all += stop_len[i];
    t->stop_mem = malloc(all * (sizeof *fail + 1));
    if (!t->stop_mem)
        return mc_fail(err, MC_ENOMEM, "no memory for stop strings");
    fail = t->stop_mem;
    s = (char *)(fail + all);
    for (int32_t i = 0; i < n_stop; i++) {
        struct mc_stop *st = &t->stop[i];

        *st = (struct mc_stop){.s = s, .fail = fail, .len = (uint16_t)stop_len[i]};
        memcpy(s, stop[i], st->len);
        stop_init(st);
        s += st->len;
        fail += st->len;
    }
    t->n_stop = n_stop;
    return 0;
}

void mc_text_fini(struct mc_text *t)
{
    free(t->stop_mem);
    free(t->buf);
    free(t->raw);
    *t = (struct mc_text){0};
}

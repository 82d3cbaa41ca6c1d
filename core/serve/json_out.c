/* json_out.c - growing buffer, JSON strings and numbers.
 *
 * Owns nothing of its own. THREAD: one at a time a buffer.
 * Numbers assume the C locale's decimal point: the program never calls setlocale. */
#include "core/serve/json_out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

char *mc_buf_room(struct mc_buf *b, size_t n)
{
    size_t cap = b->cap ? b->cap : 256;
    char *p;

    if (b->failed || n > SIZE_MAX / 4 || b->n > SIZE_MAX / 4) {
        b->failed = true;
        return NULL;
    }
    while (cap < b->n + n + 1)
        cap *= 2;
    if (cap != b->cap) {
        p = realloc(b->p, cap);
        if (!p) {
            b->failed = true;
            return NULL;
        }
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

void mc_buf_put(struct mc_buf *b, const void *s, size_t n)
{
    char *to = mc_buf_room(b, n);

    if (!to || n == 0)
        return;
    memcpy(to, s, n);
    b->n += n;
    b->p[b->n] = 0;
}

void mc_buf_puts(struct mc_buf *b, const char *s)
{
    mc_buf_put(b, s, strlen(s));
}

void mc_buf_fmt(struct mc_buf *b, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    mc_buf_put(b, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

void mc_buf_drop(struct mc_buf *b, size_t n)
{
    if (n == 0)
        return;
    b->n -= n;
    memmove(b->p, b->p + n, b->n + 1);
}

void mc_buf_free(struct mc_buf *b)
{
    free(b->p);
    *b = (struct mc_buf){0};
}

/* Length of what at s must be escaped: 0 when nothing, 3 for U+2028 and U+2029, which
 * JSON allows raw but JavaScript's older parsers and line splitters take for a line's
 * end. */
static size_t special(const unsigned char *s, size_t n)
{
    if (s[0] < 0x20 || s[0] == '"' || s[0] == '\\')
        return 1;
    return n >= 3 && s[0] == 0xE2 && s[1] == 0x80 && (s[2] & 0xFE) == 0xA8 ? 3 : 0;
}

static void put_escape(struct mc_buf *b, const unsigned char *s)
{
    static const char letter[0x60] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
        ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\',
    };

    if (s[0] == 0xE2)
        mc_buf_puts(b, s[2] == 0xA8 ? "\\u2028" : "\\u2029");
    else if (letter[s[0]])
        mc_buf_put(b, (char[]){'\\', letter[s[0]]}, 2);
    else
        mc_buf_fmt(b, "\\u%04x", s[0]);
}

static void put_valid(struct mc_buf *b, const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;
    size_t from = 0, i = 0;

    mc_buf_put(b, "\"", 1);
    while (i < n) {
        size_t skip = special(s + i, n - i);

        if (skip == 0) {
            i++;
            continue;
        }
        mc_buf_put(b, s + from, i - from);
        put_escape(b, s + i);
        from = i += skip;
    }
    mc_buf_put(b, s + from, n - from);
    mc_buf_put(b, "\"", 1);
}

void mc_json_str(struct mc_buf *b, const char *s, size_t n)
{
    char *clean;

    if (mc_utf8_valid(s, n)) {
        put_valid(b, s, n);
        return;
    }
    clean = malloc(3 * n);
    if (!clean) {
        b->failed = true;
        return;
    }
    put_valid(b, clean, mc_utf8_clean(s, n, clean));
    free(clean);
}

void mc_json_strz(struct mc_buf *b, const char *s)
{
    if (s)
        mc_json_str(b, s, strlen(s));
    else
        mc_buf_puts(b, "null");
}

void mc_json_float(struct mc_buf *b, float v)
{
    char text[32];

    if (!isfinite(v)) {
        mc_buf_puts(b, "null");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    mc_buf_puts(b, text);
}

void mc_json_error(struct mc_buf *b, const struct mc_err *e)
{
    mc_buf_puts(b, "{\"error\":{\"message\":");
    mc_json_strz(b, e->text[0] ? e->text : mc_code_text(e->code));
    mc_buf_puts(b, ",\"type\":");
    mc_json_strz(b, mc_code_type(e->code));
    mc_buf_puts(b, ",\"param\":");
    mc_json_strz(b, e->param[0] ? e->param : NULL);
    mc_buf_puts(b, ",\"code\":");
    mc_json_strz(b, mc_code_api(e->code));
    mc_buf_puts(b, "}}");
}

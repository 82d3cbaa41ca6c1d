/* json_out.h - a growing buffer and JSON written into it by hand.
 *
 * For what is written per token and for errors, where a tree of objects would cost more
 * than the text. OWNS its memory; after memory ran out, `failed` stays up and every call
 * does nothing, so that only the end has to check. THREAD: one at a time. */
#ifndef MC_SERVE_JSON_OUT_H
#define MC_SERVE_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_buf { /* zero-initialise; mc_buf_free at the end */
    char *p; /* NULL, or ends with a NUL after n bytes */
    size_t n, cap;
    bool failed;
};

void mc_buf_put(struct mc_buf *b, const void *s, size_t n);
void mc_buf_puts(struct mc_buf *b, const char *s);
/* Short pieces only: what does not fit in 512 bytes is cut. */
void mc_buf_fmt(struct mc_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Room for n more bytes and a NUL at p + n, or NULL; the caller writes them and adds to
 * b->n. */
char *mc_buf_room(struct mc_buf *b, size_t n);
/* Drops the first n bytes. */
void mc_buf_drop(struct mc_buf *b, size_t n);
void mc_buf_free(struct mc_buf *b);

/* A string with its quotes, on one line whatever is in it: control bytes, quote,
 * backslash, U+2028 and U+2029 are escaped, invalid UTF-8 becomes U+FFFD. */
void mc_json_str(struct mc_buf *b, const char *s, size_t n);
void mc_json_strz(struct mc_buf *b, const char *s); /* NULL: null */
/* The fewest digits that read back as the same float; null when not finite. */
void mc_json_float(struct mc_buf *b, float v);
/* {"error":{"message","type","param","code"}} as OpenAI's clients read it. */
void mc_json_error(struct mc_buf *b, const struct mc_err *e);

#endif

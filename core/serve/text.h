/* text.h - bytes in, whole UTF-8 out, cut at the first stop string.
 *
 * Holds back what is not yet a character and what might begin a stop string, so that text
 * once taken never has to be taken back. OWNS its buffers and a copy of the stops.
 * THREAD: one at a time. */
#ifndef MC_SERVE_TEXT_H
#define MC_SERVE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

enum { MC_TEXT_MAX_STOP = 16, MC_TEXT_MAX_STOP_LEN = 256 };

struct mc_stop {
    const char *s;
    uint16_t *fail; /* fail[i]: length of the longest border of s[0..i] */
    uint16_t len;
    uint16_t match; /* the text ends with s[0..match) */
};

struct mc_text {
    bool cut; /* a stop was complete: it and what follows are gone */
    struct mc_stop stop[MC_TEXT_MAX_STOP];
    int32_t n_stop;
    void *stop_mem;
    char *buf;                     /* text that was not taken, after what was lent out */
    size_t len, hold, taken, room;
    char *raw;                     /* at most 3 bytes that are not yet a character */
    size_t n_raw, raw_room;
};

/* t is zeroed memory; after a failure too, mc_text_fini is legal. At most 16 stops
 * of 1..256 bytes of UTF-8: MC_EARG on "stop". */
int mc_text_init(struct mc_text *t, const char *const *stop, const size_t *stop_len,
                 int32_t n_stop, struct mc_err *err);
void mc_text_fini(struct mc_text *t);

/* Does nothing once cut. Bytes that can never become UTF-8 turn into U+FFFD. */
int mc_text_add(struct mc_text *t, const char *s, size_t n);
/* Nothing follows: bytes that wait for their character become one U+FFFD, and what might
 * have begun a stop did not. */
int mc_text_flush(struct mc_text *t);
/* Something was added that take would not give yet. */
bool mc_text_held(const struct mc_text *t);
/* What is whole and no stop's beginning; borrowed until the next call. */
const char *mc_text_take(struct mc_text *t, size_t *n);

#endif

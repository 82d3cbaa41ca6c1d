/* gguf_int.h - reading a mapped GGUF front to back, never past its end.
 *
 * A take that returns false has moved nothing that matters: the file is refused. THREAD:
 * opening. */
#ifndef MC_WEIGHTS_GGUF_INT_H
#define MC_WEIGHTS_GGUF_INT_H

#include <string.h>

#include "core/weights/ckpt_int.h"

struct mc_cursor {
    const uint8_t *p;
    size_t n, at; /* at <= n */
};

static inline bool mc_take(struct mc_cursor *c, void *out, size_t n)
{
    if (c->n - c->at < n)
        return false;
    memcpy(out, c->p + c->at, n);
    c->at += n;
    return true;
}

static inline bool mc_skip(struct mc_cursor *c, uint64_t n)
{
    if (c->n - c->at < n)
        return false;
    c->at += (size_t)n;
    return true;
}

/* u64 length, bytes; *s points into the file. */
static inline bool mc_take_string(struct mc_cursor *c, const char **s, uint64_t *n)
{
    if (!mc_take(c, n, 8))
        return false;
    *s = (const char *)c->p + c->at;
    return mc_skip(c, *n);
}

/* gguf_meta.c: n entries of metadata at the cursor. On an error too *out is to be freed. */
int mc_gguf_read_meta(struct mc_cursor *c, uint64_t n, struct mc_gguf **out,
                      struct mc_err *err);

#endif

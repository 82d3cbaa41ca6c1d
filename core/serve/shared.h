/* shared.h - what requests share: a bounded table of small values that survives reloads.
 *
 * Behind mc.shared. A value is text or a number, with an optional end of life. OWNS its
 * entries; when full, ended ones go first, then the one unused for longest.
 * THREAD: any. */
#ifndef MC_SERVE_SHARED_H
#define MC_SERVE_SHARED_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/err.h"

struct mc_shared;

enum { MC_SHARED_KEY = 256, MC_SHARED_VALUE = 64 << 10 };

/* Bytes for keys and values together. */
int mc_shared_open(size_t bytes, struct mc_shared **out, struct mc_err *err);
void mc_shared_close(struct mc_shared *s);

struct mc_shared_value {
    bool is_text;
    double number;
    char *text; /* malloced, for the caller to free; not NUL-terminated */
    size_t n;
};

/* now: CLOCK_MONOTONIC seconds; ttl 0: for ever; err is not NULL. */
int mc_shared_set(struct mc_shared *s, const char *key, size_t n_key,
                  const struct mc_shared_value *v, double ttl, double now,
                  struct mc_err *err);
void mc_shared_drop(struct mc_shared *s, const char *key, size_t n_key);
bool mc_shared_get(struct mc_shared *s, const char *key, size_t n_key, double now,
                   struct mc_shared_value *out);
/* Adds to a number that starts at 0; ttl is set when it starts. */
int mc_shared_incr(struct mc_shared *s, const char *key, size_t n_key, double by,
                   double ttl, double now, double *out, struct mc_err *err);
/* A bucket of `burst` that fills at `rate` a second: takes n, or MC_ELIMIT and the
 * seconds until it could. */
int mc_shared_take(struct mc_shared *s, const char *key, size_t n_key, double n,
                   double rate, double burst, double now, double *retry_after,
                   struct mc_err *err);

#endif

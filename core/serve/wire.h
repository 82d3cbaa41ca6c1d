/* wire.h - msgpack as JSON values, for bytes from outside.
 *
 * The library sizes its memory from a header's count alone, so every header is scanned
 * first: depth, counts and lengths are held against the bytes there can be. THREAD: any.
 */
#ifndef MC_SERVE_WIRE_H
#define MC_SERVE_WIRE_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "core/base/err.h"

enum { MC_WIRE_DEPTH = 16, MC_WIRE_MAX = 1 << 20 };

/* Looks at the first value in n bytes of a stream whose values have at most max bytes.
 * 1: it is whole, *len bytes. 0: more is needed. MC_EFORMAT, MC_EBIG: it will never do.
 */
int mc_wire_scan(const void *data, size_t n, size_t max, size_t *len, struct mc_err *err);

/* A new reference for a value of exactly n bytes; scans it first. Extensions, map keys
 * that are no strings, numbers beyond int64 and NaN are refused. bytes: strings may be
 * any bytes and binaries count as strings, else text must be UTF-8. */
int mc_wire_read(const void *data, size_t n, bool bytes, json_t **out,
                 struct mc_err *err);

/* malloced; NULL when out of memory or nested deeper than MC_WIRE_DEPTH. */
char *mc_wire_write(const json_t *v, size_t *n);

#endif

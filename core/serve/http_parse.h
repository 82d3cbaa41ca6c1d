/* http_parse.h - the parts of a request that are checked without a connection: its
 * target, its fields, where its body ends, the client's request id.
 *
 * OWNS what mc_target points into, nothing else. THREAD: any. */
#ifndef MC_SERVE_HTTP_PARSE_H
#define MC_SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_pair {
    const char *key, *value;
};

struct mc_target {
    char *mem;
    const char *path; /* decoded; "" when the target is malformed */
    struct mc_pair *query;
    int n_query;
};

/* The raw target of a request line. Everything is decoded once and is valid UTF-8 without
 * control characters, NUL included; else MC_EARG. mc_target_free is legal after a
 * failure. */
int mc_target_parse(struct mc_target *t, const char *raw, struct mc_err *err);
void mc_target_free(struct mc_target *t);

/* Names and values are well-formed, Host is there once (HTTP/1.1), and where the body
 * ends is said at most once: *declared is Content-Length, or 0. */
int mc_fields_check(const struct mc_pair *field, int n, const char *version,
                    uint64_t *declared, struct mc_err *err);
bool mc_is_token(const char *s); /* of RFC 9110: methods and field names */
/* A request id that may go into logs and headers: a word of at most max bytes. */
bool mc_is_request_id(const char *s, size_t max);

#endif

/* json.h - reading JSON that came from outside.
 *
 * jansson does the parsing; in front of it the depth is checked without recursion, since
 * a parser that recurses is a stack that a client owns. Strict: UTF-8, no duplicate keys,
 * no lone surrogates, nothing after the value. THREAD: any. */
#ifndef MC_BASE_JSON_H
#define MC_BASE_JSON_H

#include <stddef.h>

#include <jansson.h>

#include "core/base/err.h"

/* A value costs tens of bytes here and again in Lua: a prompt of a million ids fits, a body
 * that is nothing but commas does not fill the memory. */
enum { MC_JSON_DEPTH = 64, MC_JSON_VALUES = 2 << 20 };

/* A new reference, or NULL with MC_EFORMAT (MC_EBIG: more values than allowed): the message
 * has line and column and never echoes the input. \u0000 is kept inside strings. */
json_t *mc_json_read(const char *text, size_t n, struct mc_err *err);

#endif

/* utf8.h - UTF-8 checked, cut at whole characters, and repaired.
 *
 * Well-formed is Unicode's table 3-7: no overlong forms, no surrogates, nothing above
 * U+10FFFF. OWNS nothing. THREAD: any. */
#ifndef MC_BASE_UTF8_H
#define MC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool mc_utf8_valid(const char *s, size_t n);

/* Length of the longest prefix that more bytes cannot change: all of it, or all but a
 * character whose end has not come yet. Bytes that are wrong whatever follows count as
 * complete (mc_utf8_clean replaces them). At most 3 bytes are held back. */
size_t mc_utf8_ready(const char *s, size_t n);

/* Copies s to out with each maximal subpart of an ill-formed sequence replaced by U+FFFD,
 * as Unicode recommends and browsers do; a character cut off by the end is one subpart.
 * out holds 3 * n bytes, or is NULL to count only. Returns the length. */
size_t mc_utf8_clean(const char *s, size_t n, char *out);

/* Bytes of the character that starts with c, which is the first byte of a valid one. */
static inline size_t mc_utf8_len(char c)
{
    unsigned char u = (unsigned char)c;

    return u < 0x80 ? 1 : u < 0xe0 ? 2 : u < 0xf0 ? 3 : 4;
}

/* The character at s, which is valid UTF-8. */
static inline uint32_t mc_utf8_get(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80)
        return u[0];
    if (u[0] < 0xe0)
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    if (u[0] < 0xf0)
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 |
           (u[3] & 0x3fu);
}

/* Writes cp (at most U+10FFFF) to out, at most 4 bytes; returns how many. */
size_t mc_utf8_put(uint32_t cp, char *out);

#endif

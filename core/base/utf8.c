/* utf8.c - UTF-8 checked, cut at whole characters, and repaired.
 *
 * Owns nothing. THREAD: any. Everything rests on unit(), which is table 3-7 of the Unicode
 * standard: after an E0, ED, F0 or F4 the second byte's range is narrower than 80..BF. */
#include "core/base/utf8.h"

#include <string.h>

enum fate { WHOLE, BAD, CUT };

/* The maximal subpart at s (n > 0): a whole character, or as much as could begin one. CUT
 * when the end of the text is all that is wrong with it. */
static size_t unit(const unsigned char *s, size_t n, enum fate *fate)
{
    unsigned c = s[0], lo = 0x80, hi = 0xbf;
    size_t i, want;

    if (c < 0x80) {
        *fate = WHOLE;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4) {
        *fate = BAD;
        return 1;
    }
    want = mc_utf8_len((char)c);
    if (c == 0xe0)
        lo = 0xa0;
    else if (c == 0xed)
        hi = 0x9f;
    else if (c == 0xf0)
        lo = 0x90;
    else if (c == 0xf4)
        hi = 0x8f;
    for (i = 1; i < want && i < n && s[i] >= lo && s[i] <= hi; i++) {
        lo = 0x80;
        hi = 0xbf;
    }
    *fate = i == want ? WHOLE : i == n ? CUT : BAD;
    return i;
}

bool mc_utf8_valid(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    enum fate fate;
    uint64_t word;
    size_t i = 0;

    while (i < n) {
        while (n - i >= sizeof word) {
            memcpy(&word, u + i, sizeof word);
            if (word & 0x8080808080808080u)
                break;
            i += sizeof word;
        }
        if (i == n)
            break;
        i += unit(u + i, n - i, &fate);
        if (fate != WHOLE)
            return false;
    }
    return true;
}

size_t mc_utf8_ready(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    enum fate fate;
    size_t back;

    for (back = 1; back <= 3 && back <= n; back++) {
        if ((u[n - back] & 0xc0) == 0x80)
            continue;
        unit(u + n - back, back, &fate);
        return fate == CUT ? n - back : n;
    }
    return n;
}

size_t mc_utf8_clean(const char *s, size_t n, char *out)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t i, len, used = 0;
    const char *from;
    enum fate fate;

    for (i = 0; i < n; i += len) {
        len = unit(u + i, n - i, &fate);
        from = fate == WHOLE ? s + i : "\xef\xbf\xbd";
        if (out)
            memcpy(out + used, from, fate == WHOLE ? len : 3);
        used += fate == WHOLE ? len : 3;
    }
    return used;
}

size_t mc_utf8_put(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

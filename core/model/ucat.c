/* ucat.c - what kind of character a code point is, as pre-tokenizers ask.
 *
 * Owns nothing. THREAD: any. utf8proc 2.8 knows Unicode 15, the tokenizers these models
 * come from know 16. Between the two no category changed, some were given: `later` lists
 * those, found by asking PyPI's tokenizers 0.23.3 about every code point
 * (tests/golden/tokenizer_parity.py); with it both agree on all of them.
 * Not PCRE2: 10.42 is Unicode 14, and its \s takes U+180E, which is no White_Space. */
#include "core/model/ucat.h"

#include <stdlib.h>

#include <utf8proc.h>

enum {
    L = MC_U_L, N = MC_U_N, P = MC_U_P, S = MC_U_S, OTHER = MC_U_OTHER,
    SPACE = MC_U_SPACE, NEWLINE = MC_U_NEWLINE,
    UPPER = MC_U_L | MC_U_UPPER, LOWER = MC_U_L | MC_U_LOWER,
};

const uint16_t mc_ucat_ascii[128] = {
    [0 ... 8] = OTHER,
    ['\t'] = OTHER | SPACE,
    ['\n'] = OTHER | SPACE | NEWLINE,
    ['\v'] = OTHER | SPACE,
    ['\f'] = OTHER | SPACE,
    ['\r'] = OTHER | SPACE | NEWLINE,
    [0x0e ... 0x1f] = OTHER,
    [' '] = SPACE,
    ['!' ... '#'] = P,
    ['$'] = S,
    ['%' ... '*'] = P,
    ['+'] = S,
    [',' ... '/'] = P,
    ['0' ... '9'] = N,
    [':' ... ';'] = P,
    ['<' ... '>'] = S,
    ['?' ... '@'] = P,
    ['A' ... 'Z'] = UPPER,
    ['[' ... ']'] = P,
    ['^'] = S,
    ['_'] = P,
    ['`'] = S,
    ['a' ... 'z'] = LOWER,
    ['{'] = P,
    ['|'] = S,
    ['}'] = P,
    ['~'] = S,
    [0x7f] = OTHER,
};

struct span {
    uint32_t first, last;
    unsigned cat;
};

static const struct span later[] = {
    {0x897, 0x897, MC_U_M}, {0x1b4e, 0x1b4f, MC_U_P}, {0x1b7f, 0x1b7f, MC_U_P},
    {0x1c89, 0x1c89, UPPER}, {0x1c8a, 0x1c8a, LOWER}, {0x2427, 0x2429, MC_U_S},
    {0x2ffc, 0x2fff, MC_U_S}, {0x31e4, 0x31e5, MC_U_S}, {0x31ef, 0x31ef, MC_U_S},
    {0xa7cb, 0xa7cc, UPPER}, {0xa7cd, 0xa7cd, LOWER}, {0xa7da, 0xa7da, UPPER},
    {0xa7db, 0xa7db, LOWER}, {0xa7dc, 0xa7dc, UPPER}, {0x105c0, 0x105f3, MC_U_L},
    {0x10d40, 0x10d49, MC_U_N}, {0x10d4a, 0x10d4f, MC_U_L}, {0x10d50, 0x10d65, UPPER},
    {0x10d69, 0x10d6d, MC_U_M}, {0x10d6e, 0x10d6e, MC_U_P}, {0x10d6f, 0x10d6f, MC_U_L},
    {0x10d70, 0x10d85, LOWER}, {0x10d8e, 0x10d8f, MC_U_S}, {0x10ec2, 0x10ec4, MC_U_L},
    {0x10efc, 0x10efc, MC_U_M}, {0x11380, 0x11389, MC_U_L}, {0x1138b, 0x1138b, MC_U_L},
    {0x1138e, 0x1138e, MC_U_L}, {0x11390, 0x113b5, MC_U_L}, {0x113b7, 0x113b7, MC_U_L},
    {0x113b8, 0x113c0, MC_U_M}, {0x113c2, 0x113c2, MC_U_M}, {0x113c5, 0x113c5, MC_U_M},
    {0x113c7, 0x113ca, MC_U_M}, {0x113cc, 0x113d0, MC_U_M}, {0x113d1, 0x113d1, MC_U_L},
    {0x113d2, 0x113d2, MC_U_M}, {0x113d3, 0x113d3, MC_U_L}, {0x113d4, 0x113d5, MC_U_P},
    {0x113d7, 0x113d8, MC_U_P}, {0x113e1, 0x113e2, MC_U_M}, {0x116d0, 0x116e3, MC_U_N},
    {0x11bc0, 0x11be0, MC_U_L}, {0x11be1, 0x11be1, MC_U_P}, {0x11bf0, 0x11bf9, MC_U_N},
    {0x11f5a, 0x11f5a, MC_U_M}, {0x13460, 0x143fa, MC_U_L}, {0x16100, 0x1611d, MC_U_L},
    {0x1611e, 0x1612f, MC_U_M}, {0x16130, 0x16139, MC_U_N}, {0x16d40, 0x16d6c, MC_U_L},
    {0x16d6d, 0x16d6f, MC_U_P}, {0x16d70, 0x16d79, MC_U_N}, {0x18cff, 0x18cff, MC_U_L},
    {0x1cc00, 0x1ccef, MC_U_S}, {0x1ccf0, 0x1ccf9, MC_U_N}, {0x1cd00, 0x1ceb3, MC_U_S},
    {0x1e5d0, 0x1e5ed, MC_U_L}, {0x1e5ee, 0x1e5ef, MC_U_M}, {0x1e5f0, 0x1e5f0, MC_U_L},
    {0x1e5f1, 0x1e5fa, MC_U_N}, {0x1e5ff, 0x1e5ff, MC_U_P}, {0x1f8b2, 0x1f8bb, MC_U_S},
    {0x1f8c0, 0x1f8c1, MC_U_S}, {0x1fa89, 0x1fa89, MC_U_S}, {0x1fa8f, 0x1fa8f, MC_U_S},
    {0x1fabe, 0x1fabe, MC_U_S}, {0x1fac6, 0x1fac6, MC_U_S}, {0x1fadc, 0x1fadc, MC_U_S},
    {0x1fadf, 0x1fadf, MC_U_S}, {0x1fae9, 0x1fae9, MC_U_S}, {0x1fbcb, 0x1fbef, MC_U_S},
    {0x2ebf0, 0x2ee5d, MC_U_L},
};

/* Script Han of Unicode 16, letters or not. */
static const struct span han[] = {
    {0x2e80, 0x2e99, MC_U_HAN}, {0x2e9b, 0x2ef3, MC_U_HAN}, {0x2f00, 0x2fd5, MC_U_HAN},
    {0x3005, 0x3005, MC_U_HAN}, {0x3007, 0x3007, MC_U_HAN}, {0x3021, 0x3029, MC_U_HAN},
    {0x3038, 0x303b, MC_U_HAN}, {0x3400, 0x4dbf, MC_U_HAN}, {0x4e00, 0x9fff, MC_U_HAN},
    {0xf900, 0xfa6d, MC_U_HAN}, {0xfa70, 0xfad9, MC_U_HAN}, {0x16fe2, 0x16fe3, MC_U_HAN},
    {0x16ff0, 0x16ff1, MC_U_HAN}, {0x20000, 0x2a6df, MC_U_HAN},
    {0x2a700, 0x2b739, MC_U_HAN}, {0x2b740, 0x2b81d, MC_U_HAN},
    {0x2b820, 0x2cea1, MC_U_HAN}, {0x2ceb0, 0x2ebe0, MC_U_HAN},
    {0x2ebf0, 0x2ee5d, MC_U_HAN}, {0x2f800, 0x2fa1d, MC_U_HAN},
    {0x30000, 0x3134a, MC_U_HAN}, {0x31350, 0x323af, MC_U_HAN},
};

static int by_place(const void *key, const void *elem)
{
    const uint32_t *cp = key;
    const struct span *s = elem;

    return *cp < s->first ? -1 : *cp > s->last;
}

static const struct span *find(uint32_t cp, const struct span *in, size_t n)
{
    return bsearch(&cp, in, n, sizeof *in, by_place);
}

static unsigned category(uint32_t cp)
{
    const struct span *s;

    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LT:
        return UPPER;
    case UTF8PROC_CATEGORY_LL:
        return LOWER;
    case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
        return MC_U_L;
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME:
        return MC_U_M;
    case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO:
        return MC_U_N;
    case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE: case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return MC_U_P;
    case UTF8PROC_CATEGORY_SM: case UTF8PROC_CATEGORY_SC: case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return MC_U_S;
    case UTF8PROC_CATEGORY_ZS: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP:
        return MC_U_SPACE; /* all of Z is White_Space */
    case UTF8PROC_CATEGORY_CN:
        s = find(cp, later, sizeof later / sizeof *later);
        return s ? s->cat : MC_U_OTHER;
    default:
        return cp == 0x85 ? MC_U_OTHER | MC_U_SPACE : MC_U_OTHER;
    }
}

unsigned mc_ucat_wide(uint32_t cp)
{
    unsigned cat = category(cp);

    if (cp >= han[0].first && find(cp, han, sizeof han / sizeof *han))
        cat |= MC_U_HAN;
    return cat;
}

/* pretok.c - cutting text into the pieces that BPE merges within.
 *
 * Owns nothing. THREAD: any. Each rule is one vendor pattern as code; the pattern stands
 * above it. Rules rely on three facts of those patterns: alternatives are tried in order
 * at one place; what one class takes no later part of the same alternative wants back, so
 * nothing backtracks but white space; and a failed match costs one or two characters, so
 * that a scan is linear. */
#include "core/model/pretok.h"

#include <stdint.h>
#include <string.h>

#include "core/model/ucat.h"
#include "core/base/utf8.h"

enum {
    L = MC_U_L, N = MC_U_N, M = MC_U_M, P = MC_U_P, S = MC_U_S,
    SPACE = MC_U_SPACE, NEWLINE = MC_U_NEWLINE, UPPER = MC_U_UPPER, LOWER = MC_U_LOWER,
    HAN = MC_U_HAN,
};

/* Categories of the character at i and its length; 0 at the end. */
static inline unsigned cat_at(const char *s, size_t i, size_t n, size_t *len)
{
    if (i >= n) {
        *len = 0;
        return 0;
    }
    *len = mc_utf8_len(s[i]);
    return mc_ucat(mc_utf8_get(s + i));
}

/* End of the run of characters from i on that have a category of set; at most max. */
static inline size_t run_max(const char *s, size_t i, size_t n, unsigned set, size_t max)
{
    size_t len;

    for (; max > 0 && cat_at(s, i, n, &len) & set; max--)
        i += len;
    return i;
}

static inline size_t run(const char *s, size_t i, size_t n, unsigned set)
{
    return run_max(s, i, n, set, SIZE_MAX);
}

static inline size_t run_not(const char *s, size_t i, size_t n, unsigned set)
{
    size_t len;
    unsigned cat;

    for (cat = cat_at(s, i, n, &len); cat && !(cat & set); cat = cat_at(s, i, n, &len))
        i += len;
    return i;
}

/* \s*[\r\n]+ when newlines is set, then \s+(?!\S)|\s+ : white space up to its last line
 * break; or all of it, but the last character where a word follows. */
static size_t white(const char *s, size_t n, bool newlines)
{
    size_t i = 0, last = 0, broken = 0, len;
    unsigned cat;

    for (cat = cat_at(s, 0, n, &len); cat & SPACE; cat = cat_at(s, i, n, &len)) {
        last = i;
        i += len;
        if (cat & NEWLINE)
            broken = i;
    }
    if (newlines && broken)
        return broken;
    return i == n || last == 0 ? i : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d ; with fold as (?i:), where U+017F is an s too. */
static size_t contraction(const char *s, size_t n, bool fold)
{
    char a, b;

    if (s[0] != '\'' || n < 2)
        return 0;
    a = s[1];
    b = n > 2 ? s[2] : 0;
    if (fold) {
        if (a == '\xc5' && b == '\xbf')
            return 3;
        a = (char)(a >= 'A' && a <= 'Z' ? a | 0x20 : a);
        b = (char)(b >= 'A' && b <= 'Z' ? b | 0x20 : b);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t gpt2(const char *s, size_t n)
{
    size_t i = contraction(s, n, false), len;
    unsigned cat;

    if (i)
        return i;
    i = s[0] == ' ';
    cat = cat_at(s, i, n, &len);
    if (cat & L)
        return run(s, i + len, n, L);
    if (cat & N)
        return run(s, i + len, n, N);
    if (cat && !(cat & SPACE))
        return run_not(s, i + len, n, SPACE | L | N);
    return white(s, n, false);
}

/*  ?[^\s LETTERS \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t marks_or_white(const char *s, size_t n, unsigned letters)
{
    size_t i = s[0] == ' ', len;
    unsigned cat = cat_at(s, i, n, &len);

    if (cat && !(cat & (SPACE | letters | N)))
        return run(s, run_not(s, i + len, n, SPACE | letters | N), n, NEWLINE);
    return white(s, n, true);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}
 * | ?[^\s LETTERS \p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * A mark that could be the optional first character is a letter where marks are letters:
 * the run is the same either way. */
static inline size_t words(const char *s, size_t n, size_t digits, unsigned letters)
{
    size_t i = contraction(s, n, true), len;
    unsigned cat;

    if (i)
        return i;
    cat = cat_at(s, 0, n, &len);
    if (cat & letters)
        return run(s, len, n, letters);
    if (cat & N)
        return run_max(s, len, n, N, digits - 1);
    if (!(cat & NEWLINE)) {
        i = run(s, len, n, letters);
        if (i > len)
            return i;
    }
    return marks_or_white(s, n, letters);
}

static size_t llama3(const char *s, size_t n)
{
    return words(s, n, 3, L);
}

static size_t qwen2(const char *s, size_t n)
{
    return words(s, n, 1, L);
}

static size_t qwen35(const char *s, size_t n)
{
    return words(s, n, 1, L | M);
}

/* \p{N}{1,3} */
static size_t number3(const char *s, size_t n)
{
    return run_max(s, 0, n, N, 3);
}

/* \p{N} */
static size_t number1(const char *s, size_t n)
{
    return run_max(s, 0, n, N, 1);
}

/* \p{N}+ */
static size_t number(const char *s, size_t n)
{
    return run(s, 0, n, N);
}

/* [0-9][0-9][0-9] */
static size_t ascii3(const char *s, size_t n)
{
    size_t i;

    for (i = 0; i < 3; i++)
        if (i == n || s[i] < '0' || s[i] > '9')
            return 0;
    return 3;
}

/* [\p{P}\$\+<=>\^~\|]+ : punctuation and all of ASCII's symbols but the backtick */
static size_t punctuation(const char *s, size_t n)
{
    size_t i = 0, len;
    unsigned cat = cat_at(s, 0, n, &len);

    while (cat & P || (cat & S && len == 1 && s[i] != '`')) {
        i += len;
        cat = cat_at(s, i, n, &len);
    }
    return i;
}

/* Han of the first blocks, Hiragana, Katakana: U+4E00-9FA5, U+3040-309F, U+30A0-30FF */
static size_t cjk(const char *s, size_t n)
{
    size_t i;
    uint32_t cp;

    for (i = 0; i < n; i += mc_utf8_len(s[i])) {
        cp = mc_utf8_get(s + i);
        if (!(cp >= 0x4e00 && cp <= 0x9fa5) && !(cp >= 0x3040 && cp <= 0x30ff))
            break;
    }
    return i;
}

/* [\r\n] */
static size_t line_end(const char *s, size_t n)
{
    (void)n;
    return s[0] == '\r' || s[0] == '\n';
}

/* \s?SET+ */
static inline size_t after_space(const char *s, size_t n, unsigned set)
{
    size_t len, i;

    i = cat_at(s, 0, n, &len) & SPACE ? len : 0;
    len = run(s, i, n, set);
    return len > i ? len : 0;
}

static size_t letters(const char *s, size_t n)
{
    return after_space(s, n, L);
}

static size_t marks(const char *s, size_t n)
{
    return after_space(s, n, P);
}

/* \s?[CASED]+, the letters of pretok_cased.c */
static size_t cased_letters(const char *s, size_t n)
{
    size_t len, i = cat_at(s, 0, n, &len) & SPACE ? len : 0, from = i;

    while (i < n && mc_pretok_cased(mc_utf8_get(s + i)))
        i += mc_utf8_len(s[i]);
    return i > from ? i : 0;
}

/* [!-/:-~ and the same of full width, U+2018-201F U+3000-3002] */
static bool listed_mark(uint32_t cp)
{
    if (cp >= 0xff01 && cp <= 0xff5e)
        cp -= 0xff01 - '!';
    return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '~') ||
           (cp >= 0x2018 && cp <= 0x201f) || (cp >= 0x3000 && cp <= 0x3002);
}

/* \s?MARKS+ */
static size_t listed_marks(const char *s, size_t n)
{
    size_t len, i = cat_at(s, 0, n, &len) & SPACE ? len : 0, from;

    if (i == n || !listed_mark(mc_utf8_get(s + i)))
        i = 0;
    for (from = i; i < n && listed_mark(mc_utf8_get(s + i));)
        i += mc_utf8_len(s[i]);
    return i > from ? i : 0;
}

/* \s+$ : where white space ends a piece. split() begins there, so that a run of it inside
 * is not looked at again and again. */
static size_t last_white(const char *s, size_t n)
{
    (void)s;
    return n;
}

static size_t where_last_white(const char *s, size_t n)
{
    size_t i = n, at, len;

    while (i > 0) {
        for (at = i - 1; at > 0 && (s[at] & 0xc0) == 0x80;)
            at--;
        if (!(cat_at(s, at, n, &len) & SPACE))
            break;
        i = at;
    }
    return i;
}

/* [U+4E00-9FA5 U+0800-4E00 U+AC00-D7FF]+ */
static size_t east(const char *s, size_t n)
{
    size_t i;
    uint32_t cp;

    for (i = 0; i < n; i += mc_utf8_len(s[i])) {
        cp = mc_utf8_get(s + i);
        if (!(cp >= 0x800 && cp <= 0x9fa5) && !(cp >= 0xac00 && cp <= 0xd7ff))
            break;
    }
    return i;
}

static bool ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 * | ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * The optional first character may be a mark itself: the run is the same either way. */
static size_t deepseek3(const char *s, size_t n)
{
    size_t i, len;
    unsigned cat = cat_at(s, 0, n, &len);

    if (cat & (P | S) && len == 1 && n > 1 && ascii_letter(s[1])) {
        for (i = 2; i < n && ascii_letter(s[i]); i++)
            continue;
        return i;
    }
    if (cat & (L | M))
        return run(s, len, n, L | M);
    if (!(cat & (NEWLINE | P | S))) {
        i = run(s, len, n, L | M);
        if (i > len)
            return i;
    }
    i = s[0] == ' ';
    if (cat_at(s, i, n, &len) & (P | S))
        return run(s, run(s, i + len, n, P | S), n, NEWLINE);
    return white(s, n, true);
}

/* A letter or mark of none of the categories `but`. */
static inline bool has_case(unsigned cat, unsigned but)
{
    return cat & (L | M) && !(cat & but);
}

/* U*W+ or else U+W*, where U has no lower and W no upper case: the end of the word that
 * starts at i, or i. Where no W follows the Us they give back down to their last W. */
static inline size_t cased_word(const char *s, size_t i, size_t n, unsigned never)
{
    size_t both = 0, len;
    unsigned cat, no_u = LOWER | never, no_w = UPPER | never;

    for (cat = cat_at(s, i, n, &len); has_case(cat, no_u); cat = cat_at(s, i, n, &len)) {
        i += len;
        if (!(cat & UPPER))
            both = i;
    }
    if (both && !has_case(cat, no_w))
        return both;
    for (; has_case(cat, no_w); cat = cat_at(s, i, n, &len))
        i += len;
    return i;
}

/* \p{N}{1,3}|PU*W+C|PU+W*C with P [^\r\n\p{L}\p{N}]?, U [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}],
 * W [\p{Ll}\p{Lm}\p{Lo}\p{M}], both without `never`, C (?i:'s|'t|'re|'ve|'m|'ll|'d)?
 * A mark that could be P is a W: the match is the same either way. */
static inline size_t number_or_cased(const char *s, size_t n, unsigned never)
{
    size_t i, len;
    unsigned cat = cat_at(s, 0, n, &len);

    if (cat & N)
        return run_max(s, len, n, N, 2);
    if (cat & NEWLINE)
        return 0;
    i = cat & (L | M) ? 0 : len;
    len = cased_word(s, i, n, never);
    return len > i ? len + (len < n ? contraction(s + len, n - len, true) : 0) : 0;
}

/* [\p{Han}]+|the above without Han| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t kimi(const char *s, size_t n)
{
    size_t len;

    if (cat_at(s, 0, n, &len) & HAN)
        return run(s, len, n, HAN);
    len = number_or_cased(s, n, HAN);
    return len ? len : marks_or_white(s, n, L);
}

/* The above| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t gpt4o(const char *s, size_t n)
{
    size_t i = number_or_cased(s, n, 0), len;
    unsigned cat = cat_at(s, s[0] == ' ', n, &len);

    if (i)
        return i;
    i = marks_or_white(s, n, L);
    if (cat && !(cat & (SPACE | L | N)))
        while (i < n && (s[i] == '/' || s[i] == '\r' || s[i] == '\n'))
            i++;
    return i;
}

#define WORDS(digits)                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits   \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *pattern;
    mc_pretok_rule rule;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     gpt2},
    {WORDS("{1,3}"), llama3}, /* Llama 3, GLM-4 and on */
    {WORDS(""), qwen2},
    {"\\p{N}{1,3}", number3}, /* this and the next two: DeepSeek-V3 */
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", cjk},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
     "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
     "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     deepseek3},
    {"[\\r\\n]", line_end}, /* this and the next three: DeepSeek-Coder */
    {"\\s?\\p{L}+", letters},
    {"\\s?\\p{P}+", marks},
    {"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", east},
};

/* As llama.cpp reads these names; `default` is what it does for files without one. */
static const struct {
    const char *name;
    mc_pretok_rule rule[6];
} named[] = {
    {"default", {punctuation, gpt2, number, ascii3}},
    {"gpt-2", {gpt2}}, {"gpt2", {gpt2}}, {"phi-2", {gpt2}}, {"olmo", {gpt2}},
    {"smollm", {number1, gpt2}}, {"starcoder", {number1, gpt2}},
    {"refact", {number1, gpt2}}, {"command-r", {number1, gpt2}},
    {"llama-bpe", {llama3}}, {"llama3", {llama3}}, {"llama-v3", {llama3}},
    {"chatglm-bpe", {llama3}}, {"glm4", {llama3}}, {"glm5", {llama3}},
    {"qwen2", {qwen2}}, {"deepseek-r1-qwen", {qwen2}}, {"qwen35", {qwen35}},
    {"deepseek-llm", {line_end, cased_letters, listed_marks, last_white, east, number1}},
    {"deepseek-v3", {number3, cjk, deepseek3}},
    {"deepseek-coder", {line_end, letters, marks, east, number1}},
    {"kimi-k2", {kimi}}, {"gpt-4o", {gpt4o}}, {"llama4", {gpt4o}},
};

static bool add(struct mc_pretok *p, mc_pretok_rule rule)
{
    if (p->n == MC_PRETOK_RULES)
        return false;
    p->rule[p->n++] = rule;
    return true;
}

/* Whether text is the pattern, reading a bare CR or LF in it as \r or \n. */
static bool same_pattern(const char *pattern, const char *text, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (text[i] == '\r' || text[i] == '\n') {
            if (*pattern++ != '\\' || *pattern++ != (text[i] == '\r' ? 'r' : 'n'))
                return false;
        } else if (*pattern == 0 || *pattern++ != text[i]) {
            return false;
        }
    }
    return *pattern == 0;
}

bool mc_pretok_add(struct mc_pretok *p, const char *pattern, size_t n)
{
    size_t i;

    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (same_pattern(known[i].pattern, pattern, n))
            return add(p, known[i].rule);
    return false;
}

bool mc_pretok_spell(const struct mc_pretok *p, int i, const char **pattern)
{
    *pattern = NULL;
    for (size_t j = 0; j < sizeof known / sizeof *known && !*pattern; j++)
        if (known[j].rule == p->rule[i])
            *pattern = known[j].pattern;
    return *pattern || p->rule[i] == number1;
}

bool mc_pretok_add_named(struct mc_pretok *p, const char *name, size_t n)
{
    size_t i, k;

    for (i = 0; i < sizeof named / sizeof *named; i++) {
        if (strlen(named[i].name) != n || memcmp(named[i].name, name, n) != 0)
            continue;
        for (k = 0; k < 6 && named[i].rule[k]; k++)
            if (!add(p, named[i].rule[k]))
                return false;
        return true;
    }
    return false;
}

bool mc_pretok_add_gpt2(struct mc_pretok *p)
{
    return add(p, gpt2);
}

bool mc_pretok_add_digits(struct mc_pretok *p, bool individual)
{
    return add(p, individual ? number1 : number);
}

/* Recursion is over rules, never over text. Stretches that no rule matches are pieces. */
static int split(const struct mc_pretok *p, int k, const char *s, size_t n,
                 mc_piece_fn piece, void *ctx)
{
    size_t i = 0, gap = 0, len;
    int rc = 0;

    if (n == 0)
        return 0;
    if (k == p->n)
        return piece(ctx, s, n);
    if (p->rule[k] == last_white)
        i = where_last_white(s, n);
    while (i < n && rc >= 0) {
        len = p->rule[k](s + i, n - i);
        if (len == 0) {
            i += mc_utf8_len(s[i]);
            continue;
        }
        rc = split(p, k + 1, s + gap, i - gap, piece, ctx);
        if (rc >= 0)
            rc = split(p, k + 1, s + i, len, piece, ctx);
        i += len;
        gap = i;
    }
    return rc < 0 ? rc : split(p, k + 1, s + gap, n - gap, piece, ctx);
}

int mc_pretok_split(const struct mc_pretok *p, const char *s, size_t n, mc_piece_fn piece,
                    void *ctx)
{
    return split(p, 0, s, n, piece, ctx);
}

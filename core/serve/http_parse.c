/* http_parse.c - request targets decoded, header fields checked.
 *
 * Owns nothing. THREAD: any.
 *
 * libmicrohttpd 0.9.75 lets through what two parsers may read differently (request
 * smuggling): several Content-Length, one beside Transfer-Encoding, codings other than
 * chunked, blanks before a colon, no Host or two. All of it is refused here; what takes
 * libmicrohttpd's pointers to see is in req.c. */
#include "core/serve/http_parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/utf8.h"

/* ---- targets ----------------------------------------------------------------------- */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes [s, end) to out with its NUL; returns the length, or -1 when an escape is
 * broken or the result is not text. */
static int decode(const char *s, const char *end, bool plus, char *out)
{
    char *to = out;

    for (; s < end; s++) {
        char c = *s;

        if ((unsigned char)c <= ' ')
            return -1;
        if (c == '%') {
            if (end - s < 3 || hex(s[1]) < 0 || hex(s[2]) < 0)
                return -1;
            c = (char)(hex(s[1]) << 4 | hex(s[2]));
            s += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        if ((unsigned char)c < 0x20 || c == 0x7F)
            return -1;
        *to++ = c;
    }
    *to = 0;
    return mc_utf8_valid(out, (size_t)(to - out)) ? (int)(to - out) : -1;
}

static int malformed(struct mc_err *err)
{
    return mc_fail(err, MC_EARG, "the request target is malformed");
}

/* What follows scheme and authority, which a client that takes us for a proxy sends. */
static const char *origin_form(const char *raw)
{
    if (strncasecmp(raw, "http://", 7) != 0)
        return raw;
    raw += 7 + strcspn(raw + 7, "/?");
    return *raw == '/' ? raw : "/";
}

enum { QUERY_MAX = 256 };

/* "a=1&b": pairs; to has room for two NULs a pair besides their text. */
static int parse_query(struct mc_target *t, const char *s, char *to, struct mc_err *err)
{
    size_t n = 1;

    for (const char *p = s; *p; p++)
        n += *p == '&';
    if (n > QUERY_MAX)
        return mc_fail(err, MC_EARG,
                       "the request target has %zu query arguments, more than %d", n,
                       QUERY_MAX);
    t->query = calloc(n, sizeof *t->query);
    if (!t->query)
        return mc_fail(err, MC_ENOMEM, "no memory for a query");
    while (*s) {
        const char *end = s + strcspn(s, "&"), *eq = memchr(s, '=', (size_t)(end - s));
        int key = decode(s, eq ? eq : end, true, to);
        int value = key < 0 ? -1 : decode(eq ? eq + 1 : end, end, true, to + key + 1);

        if (value < 0)
            return malformed(err);
        if (end > s)
            t->query[t->n_query++] = (struct mc_pair){to, to + key + 1};
        to += key + value + 2;
        s = *end ? end + 1 : end;
    }
    return 0;
}

/* Decoded text is never longer than raw; a pair's two NULs find their place in its
 * separator and in the second half of mem. */
int mc_target_parse(struct mc_target *t, const char *raw, struct mc_err *err)
{
    const char *target = origin_form(raw), *query = strchr(target, '?');
    const char *end = query ? query : target + strlen(target);
    int n;

    *t = (struct mc_target){.path = ""};
    t->mem = malloc(2 * strlen(target) + 8);
    if (!t->mem)
        return mc_fail(err, MC_ENOMEM, "no memory for a request");
    n = decode(target, end, false, t->mem);
    if (n < 0 || (*t->mem != '/' && strcmp(t->mem, "*") != 0))
        return malformed(err);
    t->path = t->mem;
    return query ? parse_query(t, query + 1, t->mem + n + 1, err) : 0;
}

void mc_target_free(struct mc_target *t)
{
    free(t->query);
    free(t->mem);
    *t = (struct mc_target){.path = ""};
}

/* ---- fields ------------------------------------------------------------------------ */

bool mc_is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
            return false;
    return true;
}

static bool is_value(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7F)
            return false;
    return true;
}

bool mc_is_request_id(const char *s, size_t max)
{
    if (!*s || strlen(s) > max)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-_.:/+=", *s))
            return false;
    return true;
}

static int bad(struct mc_err *err, const char *why)
{
    return mc_fail(err, MC_EARG, "the request's header is malformed: %s", why);
}

int mc_fields_check(const struct mc_pair *field, int n, const char *version,
                    uint64_t *declared, struct mc_err *err)
{
    const char *length = NULL, *coding = NULL;
    int n_host = 0;

    *declared = 0;
    for (int i = 0; i < n; i++) {
        bool is_length = strcasecmp(field[i].key, "content-length") == 0;
        bool is_coding = strcasecmp(field[i].key, "transfer-encoding") == 0;

        if (!mc_is_token(field[i].key))
            return bad(err, "a field's name");
        if (!is_value(field[i].value))
            return bad(err, "a field's value");
        if ((is_length && length) || (is_coding && coding))
            return bad(err, "content-length or transfer-encoding given twice");
        n_host += strcasecmp(field[i].key, "host") == 0;
        length = is_length ? field[i].value : length;
        coding = is_coding ? field[i].value : coding;
    }
    if (n_host > 1 || (n_host == 0 && strcmp(version, "HTTP/1.1") == 0))
        return bad(err, n_host ? "host given twice" : "host is missing");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return bad(err, "transfer-encoding other than chunked");
    if (coding && length)
        return bad(err, "content-length beside transfer-encoding");
    if (coding && strcmp(version, "HTTP/1.1") != 0)
        return bad(err, "transfer-encoding before HTTP/1.1");
    if (!length)
        return 0;
    if (*length == 0 || strspn(length, "0123456789") != strlen(length) ||
        strlen(length) > 19)
        return bad(err, "content-length");
    *declared = strtoull(length, NULL, 10);
    return 0;
}

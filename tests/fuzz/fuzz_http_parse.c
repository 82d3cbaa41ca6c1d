/* fuzz_http_parse.c - request targets and header fields: the first line is a target, the rest
 * are "name:value" lines. What is accepted must be text, and must not be ambiguous. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/utf8.h"
#include "core/serve/http_parse.h"

int mc_fuzz(const uint8_t *data, size_t n);

static void is_text(const char *s)
{
    assert(mc_utf8_valid(s, strlen(s)));
    for (; *s; s++)
        assert((unsigned char)*s >= 0x20 && *s != 0x7F);
}

static void fuzz_target(const char *raw)
{
    struct mc_target t;

    if (mc_target_parse(&t, raw, NULL) == 0) {
        assert(t.path[0] == '/' || strcmp(t.path, "*") == 0);
        is_text(t.path);
        for (int i = 0; i < t.n_query; i++) {
            is_text(t.query[i].key);
            is_text(t.query[i].value);
        }
    }
    mc_target_free(&t);
}

static void fuzz_fields(char *s)
{
    struct mc_pair field[64];
    uint64_t declared;
    int n = 0, n_framing = 0;
    bool has_host = false;

    while (n < 63 && *s) {
        char *end = s + strcspn(s, "\n"), *colon = memchr(s, ':', (size_t)(end - s));

        if (!colon)
            break;
        *colon = 0;
        has_host |= strcasecmp(s, "host") == 0;
        field[n++] = (struct mc_pair){s, colon + 1};
        s = *end ? end + 1 : end;
        *end = 0;
    }
    if (!has_host) /* or all would be refused for that */
        field[n++] = (struct mc_pair){"host", "x"};
    if (mc_fields_check(field, n, "HTTP/1.1", &declared, NULL) < 0)
        return;
    for (int i = 0; i < n; i++) {
        assert(mc_is_token(field[i].key));
        n_framing += strcasecmp(field[i].key, "content-length") == 0 ||
                     strcasecmp(field[i].key, "transfer-encoding") == 0;
        if (mc_is_request_id(field[i].value, 63))
            is_text(field[i].value);
    }
    assert(n_framing <= 1);
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    char *s = malloc(n + 1), *line;

    if (!s)
        return 0;
    memcpy(s, data, n);
    s[n] = 0;
    line = strchr(s, '\n');
    if (line)
        *line = 0;
    fuzz_target(s);
    if (line)
        fuzz_fields(line + 1);
    free(s);
    return 0;
}

/* tokenizer_tiktoken.c - Kimi's tokenizer: tiktoken.model and tokenizer_config.json.
 *
 * Owns what it builds until it hands it out. THREAD: any.
 * tiktoken.model has a line for each token: its bytes in base64, a space, its rank, which
 * is its id. It lists no merges: two neighbours that together are a token may merge, the
 * lowest rank first; so each way to cut a token into two tokens is a merge with the
 * token's rank. After the base tokens come 256 slots, named by added_tokens_decoder or
 * else after their id. The pattern is not in any file but in the vendor's code.
 * The file is hostile: base64 is checked, ranks are 0 to n - 1 once each, no two tokens
 * have the same bytes, every byte has a token. */
#include "core/model/tokenizer_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_ADDED = 256,
    TOKEN_MAX = 1024, /* bytes; cutting a token every way costs their square */
};

static int sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* n characters of padded base64 at s, decoded into out (3 bytes for each 4); false when
 * they are none. */
static bool decode64(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t i, j, pad = 0;
    uint32_t bits;
    int v;

    *n_out = 0;
    if (n == 0 || n % 4 != 0)
        return false;
    while (pad < 2 && s[n - 1 - pad] == '=')
        pad++;
    for (i = 0; i < n; i += 4) {
        for (bits = 0, j = i; j < i + 4; j++) {
            v = j < n - pad ? sextet(s[j]) : 0;
            if (v < 0)
                return false;
            bits = bits << 6 | (uint32_t)v;
        }
        for (j = 0; j < 3; j++)
            out[(*n_out)++] = (char)(bits >> (16 - 8 * j));
    }
    *n_out -= pad;
    return true;
}

/* Digits only, at most nine of them; -1. */
static int64_t decimal(const char *s, size_t n)
{
    int64_t v = 0;
    size_t i;

    if (n == 0 || n > 9)
        return -1;
    for (i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        v = v * 10 + (s[i] - '0');
    }
    return v;
}

static const char *line_end(const char *s, const char *end)
{
    const char *nl = memchr(s, '\n', (size_t)(end - s));

    return nl ? nl : end;
}

static int64_t count_lines(const char *s, const char *end)
{
    const char *stop;
    int64_t n = 0;

    for (; s < end; s = stop + 1) {
        stop = line_end(s, end);
        n += stop > s;
    }
    return n;
}

static int read_line(struct mc_tok *t, const char *s, size_t n, int64_t n_base,
                     char *bytes, struct mc_err *err)
{
    const char *space = memchr(s, ' ', n);
    size_t n_bytes = 0, used = space ? (size_t)(space - s) : 0;
    int64_t rank = space ? decimal(space + 1, n - used - 1) : -1;
    char quoted[MC_QUOTE];

    if (rank < 0 || !decode64(s, used, bytes, &n_bytes))
        return mc_fail(err, MC_EFORMAT, "\"%s\" is not base64, a space and a rank",
                       mc_quote(quoted, s, n));
    if (rank >= n_base)
        return mc_fail(err, MC_EFORMAT, "rank %lld, but there are only %lld tokens",
                       (long long)rank, (long long)n_base);
    if (n_bytes > TOKEN_MAX)
        return mc_fail(err, MC_EFORMAT, "token %lld has %zu bytes, more than %d",
                       (long long)rank, n_bytes, TOKEN_MAX);
    return mc_tok_put(t, rank, bytes, n_bytes, MC_TOKEN_TEXT, err);
}

static int read_base(struct mc_tok *t, const char *s, size_t n, int64_t n_base,
                     struct mc_err *err)
{
    const char *end = s + n, *stop;
    char *bytes = malloc(n + 1);
    int64_t row = 0;
    int rc = 0;

    if (!bytes)
        return mc_fail(err, MC_ENOMEM, "no memory for the vocabulary");
    for (; s < end && rc == 0; s = stop + 1) {
        stop = line_end(s, end);
        row++;
        if (stop > s)
            rc = read_line(t, s, (size_t)(stop - s), n_base, bytes, err);
    }
    free(bytes);
    return rc < 0 ? mc_err_while(err, "reading line %lld", (long long)row) : 0;
}

static int put_added(struct mc_tok *t, int64_t id, const struct mc_added_json *a,
                     struct mc_err *err)
{
    int rc = mc_tok_put(t, id, a->content, a->n, a->kind, err);

    return rc < 0 ? rc : mc_added_put(t, (int32_t)id, a->flags, err);
}

static int read_added(struct mc_tok *t, const json_t *config, int64_t n_base,
                      struct mc_err *err)
{
    const json_t *named = json_object_get(config, "added_tokens_decoder"), *a;
    struct mc_added_json added;
    char name[48], quoted[MC_QUOTE];
    const char *key;
    int64_t id;
    int rc = 0;

    if (named && !json_is_object(named))
        return mc_fail(err, MC_EFORMAT, "added_tokens_decoder is %s, not an object",
                       mc_json_kind(named));
    json_object_foreach((json_t *)named, key, a) {
        id = decimal(key, strlen(key));
        if (id < n_base)
            rc = mc_fail(err, MC_EFORMAT, "\"%s\" is not the id of an added token: these "
                         "start at %lld", mc_quote(quoted, key, strlen(key)),
                         (long long)n_base);
        else
            rc = mc_added_read(a, &added, err);
        if (rc == 0)
            rc = put_added(t, id, &added, err);
        if (rc < 0)
            return mc_err_while(err, "reading added_tokens_decoder");
    }
    added = (struct mc_added_json){.content = name, .kind = MC_TOKEN_CONTROL};
    for (id = n_base; id < n_base + N_ADDED && rc == 0; id++) {
        if (t->token[id].kind != MC_TOKEN_NONE)
            continue;
        added.n = (size_t)snprintf(name, sizeof name, "<|reserved_token_%lld|>",
                                   (long long)id);
        rc = put_added(t, id, &added, err);
    }
    return rc < 0 ? rc : mc_added_seal(t, err);
}

/* Every byte is a token, and every token is the one with its bytes. */
static int check_base(const struct mc_tok *t, int64_t n_base, struct mc_err *err)
{
    const struct mc_token *k;
    int32_t id;
    int b;

    for (b = 0; b < 256; b++)
        if (t->byte_id[b] < 0)
            return mc_fail(err, MC_EFORMAT, "byte 0x%02x has no token", (unsigned)b);
    for (id = 0; id < n_base; id++) {
        k = &t->token[id];
        if (mc_tok_text_id(t, t->text + k->off, k->len) != id)
            return mc_fail(err, MC_EFORMAT, "tokens %d and %d have the same bytes", id,
                           mc_tok_text_id(t, t->text + k->off, k->len));
    }
    return 0;
}

/* Calls mc_bpe_pair for each way to cut a base token into two, or only counts them. */
static size_t merges(struct mc_tok *t, int64_t n_base, bool count_only)
{
    const char *s;
    int32_t id, left, right;
    uint32_t cut, len;
    size_t n = 0;

    for (id = 0; id < n_base; id++) {
        s = t->text + t->token[id].off;
        len = t->token[id].len;
        for (cut = 1; cut < len; cut++) {
            left = mc_tok_text_id(t, s, cut);
            right = left < 0 ? -1 : mc_tok_text_id(t, s + cut, len - cut);
            if (right < 0)
                continue;
            n++;
            if (!count_only)
                mc_bpe_pair(t, (uint32_t)id, left, right, id);
        }
    }
    return n;
}

static int build(struct mc_tok *t, const char *text, size_t n, int64_t n_base,
                 const json_t *config, struct mc_err *err)
{
    int rc = read_base(t, text, n, n_base, err);

    t->ignore_merges = t->chunked = true;
    mc_pretok_add_named(&t->pretok, "kimi-k2", 7);
    if (rc == 0)
        rc = read_added(t, config, n_base, err);
    if (rc == 0)
        rc = mc_tok_seal(t, err);
    if (rc == 0)
        rc = check_base(t, n_base, err);
    if (rc == 0)
        rc = mc_bpe_reserve(t, merges(t, n_base, true), err);
    if (rc < 0)
        return mc_err_while(err, "reading tiktoken.model");
    merges(t, n_base, false);
    return mc_tok_configure(t, config, err);
}

int mc_tok_from_tiktoken(const char *text, size_t n, const json_t *config,
                         struct mc_tok **out, struct mc_err *err)
{
    int64_t n_base = count_lines(text, text + n);
    struct mc_tok *t = NULL;
    int rc = mc_tok_new((size_t)n_base + N_ADDED, &t, err);

    *out = NULL;
    if (rc == 0)
        rc = build(t, text, n, n_base, config, err);
    if (rc < 0) {
        mc_tok_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

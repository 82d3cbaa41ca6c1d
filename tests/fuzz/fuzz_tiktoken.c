/* fuzz_tiktoken.c - tiktoken.model, a NUL, tokenizer_config.json; what opens must encode
 * without loss, and never make a control token of plain text.
 *
 * Unless the input starts with '!' the lines of the 256 bytes are put in front, so that
 * mutation reaches what lies behind. Owns nothing. THREAD: main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/tokenizer_int.h"

int mc_fuzz(const uint8_t *data, size_t n);

/* Plain text comes back whole; lstrip and rstrip let control tokens swallow some. */
static void encode(const struct mc_tok *t, const char *text, size_t n, unsigned flags)
{
    struct mc_ids ids = {0};
    size_t i, len, at = 0;
    const char *p;
    bool special;

    if (mc_tok_encode(t, text, n, flags, &ids, NULL) < 0)
        abort();
    for (i = 0; i < ids.n; i++) {
        p = mc_tok_piece(t, ids.v[i], &len, &special);
        if (len == 0)
            abort();
        if (!flags && (special || len > n - at || memcmp(p, text + at, len) != 0))
            abort();
        at += len;
    }
    if (!flags && at != n)
        abort();
    mc_ids_free(&ids);
}

static size_t bytes_lines(char *out)
{
    static const char c[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t used = 0;
    int b;

    for (b = 0; b < 256; b++)
        used += (size_t)sprintf(out + used, "%c%c== %d\n", c[b >> 2], c[(b & 3) << 4], b);
    return used;
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    static const char text[] =
        "abac bac  <s>ab <think> xyz CAb's 1234 \u00e4\u0301\u0323\r\n \u6f22\u5b57 \x01 <s";
    const uint8_t *nul = memchr(data, 0, n);
    size_t n_model = nul ? (size_t)(nul - data) : n, head, skip;
    json_t *config = NULL;
    struct mc_tok *t = NULL;
    struct mc_err err;
    char *model = malloc(n_model + 8192);
    int rc;

    skip = n_model > 0 && data[0] == '!';
    head = skip ? 0 : bytes_lines(model);
    memcpy(model + head, data + skip, n_model - skip);
    if (nul)
        config = json_loadb((const char *)nul + 1, n - n_model - 1, 0, NULL);
    rc = mc_tok_from_tiktoken(model, head + n_model - skip, config, &t, &err);
    free(model);
    json_decref(config);
    if (rc < 0)
        return err.code == rc && err.text[0] ? 0 : 1;
    encode(t, text, sizeof text - 1, 0);
    encode(t, text, sizeof text - 1, MC_TOK_SPECIAL);
    mc_tok_close(t);
    return 0;
}

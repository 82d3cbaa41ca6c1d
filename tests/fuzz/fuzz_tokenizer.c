/* fuzz_tokenizer.c - tokenizer.json bytes, then maybe a NUL and tokenizer_config.json; what
 * opens must encode and give its pieces.
 *
 * Owns nothing. THREAD: main. */
#include <stdlib.h>
#include <string.h>

#include "core/model/tokenizer_int.h"

int mc_fuzz(const uint8_t *data, size_t n);

static void encode(const struct mc_tok *t, const char *text, size_t n)
{
    struct mc_ids ids = {0};
    size_t i, len;
    bool special;

    if (mc_tok_encode(t, text, n, MC_TOK_SPECIAL | MC_TOK_BOS, &ids, NULL) < 0)
        abort();
    for (i = 0; i < ids.n; i++) {
        if (ids.v[i] < 0 || ids.v[i] >= mc_tok_n(t))
            abort();
        mc_tok_piece(t, ids.v[i], &len, &special);
    }
    ids.n = 0;
    if (mc_tok_encode(t, text, n, 0, &ids, NULL) < 0)
        abort();
    for (i = 0; i < ids.n; i++) { /* plain text is never control */
        mc_tok_piece(t, ids.v[i], &len, &special);
        if (special && ids.v[i] != t->unk)
            abort();
    }
    mc_ids_free(&ids);
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    static const char text[] =
        "abac bac  <s>ab <think> xyz cab's 1234 \u00e4\u0301\u0323\r\n \u6f22\u5b57 \x01 <s";
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_json = nul ? (size_t)(nul - data) : n;
    json_t *config = nul ? json_loadb((const char *)nul + 1, n - n_json - 1, 0, NULL)
                         : NULL;
    struct mc_tok *t = NULL;
    struct mc_err err;
    char whole[sizeof text];
    int rc = mc_tok_from_json((const char *)data, n_json, config, &t, &err);

    json_decref(config);
    if (rc < 0)
        return err.code == rc && err.text[0] ? 0 : 1;
    memcpy(whole, text, sizeof text);
    encode(t, whole, sizeof text - 1);
    encode(t, whole, 0);
    mc_tok_close(t);
    return 0;
}

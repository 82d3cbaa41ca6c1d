/* fuzz_gguf.c - any bytes as a GGUF: metadata, tensors, matrices, a configuration, a
 * tokenizer that encodes. */
#include "core/model/tokenizer_int.h"
#include "tests/fuzz/ckpt_fuzz.h"

int mc_fuzz(const uint8_t *data, size_t n);

static void ask_key(const struct mc_gguf *g, const char *key)
{
    uint64_t u, count = 0;
    const char *s;
    int32_t i;
    size_t n;
    double d;
    float f;
    bool b;

    mc_gguf_u64(g, key, &u);
    mc_gguf_f64(g, key, &d);
    mc_gguf_bool(g, key, &b);
    if (mc_gguf_str(g, key, &s, &n) && n > 0 && s[0] == s[n - 1] && s[0] == 1)
        return; /* touches both ends */
    mc_gguf_arr_n(g, key, &count);
    for (uint64_t k = 0; k < count + 2; k++) {
        if (mc_gguf_arr_str(g, key, k, &s, &n) && n > 0 && s[0] == s[n - 1] && s[0] == 1)
            return;
        mc_gguf_arr_i32(g, key, k, &i);
        mc_gguf_arr_f32(g, key, k, &f);
    }
}

static void ask_tokenizer(const struct mc_gguf *g)
{
    static const char text[] = "ab  a<s>b 12\r\n\n x\xe6\xbc\xa2\xe2\x96\x81 's ";
    struct mc_tok *t = NULL;
    struct mc_ids ids = {0};
    struct mc_err err = {0};
    bool special;
    size_t n;

    if (mc_tok_from_gguf(g, &t, &err) < 0)
        return;
    if (mc_tok_encode(t, text, sizeof text - 1, MC_TOK_SPECIAL | MC_TOK_BOS, &ids, NULL) <
        0)
        abort();
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.v[i] < 0 || ids.v[i] >= mc_tok_n(t))
            abort();
        mc_tok_piece(t, ids.v[i], &n, &special);
    }
    mc_ids_free(&ids);
    mc_tok_close(t);
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    static const char *const keys[] = {
        "general.architecture", "general.alignment", "llama.block_count", "split.count",
        "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
        "tokenizer.ggml.add_bos_token", "none"};
    struct mc_ckpt *c = ckpt_of(MC_CKPT_GGUF, data, n);
    struct mc_config m;
    struct mc_err err = {0};

    if (mc_gguf_read(c, 0, &err) == 0 && mc_ckpt_sort(c, &err) == 0) {
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            ask_key(c->gguf, keys[i]);
        mc_config_load(c, &m, &err);
        ask_tensors(c);
        ask_tokenizer(c->gguf);
    }
    ckpt_free(c);
    return 0;
}

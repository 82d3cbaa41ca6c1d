/* test_tokenizer_gguf.c - tokenizers in GGUF metadata: what is understood, and every kind
 * of broken or foreign vocabulary, refused by name. */
#include "tests/c/test.h"

#include <math.h>
#include <string.h>

#include "core/model/tokenizer_int.h"
#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* Metadata of a GGUF file under construction. */
struct meta {
    uint8_t p[1 << 14];
    size_t n;
    uint64_t n_key;
};

static char *dir;

static int setup(void **state)
{
    (void)state;
    dir = tmp_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tmp_free(dir);
    return 0;
}

static void put(struct meta *m, const void *p, size_t n)
{
    assert_true(m->n + n <= sizeof m->p);
    memcpy(m->p + m->n, p, n);
    m->n += n;
}

static void put_u32(struct meta *m, uint32_t v)
{
    put(m, &v, 4);
}

static void put_str(struct meta *m, const char *s)
{
    uint64_t n = strlen(s);

    put(m, &n, 8);
    put(m, s, n);
}

static void key(struct meta *m, const char *name, uint32_t type)
{
    put_str(m, name);
    put_u32(m, type);
    m->n_key++;
}

static void text(struct meta *m, const char *name, const char *s)
{
    key(m, name, STRING);
    put_str(m, s);
}

static void number(struct meta *m, const char *name, uint32_t v)
{
    key(m, name, U32);
    put_u32(m, v);
}

static void flag(struct meta *m, const char *name, bool v)
{
    key(m, name, BOOL);
    put(m, &v, 1);
}

/* A list of n elements of 4 bytes, or of strings. */
static void list(struct meta *m, const char *name, uint32_t type, const void *v,
                 uint64_t n)
{
    const char *const *s = v;
    uint64_t i;

    key(m, name, ARRAY);
    put_u32(m, type);
    put(m, &n, 8);
    if (type != STRING)
        put(m, v, 4 * n);
    for (i = 0; type == STRING && i < n; i++)
        put_str(m, s[i]);
}

static int open_meta(const struct meta *m, struct mc_tok **t, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    uint64_t zero = 0;
    uint32_t version = 3;
    FILE *f = fopen(tmp_path(dir, "t.gguf"), "wb");
    int rc;

    fwrite("GGUF", 1, 4, f);
    fwrite(&version, 4, 1, f);
    fwrite(&zero, 8, 1, f);
    fwrite(&m->n_key, 8, 1, f);
    fwrite(m->p, 1, m->n, f);
    fclose(f);
    assert_ok(mc_ckpt_open(tmp_path(dir, "t.gguf"), &c, err), *err);
    rc = mc_tok_open(c, t, err);
    mc_ckpt_close(c);
    return rc;
}

static void refused(const struct meta *m, int code, const char *says)
{
    struct mc_tok *t = NULL;
    struct mc_err err;
    int rc = open_meta(m, &t, &err);

    if (rc >= 0)
        fail_msg("accepted; expected: %s", says);
    assert_null(t);
    if (rc != code || !strstr(err.text, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", mc_code_name(rc), err.text, says);
}

#define T "tokenizer.ggml."
static const char *const bpe_token[] = {"a", "b", "ab", "<s>", "\xc4\xa0", "<t>", "pad"};
static const int32_t bpe_type[] = {1, 1, 1, 3, 1, 4, 5};
static const char *const bpe_merge[] = {"a b"};

static void bpe_tokens(struct meta *m)
{
    text(m, T "model", "gpt2");
    list(m, T "tokens", STRING, bpe_token, 7);
    list(m, T "token_type", I32, bpe_type, 7);
}

static void bpe(struct meta *m, const char *pre)
{
    bpe_tokens(m);
    list(m, T "merges", STRING, bpe_merge, 1);
    text(m, T "pre", pre);
}

static void same(const struct mc_tok *t, const char *s, unsigned flags, const char *want)
{
    struct mc_ids ids = {0};
    char got[128] = "";
    size_t i, n = 0;

    assert_int_equal(mc_tok_encode(t, s, strlen(s), flags, &ids, NULL), 0);
    for (i = 0; i < ids.n; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%d", i ? " " : "", ids.v[i]);
    mc_ids_free(&ids);
    assert_string_equal(got, want);
}

static void gguf_token_types_decide_what_text_may_become(void **state)
{
    struct meta m = {0};
    struct mc_tok *t;
    struct mc_err err;
    size_t n;
    bool special;

    (void)state;
    bpe(&m, "gpt-2");
    number(&m, T "bos_token_id", 3);
    flag(&m, T "add_bos_token", true);
    assert_ok(open_meta(&m, &t, &err), err);
    same(t, "ab<s><t> b", MC_TOK_SPECIAL | MC_TOK_BOS, "3 2 3 5 4 1");
    same(t, "ab<s>", 0, "2");
    assert_int_equal(mc_tok_n(t), 6); /* what is unused is no token */
    mc_tok_piece(t, 3, &n, &special);
    assert_true(special);
    mc_tok_piece(t, 5, &n, &special);
    assert_false(special);
    mc_tok_piece(t, 6, &n, &special);
    assert_int_equal(n, 0);
    mc_tok_close(t);
}

static void gguf_pre_names_are_known_or_refused(void **state)
{
    static const char *const known[] = {"smollm", "llama-bpe", "llama3", "qwen2", "gpt-2", "gpt2",
                                        "default", "deepseek-v3", "deepseek-coder",
                                        "deepseek-r1-qwen", "chatglm-bpe", "glm4", "glm5",
                                        "kimi-k2", "deepseek-llm", "qwen35", "llama4", "gpt-4o"};
    static const char *const foreign[] = {"tekken", "llama", "smollm2", ""};
    struct mc_tok *t;
    struct mc_err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof known / sizeof *known; i++) {
        struct meta m = {0};

        bpe(&m, known[i]);
        flag(&m, T "add_bos_token", false);
        assert_ok(open_meta(&m, &t, &err), err);
        same(t, "ab", 0, "2");
        mc_tok_close(t);
    }
    for (i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        struct meta m = {0};

        bpe(&m, foreign[i]);
        refused(&m, MC_EUNSUP, foreign[i]);
    }
}

static void gguf_llamas_space_prefix_and_bytes(void **state)
{
    static const char *const token[] = {"<unk>", "<s>", "</s>", "<0x41>", "\xe2\x96\x81", "b",
                                        "\xe2\x96\x81""b"};
    static const int32_t type[] = {2, 3, 3, 6, 1, 1, 1};
    static const float score[] = {0, 0, 0, 0, -3, -2, -1};
    int with;

    (void)state;
    for (with = 0; with < 2; with++) {
        struct meta m = {0};
        struct mc_tok *t;
        struct mc_err err;

        text(&m, T "model", "llama");
        list(&m, T "tokens", STRING, token, 7);
        list(&m, T "token_type", I32, type, 7);
        list(&m, T "scores", F32, score, 7);
        flag(&m, T "add_space_prefix", with);
        assert_ok(open_meta(&m, &t, &err), err);
        same(t, "b", 0, with ? "6" : "5");
        same(t, "bAz b", MC_TOK_BOS, with ? "1 6 3 0 6" : "1 5 3 0 6");
        same(t, "b</s>b", MC_TOK_SPECIAL, with ? "6 2 6" : "5 2 5");
        same(t, "", 0, "");
        mc_tok_close(t);
    }
}

static void gguf_refuses_broken_vocabularies(void **state)
{
    static const char *const bad_merge[] = {"a b", "ab"}, *const far_merge[] = {"b a"};
    static const int32_t bad_type[] = {1, 1, 1, 3, 1, 4, 9}, byte_type[] = {6, 1, 1, 3, 1, 4, 5};
    static const float nan_score[] = {0, 0, 0, NAN, 0, 0, 0};
    struct meta m = {0};

    (void)state;
    refused(&m, MC_EFORMAT, "no tokenizer");
    text(&m, T "model", "bert");
    refused(&m, MC_EUNSUP, "\"bert\"");

    m = (struct meta){0};
    text(&m, T "model", "gpt2");
    refused(&m, MC_EFORMAT, "tokens is missing");
    list(&m, T "tokens", I32, bpe_type, 7);
    refused(&m, MC_EFORMAT, "tokens is not a list of strings");

    m = (struct meta){0};
    bpe_tokens(&m);
    refused(&m, MC_EFORMAT, "merges is missing");
    list(&m, T "merges", STRING, bad_merge, 2);
    refused(&m, MC_EFORMAT, "merges[1]");

    m = (struct meta){0};
    bpe_tokens(&m);
    list(&m, T "merges", STRING, far_merge, 1);
    refused(&m, MC_EFORMAT, "merge 0 names a token");

    m = (struct meta){0};
    text(&m, T "model", "gpt2");
    list(&m, T "tokens", STRING, bpe_token, 7);
    list(&m, T "token_type", I32, bpe_type, 6);
    refused(&m, MC_EFORMAT, "token_type has no integer 6");

    m = (struct meta){0};
    text(&m, T "model", "gpt2");
    list(&m, T "tokens", STRING, bpe_token, 7);
    list(&m, T "token_type", I32, bad_type, 7);
    refused(&m, MC_EFORMAT, "token_type[6] is 9");

    m = (struct meta){0};
    text(&m, T "model", "llama");
    list(&m, T "tokens", STRING, bpe_token, 7);
    list(&m, T "token_type", I32, byte_type, 7);
    refused(&m, MC_EFORMAT, "byte token 0 is \"a\"");

    m = (struct meta){0};
    text(&m, T "model", "llama");
    list(&m, T "tokens", STRING, bpe_token, 7);
    refused(&m, MC_EFORMAT, "scores has no number 0");
    list(&m, T "scores", F32, nan_score, 7);
    refused(&m, MC_EFORMAT, "score 3 is not a number");
}

static void gguf_refuses_bad_special_ids(void **state)
{
    struct meta m = {0};

    (void)state;
    bpe(&m, "gpt-2");
    number(&m, T "bos_token_id", 6);
    refused(&m, MC_EFORMAT, "bos_token_id is not the id of a token (0 to 5)");

    m = (struct meta){0};
    bpe(&m, "gpt-2");
    text(&m, T "eos_token_id", "3");
    refused(&m, MC_EFORMAT, "eos_token_id");

    m = (struct meta){0};
    bpe(&m, "gpt-2");
    flag(&m, T "add_bos_token", true);
    refused(&m, MC_EFORMAT, "add_bos_token is true");

    m = (struct meta){0};
    bpe(&m, "gpt-2");
    number(&m, T "add_bos_token", 1);
    refused(&m, MC_EFORMAT, "add_bos_token is not a boolean");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(gguf_token_types_decide_what_text_may_become, setup,
                                    teardown),
    cmocka_unit_test_setup_teardown(gguf_pre_names_are_known_or_refused, setup, teardown),
    cmocka_unit_test_setup_teardown(gguf_llamas_space_prefix_and_bytes, setup, teardown),
    cmocka_unit_test_setup_teardown(gguf_refuses_broken_vocabularies, setup, teardown),
    cmocka_unit_test_setup_teardown(gguf_refuses_bad_special_ids, setup, teardown),
};
MC_TEST_MAIN(tests)

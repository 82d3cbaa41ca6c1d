/* test_tokenizer_tiktoken.c - tiktoken.model: what is understood, and every kind of broken
 * file refused by name. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/tokenizer_int.h"

static const char alphabet[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* 256 lines, one a byte, and then `more`. */
static char *file_of(const char *more)
{
    char *s = malloc(8192 + strlen(more)), *p = s;
    int b;

    for (b = 0; b < 256; b++)
        p += sprintf(p, "%c%c== %d\n", alphabet[b >> 2], alphabet[(b & 3) << 4], b);
    strcpy(p, more);
    return s;
}

static int open_text(const char *text, const char *config, struct mc_tok **t,
                     struct mc_err *err)
{
    json_t *c = config ? json_loads(config, 0, NULL) : NULL;
    int rc = mc_tok_from_tiktoken(text, strlen(text), c, t, err);

    assert_true(!config || c);
    json_decref(c);
    return rc;
}

static void tiktoken_merges_the_lowest_rank_first(void **state)
{
    /* bc 256, ab 257, abc 258, "abcd" 259: reachable by no merge, but a whole piece */
    char *text = file_of("YmM= 256\nYWI= 257\n\nYWJj 258\nYWJjZA== 259");
    static const struct {
        const char *text;
        int n;
        int32_t id[4];
    } rows[] = {
        {"abc", 1, {258}}, {"abcd", 1, {259}}, {"xab", 2, {'x', 257}},
        {"xabc", 2, {'x', 258}}, {"abcde", 2, {259, 'e'}}, {"bcab", 2, {256, 257}},
        {"", 0, {0}},
    };
    struct mc_ids ids = {0};
    struct mc_tok *t;
    struct mc_err err;
    size_t i;

    (void)state;
    assert_ok(open_text(text, NULL, &t, &err), err);
    assert_int_equal(mc_tok_n(t), 260 + 256);
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        ids.n = 0;
        assert_int_equal(mc_tok_encode(t, rows[i].text, strlen(rows[i].text), 0, &ids,
                                       NULL),
                         0);
        assert_int_equal(ids.n, rows[i].n);
        assert_memory_equal(ids.v, rows[i].id, ids.n * sizeof *ids.v);
    }
    mc_ids_free(&ids);
    mc_tok_close(t);
    free(text);
}

static void tiktoken_refuses_a_broken_file_by_its_line(void **state)
{
    static const struct {
        const char *more, *says;
    } rows[] = {
        {"YWI=\n", "line 257"}, {"YWI= \n", "not base64"}, {"YWI= x\n", "not base64"},
        {"YWI=  256\n", "not base64"}, {"YWI 256\n", "not base64"}, {" 256\n", "not base64"},
        {"Y*I= 256\n", "not base64"}, {"YW=I 256\n", "not base64"}, {"Y=== 256\n", "not base64"},
        {"YWI= -1\n", "not base64"}, {"YWI= 257\n", "only 257 tokens"},
        {"YWI= 99999999999\n", "not base64"}, {"YWI= 255\n", "taken already"},
        {"YWI= 256\nYWI= 257\n", "same bytes"}, {"YWI= 256\r\n", "not base64"},
    };
    struct mc_tok *t;
    struct mc_err err;
    char *text;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        text = file_of(rows[i].more);
        assert_int_equal(open_text(text, NULL, &t, &err), MC_EFORMAT);
        assert_null(t);
        if (!strstr(err.text, rows[i].says) || !strstr(err.text, "tiktoken.model"))
            fail_msg("%s: %s", rows[i].more, err.text);
        free(text);
    }
    assert_int_equal(open_text("YQ== 0\n", NULL, &t, &err), MC_EFORMAT);
    assert_non_null(strstr(err.text, "byte 0x00 has no token"));
    assert_int_equal(open_text("", NULL, &t, &err), MC_EFORMAT);
}

static void tiktoken_takes_names_from_the_config(void **state)
{
    static const struct {
        const char *config, *says; /* NULL: good */
    } rows[] = {
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"<a>\",\"special\":true}},"
         "\"bos_token\":\"<a>\",\"eos_token\":{\"content\":\"<|reserved_token_300|>\"}}", NULL},
        {"{\"added_tokens_decoder\":{\"255\":{\"content\":\"<a>\"}}}", "start at 256"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<a>\"}}}", "start at 256"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":7}}}", "content is an integer"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"\"}}}", "0 bytes"},
        {"{\"added_tokens_decoder\":{\"99999999\":{\"content\":\"a\"}}}", "is not in 0.."},
        {"{\"added_tokens_decoder\":[]}", "is a list, not an object"},
        {"{\"added_tokens_decoder\":{\"256\":{\"content\":\"<a>\"},\"257\":{\"content\":"
         "\"<a>\"}}}", "are the same"},
        {"{\"eos_token\":\"<b>\"}", "not in the vocabulary"},
    };
    char *text = file_of("");
    struct mc_tok *t;
    struct mc_err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].says) {
            assert_int_equal(open_text(text, rows[i].config, &t, &err), MC_EFORMAT);
            if (!strstr(err.text, rows[i].says))
                fail_msg("%s: %s", rows[i].config, err.text);
            continue;
        }
        assert_ok(open_text(text, rows[i].config, &t, &err), err);
        assert_int_equal(mc_tok_bos(t), 256);
        assert_int_equal(mc_tok_eos(t), 300);
        mc_tok_close(t);
    }
    free(text);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tiktoken_merges_the_lowest_rank_first),
    cmocka_unit_test(tiktoken_refuses_a_broken_file_by_its_line),
    cmocka_unit_test(tiktoken_takes_names_from_the_config),
};
MC_TEST_MAIN(tests)

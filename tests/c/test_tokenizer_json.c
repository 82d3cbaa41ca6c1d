/* test_tokenizer_json.c - tokenizer.json and tokenizer_config.json: what is understood, and
 * every kind of broken or foreign file, refused by name. */
#include "tests/c/test.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/model/tokenizer_int.h"

#define LLAMA3                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?"   \
    "[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT(pattern)                                                                       \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\"," \
    "\"invert\":false}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define VOCAB "{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\\u0120\":5,\"x\":6}"
#define ADDED "{\"id\":7,\"content\":\"<s>\",\"special\":true,\"normalized\":false}"

/* The parts of a file; NULL keeps the good one, "" leaves the field out. */
struct parts {
    const char *vocab, *merges, *model, *added, *normalizer, *pre, *post, *decoder;
};

static void field(char *out, size_t cap, const char *name, const char *given,
                  const char *good)
{
    size_t n = strlen(out);

    if (given && !*given)
        return;
    snprintf(out + n, cap - n, "%s\"%s\":%s", out[n - 1] == '{' ? "" : ",", name,
             given ? given : good);
}

static char *file_of(const struct parts *p)
{
    size_t cap = 1 << 21;
    char *s = malloc(cap);

    strcpy(s, "{");
    field(s, cap, "normalizer", p->normalizer, "null");
    field(s, cap, "pre_tokenizer", p->pre, SEQUENCE(SPLIT(LLAMA3) "," BYTES));
    field(s, cap, "post_processor", p->post, "null");
    field(s, cap, "decoder", p->decoder, "{\"type\":\"ByteLevel\"}");
    field(s, cap, "added_tokens", p->added, "[" ADDED "]");
    strcat(s, ",\"model\":{");
    field(s, cap, "vocab", p->vocab, VOCAB);
    field(s, cap, "merges", p->merges, "[\"a b\",[\"ab\",\"c\"]]");
    field(s, cap, "type", p->model, "\"BPE\"");
    strcat(s, "}}");
    return s;
}

static int open_text(const char *text, const char *config, struct mc_tok **t,
                     struct mc_err *err)
{
    json_t *c = config ? json_loads(config, 0, NULL) : NULL;
    int rc = mc_tok_from_json(text, strlen(text), c, t, err);

    json_decref(c);
    return rc;
}

static int open_parts(struct parts p, struct mc_tok **t, struct mc_err *err)
{
    char *text = file_of(&p);
    int rc = open_text(text, NULL, t, err);

    free(text);
    return rc;
}

/* The ids of text as "1 2 3". */
static const char *ids_of(struct parts p, const char *text, unsigned flags)
{
    static char out[256];
    struct mc_ids ids = {0};
    struct mc_tok *t;
    struct mc_err err;
    size_t i, n = 0;

    assert_ok(open_parts(p, &t, &err), err);
    assert_ok(mc_tok_encode(t, text, strlen(text), flags, &ids, &err), err);
    out[0] = 0;
    for (i = 0; i < ids.n; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%d", i ? " " : "", ids.v[i]);
    mc_ids_free(&ids);
    mc_tok_close(t);
    return out;
}

static void refused(struct parts p, int code, const char *says)
{
    struct mc_tok *t = (struct mc_tok *)1;
    struct mc_err err;
    int rc = open_parts(p, &t, &err);

    if (rc >= 0)
        fail_msg("accepted; expected: %s", says);
    assert_null(t);
    if (rc != code || !strstr(err.text, says))
        fail_msg("%s: \"%s\" does not say \"%s\"", mc_code_name(rc), err.text, says);
}

static void json_merges_come_as_strings_or_pairs(void **state)
{
    (void)state;
    assert_string_equal(ids_of((struct parts){0}, "abcab", 0), "4 3");
    assert_string_equal(ids_of((struct parts){.merges = "[]"}, "ab", 0), "0 1");
    assert_string_equal(ids_of((struct parts){.merges = "[\"b c\"]",
                                              .vocab = "{\"a\":0,\"b\":1,\"c\":2,\"bc\":3}"},
                               "abc", 0), "0 3");
}

static void json_ignore_merges_takes_whole_pieces(void **state)
{
    (void)state;
    assert_string_equal(ids_of((struct parts){.merges = "[],\"ignore_merges\":true"},
                               "abc ab", 0),
                        "4 5 0 1");
}

static void json_bytes_without_token_are_unk_or_dropped(void **state)
{
    (void)state;
    assert_string_equal(ids_of((struct parts){0}, "a!!b", 0), "0 1");
    assert_string_equal(ids_of((struct parts){.model = "\"BPE\",\"unk_token\":\"x\""},
                               "a!!b", 0),
                        "0 6 6 1");
    assert_string_equal(ids_of((struct parts){.model = "\"BPE\",\"unk_token\":\"x\","
                                                       "\"fuse_unk\":true"}, "a!!b", 0),
                        "0 6 1");
}

static void json_added_tokens_obey_their_flags(void **state)
{
    (void)state;
    assert_string_equal(ids_of((struct parts){0}, "a<s>b", MC_TOK_SPECIAL), "0 7 1");
    assert_string_equal(ids_of((struct parts){0}, "a<s>b", 0), "0 1");
    assert_string_equal(ids_of((struct parts){.added = "[{\"id\":7,\"content\":\"<s>\","
                                                       "\"lstrip\":true,\"rstrip\":true}]"},
                               "a  <s> b", MC_TOK_SPECIAL), "0 7 1");
    assert_string_equal(ids_of((struct parts){.added = "[{\"id\":3,\"content\":\"ab\","
                                                       "\"single_word\":true}]",
                                              .merges = "[]"},
                               "ab xab ab", MC_TOK_SPECIAL), "3 5 6 0 1 5 3");
    assert_string_equal(ids_of((struct parts){.added = "[{\"id\":7,\"content\":\"<s>\"},"
                                                       "{\"id\":8,\"content\":\"<s><s>\"}]"},
                               "<s><s><s>", MC_TOK_SPECIAL), "8 7"); /* the longest */
}

static void json_merges_never_make_control_tokens(void **state)
{
    (void)state;
    assert_string_equal(ids_of((struct parts){.added = "[{\"id\":3,\"content\":\"ab\","
                                                       "\"special\":true}]"},
                               "ab", 0), "0 1");
}

static void json_template_puts_tokens_around(void **state)
{
    static const char post[] =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
        "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":"
        "{\"<s>\":{\"ids\":[7]},\"x\":{\"ids\":[6]}}}]}";

    (void)state;
    assert_string_equal(ids_of((struct parts){.post = post}, "a", MC_TOK_BOS), "7 0 6");
    assert_string_equal(ids_of((struct parts){.post = post}, "a", 0), "0");
}

static void json_config_names_bos_eos_and_template(void **state)
{
    char *text = file_of(&(struct parts){0});
    struct mc_tok *t;
    struct mc_err err;
    size_t n;

    (void)state;
    assert_ok(open_text(text, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"x\"},"
                              "\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
                              "{\"name\":\"default\",\"template\":\"D\"}]}", &t, &err), err);
    assert_int_equal(mc_tok_bos(t), 7);
    assert_int_equal(mc_tok_eos(t), 6);
    assert_string_equal(mc_tok_chat_template(t, &n), "D");
    assert_int_equal(n, 1);
    mc_tok_close(t);
    assert_ok(open_text(text, "{\"bos_token\":null,\"chat_template\":\"C\"}", &t, &err),
              err);
    assert_int_equal(mc_tok_bos(t), -1);
    assert_int_equal(mc_tok_eos(t), -1);
    assert_string_equal(mc_tok_chat_template(t, &n), "C");
    mc_tok_close(t);
    assert_ok(open_text(text, NULL, &t, &err), err);
    assert_null(mc_tok_chat_template(t, &n));
    mc_tok_close(t);
    assert_int_equal(open_text(text, "{\"eos_token\":\"</s>\"}", &t, &err), MC_EFORMAT);
    assert_non_null(strstr(err.text, "</s>"));
    assert_int_equal(open_text(text, "{\"eos_token\":5}", &t, &err), MC_EFORMAT);
    assert_int_equal(open_text(text, "{\"chat_template\":[]}", &t, &err), MC_EFORMAT);
    assert_int_equal(open_text(text, "{\"chat_template\":{}}", &t, &err), MC_EFORMAT);
    free(text);
}

static void json_refuses_what_is_missing_or_of_another_type(void **state)
{
    static const struct {
        struct parts p;
        const char *says;
    } rows[] = {
        {{.vocab = ""}, "model.vocab is missing"},
        {{.vocab = "[]"}, "model.vocab is a list"},
        {{.vocab = "{\"a\":\"0\"}"}, "the id of \"a\" is a string"},
        {{.vocab = "{\"a\":0.5}"}, "the id of \"a\" is a number"},
        {{.vocab = "{\"a\":null}"}, "the id of \"a\" is null"},
        {{.vocab = "{\"a\":0,\"a\":1}"}, "duplicate"},
        {{.vocab = "{\"a\":1,\"b\":1}"}, "id 1 of token \"b\" is taken"},
        {{.vocab = "{\"a\":-1}"}, "id -1"},
        {{.vocab = "{\"a\":2147483648}"}, "id 2147483648"},
        {{.vocab = "{\"a\":9223372036854775807}"}, "id 9223372036854775807"},
        {{.vocab = "{\"a\":70000}"}, "is not in 0..65537"},
        {{.vocab = "{}"}, "merge 0 names a token that the vocabulary lacks"},
        {{.merges = ""}, "model.merges is missing"},
        {{.merges = "{}"}, "model.merges is an object"},
        {{.merges = "[\"ab\"]"}, "merges[0] is not a pair"},
        {{.merges = "[\"a b c\"]"}, "merges[0] is not a pair"},
        {{.merges = "[\"a b\",\" b\"]"}, "merges[1] is not a pair"},
        {{.merges = "[[\"a\"]]"}, "merges[0] is not a pair"},
        {{.merges = "[[\"a\",1]]"}, "merges[0] is not a pair"},
        {{.merges = "[null]"}, "merges[0] is not a pair"},
        {{.merges = "[\"a q\"]"}, "\"a\" \"q\""},
        {{.merges = "[\"b a\"]"}, "\"b\" \"a\""},
        {{.added = "{}"}, "added_tokens is an object"},
        {{.added = "[7]"}, "added_tokens[0]: id is missing"},
        {{.added = "[{\"id\":7}]"}, "content is missing"},
        {{.added = "[{\"id\":\"7\",\"content\":\"q\"}]"}, "id is a string"},
        {{.added = "[{\"id\":7,\"content\":7}]"}, "content is an integer"},
        {{.added = "[{\"id\":7,\"content\":\"\"}]"}, "0 bytes"},
        {{.added = "[{\"id\":7,\"content\":\"q\",\"special\":1}]"}, "special is an integer"},
        {{.added = "[{\"id\":7,\"content\":\"q\",\"lstrip\":\"\"}]"}, "lstrip is a string"},
        {{.added = "[{\"id\":3,\"content\":\"q\"}]"}, "id 3 of token \"q\" is taken"},
        {{.added = "[{\"id\":7,\"content\":\"ab\"}]"}, "has id 7 here and 3"},
        {{.added = "[{\"id\":7,\"content\":\"q\"},{\"id\":8,\"content\":\"q\"}]"},
         "added tokens 7 and 8 are the same"},
        {{.added = "[{\"id\":7,\"content\":\"q\"},{\"id\":7,\"content\":\"r\"}]"}, "taken"},
        {{.added = "[{\"id\":-7,\"content\":\"q\"}]"}, "id -7"},
        {{.added = "[{\"id\":4294967303,\"content\":\"q\"}]"}, "id 4294967303"},
        {{.model = "7"}, "model.type is an integer"},
        {{.model = "\"BPE\",\"ignore_merges\":1"}, "ignore_merges is an integer"},
        {{.model = "\"BPE\",\"unk_token\":\"q\""}, "model.unk_token \"q\""},
        {{.model = "\"BPE\",\"unk_token\":0"}, "model.unk_token is an integer"},
        {{.normalizer = "7"}, "normalizer: type is missing"},
        {{.normalizer = "{\"type\":\"Sequence\"}"}, "normalizer.normalizers is missing"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[7]}"}, "type is missing"},
        {{.pre = SEQUENCE("{\"type\":\"Digits\",\"individual_digits\":1}," BYTES)},
         "individual_digits is an integer"},
        {{.post = "{\"type\":\"TemplateProcessing\"}"}, "single is not"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
                  "{\"Sequence\":{}}]}"}, "single is not"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                  "\"z\"}},{\"Sequence\":{}}]}"}, "no ids for \"z\""},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
                  "\"z\"}},{\"Sequence\":{}}],\"special_tokens\":{\"z\":{\"ids\":[99]}}}"},
         "an id of \"z\" is not a token"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}}]}"},
         "SpecialToken.id is missing"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i].p, MC_EFORMAT, rows[i].says);
}

static void json_refuses_what_it_does_not_do_by_name(void **state)
{
    static const struct {
        struct parts p;
        const char *says;
    } rows[] = {
        {{.model = "\"Unigram\""}, "model.type \"Unigram\""},
        {{.model = "\"BPE\",\"dropout\":0.1"}, "model.dropout"},
        {{.model = "\"BPE\",\"byte_fallback\":true"}, "model.byte_fallback"},
        {{.model = "\"BPE\",\"end_of_word_suffix\":\"</w>\""}, "model.end_of_word_suffix"},
        {{.model = "\"BPE\",\"continuing_subword_prefix\":\"##\""},
         "model.continuing_subword_prefix"},
        {{.normalizer = "{\"type\":\"NFKC\"}"}, "normalizer \"NFKC\""},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                        "{\"type\":\"Lowercase\"}]}"}, "normalizer \"Lowercase\""},
        {{.pre = ""}, "no ByteLevel"},
        {{.pre = SPLIT(LLAMA3)}, "no ByteLevel"},
        {{.pre = "{\"type\":\"Whitespace\"}"}, "pre_tokenizer \"Whitespace\""},
        {{.pre = "{\"type\":\"ByteLevel\"}"}, "add_prefix_space"},
        {{.pre = SEQUENCE(BYTES "," SPLIT(LLAMA3))}, "must be the last"},
        {{.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},"
                          "\"behavior\":\"Isolated\"}," BYTES)}, "pattern.Regex is missing"},
        {{.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},"
                          "\"behavior\":\"Removed\"}," BYTES)}, "only behavior \"Isolated\""},
        {{.pre = SEQUENCE(SPLIT("(a+)+$") "," BYTES)}, "pattern not known: (a+)+$"},
        {{.pre = SEQUENCE(SPLIT(LLAMA3 "x") "," BYTES)}, "pattern not known: (?i:'s"},
        {{.pre = SEQUENCE(SPLIT("") "," BYTES)}, "pattern not known"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, "post_processor \"BertProcessing\""},
        {{.decoder = "{\"type\":\"Metaspace\"}"}, "decoder \"Metaspace\""},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(rows[i].p, MC_EUNSUP, rows[i].says);
}

/* A pattern of its own is compared, never compiled, whatever its size. */
static void json_refuses_hostile_patterns_at_once(void **state)
{
    static char pre[1200000];
    size_t n, i;
    clock_t start = clock();

    (void)state;
    n = (size_t)sprintf(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    for (i = 0; i < 1000000; i++)
        pre[n++] = 'a';
    strcpy(pre + n, "\"},\"behavior\":\"Isolated\"}");
    refused((struct parts){.pre = pre}, MC_EUNSUP, "pattern not known: aaaa");
    n = (size_t)sprintf(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    for (i = 0; i < 1000; i++)
        pre[n++] = '(';
    for (i = 0; i < 1000; i++)
        n += (size_t)sprintf(pre + n, ")+");
    strcpy(pre + n, "\"},\"behavior\":\"Isolated\"}");
    refused((struct parts){.pre = pre}, MC_EUNSUP, "pattern not known: ((((");
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 1);
}

static void json_refuses_too_many_stages(void **state)
{
    static const char digits[] = "{\"type\":\"Digits\",\"individual_digits\":true},";
    char pre[1024] = "{\"type\":\"Sequence\",\"pretokenizers\":[";
    int i;

    (void)state;
    for (i = 0; i < 9; i++)
        strcat(pre, digits);
    strcat(pre, BYTES "]}");
    refused((struct parts){.pre = pre}, MC_EUNSUP, "too many stages");
}

static void json_refuses_what_is_no_object(void **state)
{
    static const char *const texts[] = {"", " ", "null", "[]", "7", "{", "{}", "\"\"",
                                        "{\"model\":[]}", "{\"model\":{}}", "{\"a\":1,\"a\":2}",
                                        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xff\":0}}}"};
    char deep[8192];
    struct mc_tok *t;
    struct mc_err err;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(open_text(texts[i], NULL, &t, &err), MC_EFORMAT);
        assert_null(t);
    }
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    assert_int_equal(open_text(deep, NULL, &t, &err), MC_EFORMAT);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(json_merges_come_as_strings_or_pairs),
    cmocka_unit_test(json_ignore_merges_takes_whole_pieces),
    cmocka_unit_test(json_bytes_without_token_are_unk_or_dropped),
    cmocka_unit_test(json_added_tokens_obey_their_flags),
    cmocka_unit_test(json_merges_never_make_control_tokens),
    cmocka_unit_test(json_template_puts_tokens_around),
    cmocka_unit_test(json_config_names_bos_eos_and_template),
    cmocka_unit_test(json_refuses_what_is_missing_or_of_another_type),
    cmocka_unit_test(json_refuses_what_it_does_not_do_by_name),
    cmocka_unit_test(json_refuses_hostile_patterns_at_once),
    cmocka_unit_test(json_refuses_too_many_stages),
    cmocka_unit_test(json_refuses_what_is_no_object),
};
MC_TEST_MAIN(tests)

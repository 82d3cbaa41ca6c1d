/* test_pretok.c - pre-tokenizer rules: where each family cuts. Expected cuts are those of
 * the pattern that stands above each rule, checked against PyPI's tokenizers where it knows
 * the family (tests/golden/tokenizer_parity.py); `default` is llama.cpp's. */
#include "tests/c/test.h"

#include <string.h>

#include "core/model/pretok.h"

struct pieces {
    char text[512];
    size_t n;
};

static int join(void *ctx, const char *s, size_t n)
{
    struct pieces *p = ctx;

    assert_true(n > 0);
    assert_true(p->n + n + 1 < sizeof p->text);
    if (p->n)
        p->text[p->n++] = '|';
    memcpy(p->text + p->n, s, n);
    p->n += n;
    p->text[p->n] = 0;
    return 0;
}

static const struct {
    const char *name, *text, *pieces;
} rows[] = {
    {"gpt2", "It's 123 x!! \n\n y", "It|'s| 123| x|!!| \n\n| y"},
    {"gpt2", "IT'S", "IT|'|S"},
    {"gpt2", "a  b ", "a| | b| "},
    {"smollm", "x 123a", "x| |1|2|3|a"},
    {"smollm", "v1.5", "v|1|.|5"},
    {"llama-bpe", "It'S 12345 x!!\n\n y", "It|'S| |123|45| x|!!\n\n| y"},
    {"llama-bpe", "'\xc5\xbf""t", "'\xc5\xbf|t"},
    {"llama-bpe", "a\t\tb\r\n \r\n  c", "a|\t|\tb|\r\n \r\n| | c"},
    {"llama-bpe", "\xc2\xa0x\xc2\x85y", "\xc2\xa0x|\xc2\x85y"},
    {"llama-bpe", "(a)(b)", "(a|)(|b|)"},
    {"llama-bpe", "e\xcc\x81x", "e|\xcc\x81x"},
    {"qwen2", "12 3", "1|2| |3"},
    {"deepseek-v3", "ab1234\xe6\xbc\xa2\xe5\xad\x97x",
     "ab|123|4|\xe6\xbc\xa2\xe5\xad\x97|x"},
    {"deepseek-v3", "<div>_x .. $y\n", "<div|>_|x| ..| $|y|\n"},
    {"deepseek-v3", "e\xcc\x81x \x01\x02 z", "e\xcc\x81x| |\x01\x02| z"},
    {"deepseek-coder", "def f(x):\r\n  \xe6\xbc\xa2 a12\n",
     "def| f|(|x|):|\r|\n| | |\xe6\xbc\xa2| a|1|2|\n"},
    {"kimi-k2", "don't HTTPServer \xe6\xbc\xa2\xe5\xad\x97""abc 12345",
     "don't| HTTPServer| |\xe6\xbc\xa2\xe5\xad\x97|abc| |123|45"},
    {"kimi-k2", "\xe3\x81\x82""ABC \xcc\x81XY's", "\xe3\x81\x82|ABC| \xcc\x81|XY's"},
    {"kimi-k2", "\xe6\xbc\xa2""A\xe6\xbc\xa2 7", "\xe6\xbc\xa2|A|\xe6\xbc\xa2| |7"},
    {"kimi-k2", "\xe4\xbb\x96\xe8\xaf\xb4"": \"I'LL go\"\xe2\x80\x94\xe7\xac\xac""3\xe7"
     "\xab\xa0\xe3\x80\x82""\n\n\xe3\x80\x80\xe3\x80\x80\xe8\xa9\xb1\xe8\xaa"
     "\xaa"" can't 12345",
     "\xe4\xbb\x96\xe8\xaf\xb4""|:| \"|I'LL| go|\"\xe2\x80\x94""|\xe7\xac"
     "\xac""|3|\xe7\xab\xa0""|\xe3\x80\x82""\n\n|\xe3\x80\x80""|\xe3\x80"
     "\x80""|\xe8\xa9\xb1\xe8\xaa\xaa""| can't| |123|45"},
    {"kimi-k2", "}\n/// doc",
     "}\n|///| doc"},
    {"kimi-k2", "a\xe6\xbc\xa2""b\xe6\xbc\xa2""1",
     "a|\xe6\xbc\xa2""|b|\xe6\xbc\xa2""|1"},
    {"gpt-4o", "don't HTTPServer/ \xe6\xbc\xa2""a\n/\n/x .\n/\n1234",
     "don't| HTTPServer|/| \xe6\xbc\xa2""a|\n|/\n/|x| .\n/\n|123|4"},
    {"qwen35", "e\xcc\x81x \xcc\x81 12", "e\xcc\x81x| \xcc\x81| |1|2"},
    {"deepseek-llm", "It's  a-b \xe1\x83\x90 \xe6\xbc\xa2 12\r\n x \xef\xbc\x81  ",
     "It|'|s| | a|-|b| |\xe1\x83\x90| |\xe6\xbc\xa2| |1|2|\r|\n| x| \xef\xbc\x81|  "},
    {"default", "Hello, w 12345 x`", "Hello|,| w| |123|45| x|`"},
};

static void pretok_cuts_as_each_familys_pattern_does(void **state)
{
    struct mc_pretok p;
    struct pieces got;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof rows / sizeof *rows; i++) {
        p.n = 0;
        got.n = 0;
        got.text[0] = 0;
        assert_true(mc_pretok_add_named(&p, rows[i].name, strlen(rows[i].name)));
        assert_int_equal(mc_pretok_split(&p, rows[i].text, strlen(rows[i].text), join,
                                         &got),
                         0);
        assert_string_equal(got.text, rows[i].pieces);
    }
}

static void pretok_knows_patterns_by_their_whole_text(void **state)
{
    static const char v3[] =
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
        "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    struct mc_pretok p = {0};

    (void)state;
    assert_true(mc_pretok_add(&p, "\\p{N}{1,3}", 10));
    assert_false(mc_pretok_add(&p, "\\p{N}{1,3}", 9));
    assert_false(mc_pretok_add(&p, "\\p{N}{1,3}|", 11));
    assert_false(mc_pretok_add(&p, "", 0));
    assert_false(mc_pretok_add(&p, "\n", 1));
    assert_true(mc_pretok_add(&p, v3, strlen(v3))); /* line ends as themselves */
    assert_false(mc_pretok_add(&p, v3, strlen(v3) - 1));
    assert_int_equal(p.n, 2);
}

static int stop_at_b(void *ctx, const char *s, size_t n)
{
    (void)n;
    ++*(int *)ctx;
    return *s == 'b' ? -7 : 0;
}

static void pretok_stops_at_the_first_failure(void **state)
{
    struct mc_pretok p = {0};
    int calls = 0;

    (void)state;
    assert_true(mc_pretok_add_digits(&p, true));
    assert_int_equal(mc_pretok_split(&p, "a1b2c3", 6, stop_at_b, &calls), -7);
    assert_int_equal(calls, 3);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pretok_cuts_as_each_familys_pattern_does),
    cmocka_unit_test(pretok_knows_patterns_by_their_whole_text),
    cmocka_unit_test(pretok_stops_at_the_first_failure),
};
MC_TEST_MAIN(tests)

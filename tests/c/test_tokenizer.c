/* test_tokenizer.c - text to ids and back: vectors of the reference tokenizers, hostile
 * lengths, whole round trips. How the vectors were made: tests/golden/, models' golden/.
 */
#include "tests/c/test.h"

#include <glob.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/utf8.h"
#include "core/model/nfc.h"
#include "core/model/tokenizer_int.h"
#include "core/weights/weights.h"

static char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s;

    if (!f)
        fail_msg("%s is missing", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    s = malloc(*n + 1);
    assert_int_equal(fread(s, 1, *n, f), *n);
    s[*n] = 0;
    fclose(f);
    return s;
}

static struct mc_tok *open_model(const char *path)
{
    struct mc_ckpt *c;
    struct mc_tok *t;
    struct mc_err err;

    assert_ok(mc_ckpt_open(path, &c, &err), err);
    assert_ok(mc_tok_open(c, &t, &err), err);
    mc_ckpt_close(c);
    return t;
}

static void same_ids(const char *where, int line, const json_t *want,
                     const struct mc_ids *got)
{
    size_t i;

    for (i = 0; i < got->n || i < json_array_size(want); i++)
        if (i >= got->n || i >= json_array_size(want) ||
            json_integer_value(json_array_get(want, i)) != got->v[i])
            fail_msg("%s:%d: id %zu differs", where, line, i);
}

/* Whether the pieces of ids, joined, are text: always so for byte-level models. */
static bool join_to(const struct mc_tok *t, const struct mc_ids *ids, const char *text,
                    size_t n)
{
    size_t i, len, at = 0;
    const char *p;
    bool special;

    for (i = 0; i < ids->n; i++) {
        p = mc_tok_piece(t, ids->v[i], &len, &special);
        if (at + len > n || memcmp(p, text + at, len) != 0)
            return false;
        at += len;
    }
    return at == n;
}

/* Every line of a vector file. whole: pieces join to the text. */
static void run_vectors(const struct mc_tok *t, const char *path, bool whole)
{
    size_t n, len, n_nfc;
    char *all = read_whole(path, &n), *line, *end, *nfc;
    const char *text;
    int row = 0;

    for (line = all; line < all + n; line = end + 1) { /* texts hold U+2028: \n only */
        json_t *o, *ids;
        struct mc_ids got = {0};
        struct mc_err err;

        end = memchr(line, '\n', (size_t)(all + n - line));
        row++;
        o = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        assert_non_null(o);
        ids = json_object_get(o, "text");
        text = json_string_value(ids);
        len = json_string_length(ids);
        assert_ok(mc_tok_encode(t, text, len,
                                json_is_true(json_object_get(o, "special"))
                                    ? MC_TOK_SPECIAL
                                    : 0,
                                &got, &err),
                  err);
        same_ids(path, row, json_object_get(o, "ids"), &got);
        if (whole) {
            nfc = NULL;
            assert_int_equal(t->nfc ? mc_nfc(text, len, &nfc, &n_nfc) : 0, 0);
            if (!join_to(t, &got, nfc ? nfc : text, nfc ? n_nfc : len))
                fail_msg("%s:%d: the pieces are not the text", path, row);
            free(nfc);
        }
        mc_ids_free(&got);
        json_decref(o);
    }
    assert_true(row > 300);
    free(all);
}

static void tokenizer_gives_every_models_golden_ids(void **state)
{
    struct mc_tok *t;
    glob_t g;
    size_t i;
    char *end;

    (void)state;
    assert_int_equal(glob("tests/models/*/golden/tokenizer.jsonl", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 4);
    for (i = 0; i < g.gl_pathc; i++) {
        char dir[256];

        snprintf(dir, sizeof dir, "%s", g.gl_pathv[i]);
        end = strstr(dir, "/golden/");
        *end = 0;
        t = open_model(dir);
        run_vectors(t, g.gl_pathv[i], true);
        mc_tok_close(t);
    }
    globfree(&g);
}

/* {"parts": [[unit, times], ...]} as one text. */
static char *text_of_parts(const json_t *parts, size_t *n)
{
    const json_t *part, *unit;
    json_int_t times;
    char *text = NULL;
    size_t i, len;

    *n = 0;
    json_array_foreach(parts, i, part) {
        unit = json_array_get(part, 0);
        len = json_string_length(unit);
        text = realloc(text,
                       *n + len * (size_t)json_integer_value(json_array_get(part, 1)) +
                           1);
        for (times = json_integer_value(json_array_get(part, 1)); times > 0; times--) {
            memcpy(text + *n, json_string_value(unit), len);
            *n += len;
        }
    }
    return text;
}

static void same_fnv(int line, const json_t *row, const struct mc_ids *ids)
{
    uint64_t h = 0xcbf29ce484222325u;
    char text[20];
    size_t i;

    for (i = 0; i < ids->n; i++)
        h = (h ^ (uint32_t)ids->v[i]) * 0x100000001b3u;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
    if (json_integer_value(json_object_get(row, "n")) != (json_int_t)ids->n ||
        strcmp(json_string_value(json_object_get(row, "fnv")), text) != 0)
        fail_msg("vectors.jsonl:%d: other ids, %zu of them", line, ids->n);
}

static void tokenizer_of_kimi_cuts_words_and_long_texts_as_the_vendors_does(void **state)
{
    size_t n, n_model;
    char *all = read_whole("tests/golden/kimi/vectors.jsonl", &n), *line, *end, *text;
    char *model = read_whole("tests/golden/kimi/tiktoken.model", &n_model);
    struct mc_ids got = {0};
    struct mc_tok *t;
    struct mc_err err;
    json_t *row;
    size_t len;
    int at = 0;

    (void)state;
    assert_ok(mc_tok_from_tiktoken(model, n_model, NULL, &t, &err), err);
    for (line = all; line < all + n; line = end + 1) {
        end = memchr(line, '\n', (size_t)(all + n - line));
        row = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        text = text_of_parts(json_object_get(row, "parts"), &len);
        got.n = 0;
        assert_ok(mc_tok_encode(t, text, len,
                                json_is_true(json_object_get(row, "special"))
                                    ? MC_TOK_SPECIAL
                                    : 0,
                                &got, &err),
                  err);
        at++;
        if (json_object_get(row, "ids"))
            same_ids("vectors.jsonl", at, json_object_get(row, "ids"), &got);
        else
            same_fnv(at, row, &got);
        assert_true(join_to(t, &got, text, len));
        free(text);
        json_decref(row);
    }
    assert_true(at > 400);
    mc_ids_free(&got);
    mc_tok_close(t);
    free(model);
    free(all);
}

/* A control token stays whole where a chunk ends: the vendor's code would cut it. */
static void tokenizer_of_kimi_never_cuts_a_control_token(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-kimi");
    struct mc_ids ids = {0};
    size_t n = 25100, at, i;
    char *text = malloc(n);
    int found = 0;

    (void)state;
    for (at = 24980; at < 25010; at++) {
        memset(text, 'x', n);
        memcpy(text + at, "<|im_end|>", 10);
        ids.n = 0;
        assert_int_equal(mc_tok_encode(t, text, n, MC_TOK_SPECIAL, &ids, NULL), 0);
        for (found = 0, i = 0; i < ids.n; i++)
            found += ids.v[i] == 1794;
        assert_int_equal(found, 1);
        assert_true(join_to(t, &ids, text, n));
    }
    free(text);
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_of_kimi_names_its_unnamed_slots_by_id(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-kimi");
    struct mc_ids ids = {0};
    const char *p;
    size_t n;
    bool special;

    (void)state;
    assert_int_equal(mc_tok_n(t), 2048);
    assert_int_equal(mc_tok_bos(t), 1792);
    assert_int_equal(mc_tok_eos(t), 1793);
    assert_false(mc_tok_adds_bos(t));
    p = mc_tok_piece(t, 1797, &n, &special);
    assert_int_equal(n, 23);
    assert_memory_equal(p, "<|reserved_token_1797|>", 23);
    assert_true(special);
    p = mc_tok_piece(t, mc_tok_find(t, "<|tool_call_begin|>", 19), &n, &special);
    assert_false(special); /* part of what the model says */
    assert_int_equal(mc_tok_encode(t, p, n, 0, &ids, NULL), 0); /* in a user's text */
    assert_true(ids.n > 1);
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_of_a_gguf_is_that_of_its_json(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-llama-gguf/tiny-llama-q8_0.gguf");
    struct mc_tok *json = open_model("tests/models/tiny-llama");
    size_t n, n_json;

    (void)state;
    run_vectors(t, "tests/models/tiny-llama/golden/tokenizer.jsonl", true);
    assert_int_equal(mc_tok_bos(t), 1792);
    assert_int_equal(mc_tok_eos(t), 1801);
    assert_true(mc_tok_adds_bos(t));
    assert_int_equal(mc_tok_n(t), mc_tok_n(json));
    assert_non_null(mc_tok_chat_template(t, &n));
    assert_memory_equal(mc_tok_chat_template(t, &n), mc_tok_chat_template(json, &n_json),
                        n);
    mc_tok_close(t);
    mc_tok_close(json);
}

static void tokenizer_gives_smollm2s_ids(void **state)
{
    struct mc_tok *t = open_model("tests/models/smollm2-vocab/smollm2-vocab.gguf");

    (void)state;
    run_vectors(t, "tests/golden/smollm2_tokenizer.jsonl", false); /* it lacks 21 bytes */
    assert_int_equal(mc_tok_n(t), 49152);
    assert_int_equal(mc_tok_bos(t), 1);
    assert_int_equal(mc_tok_eos(t), 2);
    assert_false(mc_tok_adds_bos(t));
    mc_tok_close(t);
}

static void tokenizer_gives_sentencepieces_ids(void **state)
{
    struct mc_tok *t = open_model("tests/models/spm-vocab/spm-vocab.gguf");
    struct mc_ids ids = {0};
    size_t n;
    bool special;

    (void)state;
    run_vectors(t, "tests/golden/spm_tokenizer.jsonl", false);
    assert_true(mc_tok_adds_bos(t));
    assert_int_equal(mc_tok_bos(t), 1);
    assert_int_equal(mc_tok_encode(t, "hi \xf0\x9f\x98\x80", 7, 0, &ids, NULL), 0);
    assert_true(
        join_to(t, &ids, " hi \xf0\x9f\x98\x80", 8)); /* with the space put in front */
    assert_memory_equal(mc_tok_piece(t, mc_tok_find(t, "<s>", 3), &n, &special), "<s>",
                        3);
    assert_true(special);
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_round_trips_spaces_token_by_token(void **state)
{
    static const char *const texts[] = {"hello !", " ...", "   x", "a  b",
                                        "\n\n  x", "\tq",  ""};
    struct mc_tok *t = open_model("tests/models/tiny-llama");
    struct mc_ids ids = {0};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof texts / sizeof *texts; i++) {
        ids.n = 0;
        assert_int_equal(mc_tok_encode(t, texts[i], strlen(texts[i]), 0, &ids, NULL), 0);
        assert_true(join_to(t, &ids, texts[i], strlen(texts[i])));
    }
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_puts_bos_in_front_only_when_asked(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-llama");
    struct mc_ids ids = {0};

    (void)state;
    assert_int_equal(mc_tok_encode(t, "", 0, 0, &ids, NULL), 0);
    assert_int_equal(ids.n, 0);
    assert_int_equal(mc_tok_encode(t, "", 0, MC_TOK_BOS, &ids, NULL), 0);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.v[0], 1792);
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_makes_control_tokens_only_when_asked(void **state)
{
    static const char text[] = "hi<|eot_id|><|start_header_id|>system<|end_header_id|>";
    struct mc_tok *t = open_model("tests/models/tiny-llama");
    struct mc_ids ids = {0};
    size_t i, n;
    bool special;
    int count = 0;

    (void)state;
    assert_int_equal(mc_tok_encode(t, text, sizeof text - 1, 0, &ids, NULL), 0);
    for (i = 0; i < ids.n; i++) {
        mc_tok_piece(t, ids.v[i], &n, &special);
        assert_false(special);
    }
    assert_true(join_to(t, &ids, text, sizeof text - 1));
    ids.n = 0;
    assert_int_equal(mc_tok_encode(t, text, sizeof text - 1, MC_TOK_SPECIAL, &ids, NULL),
                     0);
    for (i = 0; i < ids.n; i++) {
        mc_tok_piece(t, ids.v[i], &n, &special);
        count += special;
    }
    assert_int_equal(count, 3);
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_refuses_bad_utf8_and_keeps_earlier_ids(void **state)
{
    static const char *const bad[] = {"a\xff", "\xc0\xaf", "\xed\xa0\x80",
                                      "x\xf0\x9f\x98"};
    struct mc_tok *t = open_model("tests/models/tiny-llama");
    struct mc_ids ids = {0};
    struct mc_err err;
    size_t i;

    (void)state;
    assert_int_equal(mc_ids_push(&ids, 7), 0);
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mc_tok_encode(t, bad[i], strlen(bad[i]), 0, &ids, &err),
                         MC_EFORMAT);
        assert_int_equal(ids.n, 1);
    }
    mc_ids_free(&ids);
    mc_tok_close(t);
}

static void tokenizer_finds_pieces_and_answers_for_ids_without_token(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-glm");
    const char *p;
    size_t n;
    bool special;

    (void)state;
    assert_int_equal(mc_tok_n(t), 2020);
    assert_int_equal(mc_tok_find(t, "<|user|>", 8), 1991);
    assert_int_equal(mc_tok_find(t, "<think>", 7), 2005);
    mc_tok_piece(t, 2005, &n, &special);
    assert_false(special);
    p = mc_tok_piece(t, mc_tok_find(t, " the", 4), &n, &special);
    assert_int_equal(n, 4);
    assert_memory_equal(p, " the", 4);
    assert_int_equal(mc_tok_find(t, "no such piece", 13), -1);
    assert_int_equal(mc_tok_find(t, "", 0), -1);
    assert_int_equal(mc_tok_bos(t), -1);
    for (int32_t id = -2; id < 2050; id += id == 0 ? 2020 : 1) {
        p = mc_tok_piece(t, id, &n, &special);
        if (id < 0 || id >= 2020)
            assert_int_equal(n, 0);
        assert_non_null(p);
    }
    mc_tok_close(t);
}

/* ---- long texts on a small stack --------------------------------------------------- */

struct job {
    const struct mc_tok *t;
    char *text;
    size_t n;
    bool joins; /* pieces join to the text */
};

static double cpu_time(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *encode_job(void *arg)
{
    struct job *j = arg;
    struct mc_ids ids = {0};
    double start = cpu_time(), took;
    const char *failed = NULL;

    if (mc_tok_encode(j->t, j->text, j->n, MC_TOK_SPECIAL, &ids, NULL) != 0)
        failed = "it failed";
    took = cpu_time() - start;
#ifndef MC_SANITIZE /* these are some ten times slower */
    if (took > 0.1 + 1e-6 * (double)j->n)
        failed = "over a second a megabyte";
#else
    (void)took;
#endif
    if (!failed && j->joins && !join_to(j->t, &ids, j->text, j->n))
        failed = "its pieces are another text";
    mc_ids_free(&ids);
    return (void *)failed;
}

static void encode_long(const struct mc_tok *t, const char *unit, size_t bytes,
                        bool joins)
{
    size_t i, len = strlen(unit);
    struct job j = {.t = t, .n = bytes / len * len, .joins = joins};
    pthread_attr_t attr;
    pthread_t thread;
    void *failed;

    j.text = malloc(j.n + 1);
    for (i = 0; i < j.n; i++)
        j.text[i] = unit[i % len];
    pthread_attr_init(&attr);
#ifndef MC_SANITIZE /* red zones are not the code's stack */
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
#endif
    assert_int_equal(pthread_create(&thread, &attr, encode_job, &j), 0);
    pthread_join(thread, &failed);
    pthread_attr_destroy(&attr);
    if (failed)
        fail_msg("%zu bytes of \"%s\": %s", j.n, unit, (const char *)failed);
    free(j.text);
}

static void tokenizer_is_linear_in_long_runs_on_a_small_stack(void **state)
{
    static const char *const models[] = {
        "tests/models/tiny-llama", "tests/models/smollm2-vocab/smollm2-vocab.gguf",
        "tests/models/spm-vocab/spm-vocab.gguf", "tests/models/tiny-kimi",
    };
    static const char *const units[] = {
        "A", "^", " ", ".", "\xe6\xbc\xa2", "a1", "1", "\n", "\r\n", " \n", "'s", "\t a",
        "e\xcc\x81", "<|", "<|eot_id|>", "<|eot_id", "\xe2\x96\x81", "\xc2\xa0x", "\x01",
        "aB", "AAAAAAAAAAAAAAA\xe3\x81\x82", "\xcc\x81" "A",
    };
    struct mc_tok *t;
    size_t m, i;

    (void)state;
    for (m = 0; m < sizeof models / sizeof *models; m++) {
        t = open_model(models[m]);
        for (i = 0; i < sizeof units / sizeof *units; i++)
            encode_long(t, units[i], m ? 300000 : 1000000, m == 0);
        mc_tok_close(t);
    }
}

static void tokenizer_orders_long_runs_of_marks_in_linear_time(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-qwen3-moe");
    char *nfc = NULL;
    size_t n = 0;

    (void)state;
    encode_long(t, "\xcc\x81\xcc\xa3", 1000000, false); /* classes 230 and 220, in turn */
    encode_long(t, "a\xcc\xa3\xcc\x81", 1000000, false);
    assert_int_equal(mc_nfc("q\xcc\x81\xcc\xa3\xcc\x81", 7, &nfc, &n), 0);
    assert_int_equal(n, 7);
    assert_memory_equal(nfc, "q\xcc\xa3\xcc\x81\xcc\x81", 7);
    free(nfc);
    mc_tok_close(t);
}

static void tokenizer_serves_threads_at_the_same_time(void **state)
{
    struct mc_tok *t = open_model("tests/models/tiny-qwen3-moe");
    char text[] = "Several threads, cafe\xcc\x81, 123 <|im_end|>\n";
    struct job j = {.t = t, .text = text, .n = sizeof text - 1};
    pthread_t thread[4];
    void *failed;
    int i;

    (void)state;
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_job, &j), 0);
    for (i = 0; i < 4; i++) {
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    mc_tok_close(t);
}

static void tokenizer_speed_on_english_is_noted(void **state)
{
    struct mc_tok *t = open_model("tests/models/smollm2-vocab/smollm2-vocab.gguf");
    static const char line[] =
        "It was the best of times, it was the worst of times, it was the age of wisdom, "
        "it "
        "was the age of foolishness; and in 1859 nobody's clock could say which.\n";
    size_t n = 4000000, i;
    struct mc_ids ids = {0};
    char *text = malloc(n);
    double start;

    (void)state;
    for (i = 0; i < n; i++)
        text[i] = line[i % (sizeof line - 1)];
    start = cpu_time();
    assert_int_equal(mc_tok_encode(t, text, n, MC_TOK_SPECIAL, &ids, NULL), 0);
    print_message("# encode: %.1f MB/s, %.2f bytes a token\n",
                  (double)n / (cpu_time() - start) / 1e6, (double)n / (double)ids.n);
    assert_true(ids.n > n / 8);
    mc_ids_free(&ids);
    free(text);
    mc_tok_close(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(tokenizer_gives_every_models_golden_ids),
    cmocka_unit_test(tokenizer_of_kimi_cuts_words_and_long_texts_as_the_vendors_does),
    cmocka_unit_test(tokenizer_of_kimi_never_cuts_a_control_token),
    cmocka_unit_test(tokenizer_of_kimi_names_its_unnamed_slots_by_id),
    cmocka_unit_test(tokenizer_of_a_gguf_is_that_of_its_json),
    cmocka_unit_test(tokenizer_gives_smollm2s_ids),
    cmocka_unit_test(tokenizer_gives_sentencepieces_ids),
    cmocka_unit_test(tokenizer_round_trips_spaces_token_by_token),
    cmocka_unit_test(tokenizer_puts_bos_in_front_only_when_asked),
    cmocka_unit_test(tokenizer_makes_control_tokens_only_when_asked),
    cmocka_unit_test(tokenizer_refuses_bad_utf8_and_keeps_earlier_ids),
    cmocka_unit_test(tokenizer_finds_pieces_and_answers_for_ids_without_token),
    cmocka_unit_test(tokenizer_is_linear_in_long_runs_on_a_small_stack),
    cmocka_unit_test(tokenizer_orders_long_runs_of_marks_in_linear_time),
    cmocka_unit_test(tokenizer_serves_threads_at_the_same_time),
    cmocka_unit_test(tokenizer_speed_on_english_is_noted),
};
MC_TEST_MAIN(tests)

/* test_pump.c - OpenAI's streams and answers, byte for byte, over real sockets. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include <jansson.h>

#include "tests/c/pump_rig.h"

/* "created":123 -> "created":0, so that bytes can be compared. */
static void blank_created(char *s)
{
    char *to = s;

    while (*s) {
        bool hit = strncmp(s, "\"created\":", 10) == 0;

        for (int i = 0; i < 10 && hit; i++)
            *to++ = *s++;
        if (!hit) {
            *to++ = *s++;
            continue;
        }
        *to++ = '0';
        s += strspn(s, "0123456789");
    }
    *to = 0;
}

/* The body of the answer to one request; the engine runs meanwhile. */
static struct answer ask_pump(int status)
{
    struct answer a = ask(rig.port, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");

    if (a.status != status)
        fail_msg("status %d: %s", a.status, a.n ? a.body : "");
    assert_true(a.whole);
    blank_created(a.body);
    return a;
}

#define CHAT                                                                     \
    "data: {\"id\":\"id-1\",\"object\":\"chat.completion.chunk\",\"created\":0," \
    "\"model\":\"m\\\"1\",\"choices\":["
#define TEXT "data: {\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":0," \
             "\"model\":\"m\\\"1\",\"choices\":["
#define DONE "data: [DONE]\n\n"

static void expect(const char *want)
{
    struct answer a = ask_pump(200);

    assert_string_equal(a.body, want);
    forget(&a);
}

static void pump_streams_chat(void **state)
{
    struct answer a;

    (void)state;
    rig.o.dialect = MC_DIALECT_CHAT;
    fake_text(rig.engine, "Hel|lo");
    fake_run(rig.engine, 500);
    a = ask_pump(200);
    assert_string_equal(field(&a, "Content-Type"), "text/event-stream; charset=utf-8");
    assert_string_equal(
        a.body,
        CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"},"
             "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT
             "{\"index\":0,\"delta\":{\"content\":\"lo\"},\"logprobs\":null,"
             "\"finish_reason\":null}]}\n\n" CHAT
             "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}"
             "\n\n" DONE);
    forget(&a);
    rig.limit = 1;
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"},"
                "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT
                "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                "\"length\"}]}\n\n" DONE);
}

static void pump_streams_completions(void **state)
{
    (void)state;
    fake_text(rig.engine, "Hel|lo");
    fake_run(rig.engine, 500);
    expect(TEXT "{\"index\":0,\"text\":\"Hel\",\"logprobs\":null,\"finish_reason\":null}]"
                "}\n\n" TEXT "{\"index\":0,\"text\":\"lo\",\"logprobs\":null,\"finish_"
                             "reason\":null}]}\n\n" TEXT
                "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}"
                "]}\n\n" DONE);
}

static void pump_answers_whole(void **state)
{
    (void)state;
    rig.o.stream = false;
    rig.engine->n_cached = 2;
    fake_text(rig.engine, "Hel|lo");
    fake_run(rig.engine, 500);
    expect("{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":0,\"model\":"
           "\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_"
           "reason\":"
           "\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_"
           "tokens\":5,"
           "\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
    rig.o.dialect = MC_DIALECT_CHAT;
    expect("{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":"
           "\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
           "\"Hello\","
           "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{"
           "\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
           "\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
}

static void pump_tells_usage_when_asked(void **state)
{
    (void)state;
    rig.o.dialect = MC_DIALECT_CHAT;
    rig.o.include_usage = true;
    fake_text(rig.engine, "a|b");
    fake_run(rig.engine, 500);
    expect(CHAT
           "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
           "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n" CHAT
           "{\"index\":0,\"delta\":{\"content\":\"b\"},\"logprobs\":null,"
           "\"finish_reason\":null}],\"usage\":null}\n\n" CHAT
           "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
           "\"usage\":null}\n\n" CHAT
           "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
           "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n" DONE);
    rig.o.continuous_usage = true;
    rig.limit = 1;
    expect(CHAT
           "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
           "\"logprobs\":null,\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":3,"
           "\"completion_tokens\":1,\"total_tokens\":4}}\n\n" CHAT
           "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}],"
           "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}"
           "\n\n" CHAT
           "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,"
           "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n" DONE);
}

static void pump_gives_an_empty_answer_its_role_and_reason(void **state)
{
    (void)state;
    rig.o.dialect = MC_DIALECT_CHAT;
    rig.limit = 0;
    fake_text(rig.engine, "a");
    fake_run(rig.engine, 500);
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHAT
                "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
                "\"length\"}]}\n\n" DONE);
    rig.o.dialect = MC_DIALECT_COMPLETION;
    rig.prompt[0].echo = "p\xC3\xA9";
    rig.prompt[0].n_echo = 3;
    expect(TEXT "{\"index\":0,\"text\":\"p\xC3\xA9\",\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n" TEXT
                "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
                "\"length\"}]}\n\n" DONE);
}

static void pump_keeps_every_event_on_one_line(void **state)
{
    (void)state;
    fake_text(rig.engine, "a\n\nb\r\n|data: x|\xE2\x80\xA8");
    fake_run(rig.engine, 500);
    expect(TEXT "{\"index\":0,\"text\":\"a\\n\\nb\\r\\n\",\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n" TEXT
                "{\"index\":0,\"text\":\"data: "
                "x\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT
                "{\"index\":0,\"text\":\"\\u2028\",\"logprobs\":null,\"finish_reason\":"
                "null}]}\n\n" TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                                   "\"finish_reason\":\"stop\"}]}\n\n" DONE);
}

static void pump_shows_token_ids(void **state)
{
    (void)state;
    rig.o.token_ids = true;
    rig.stop = "zz";
    fake_text(rig.engine, "a|z|b"); /* the second piece's text waits, its id does not */
    fake_run(rig.engine, 500);
    expect(TEXT "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null,"
                "\"prompt_token_ids\":[7,8,9],\"token_ids\":[0]}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null,"
                "\"token_ids\":[1]}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"zb\",\"logprobs\":null,\"finish_reason\":null,"
                "\"token_ids\":[2]}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"token_ids\":[]}]}\n\n"
           DONE);
    rig.o.dialect = MC_DIALECT_CHAT;
    rig.o.stream = false;
    expect("{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":"
           "\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
           "\"azb\","
           "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"token_ids\":"
           "[0,1,2]}],\"prompt_token_ids\":[7,8,9],\"usage\":{\"prompt_tokens\":3,"
           "\"completion_tokens\":3,\"total_tokens\":6,\"prompt_tokens_details\":{"
           "\"cached_tokens\":0}}}");
}

static void pump_shows_logprobs_of_chat(void **state)
{
    (void)state;
    rig.o.dialect = MC_DIALECT_CHAT;
    rig.o.n_logprobs = 2;
    rig.engine->minus_inf = true;
    fake_hex(rig.engine, "61|E6BC");
    fake_run(rig.engine, 500);
    rig.limit = 1;
    expect(CHAT
           "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
           "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97],"
           "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]},"
           "{\"token\":\"\\\\xe6\\\\xbc\",\"logprob\":-9999,\"bytes\":[230,188]}]}],"
           "\"refusal\":null},\"finish_reason\":null}]}\n\n" CHAT
           "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}"
           "\n\n" DONE);
    rig.o.n_logprobs = 0;
    rig.o.stream = false;
    expect(
        "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":"
        "\"m\\\"1\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"a\","
        "\"refusal\":null},\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.25,"
        "\"bytes\":[97],\"top_logprobs\":[]}],\"refusal\":null},\"finish_reason\":"
        "\"length\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,"
        "\"total_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":0}}}");
}

static void pump_shows_logprobs_of_completions(void **state)
{
    (void)state;
    rig.o.n_logprobs = 2;
    rig.o.stream = false;
    rig.prompt[0].echo = "\xC3\xA9+";
    rig.prompt[0].n_echo = 3;
    fake_hex(rig.engine, "61|E6BC|A2|62");
    fake_run(rig.engine, 500);
    expect("{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":0,\"model\":"
           "\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"text\":\"\xC3\xA9+a\xE6\xBC\xA2"
           "b\",\"logprobs\":{"
           "\"tokens\":[\"a\",\"bytes:\\\\xe6\\\\xbc\",\"bytes:\\\\xa2\",\"b\"],"
           "\"token_logprobs\":[-0.25,-0.5,-0.75,-1],\"top_logprobs\":["
           "{\"a\":-0.25,\"bytes:\\\\xe6\\\\xbc\":-0.5},"
           "{\"bytes:\\\\xe6\\\\xbc\":-0.5,\"bytes:\\\\xa2\":-0.75},"
           "{\"bytes:\\\\xa2\":-0.75,\"b\":-1},{\"b\":-1,\"a\":-1.25}],"
           "\"text_offset\":[2,3,4,4]},\"finish_reason\":\"stop\"}],\"usage\":{"
           "\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,"
           "\"prompt_tokens_details\":{\"cached_tokens\":0}}}");
}

static void pump_top_logprobs_have_no_key_twice(void **state)
{
    struct answer a;
    json_error_t e;
    json_t *j;

    (void)state;
    rig.o.n_logprobs = 3;
    rig.o.stream = false;
    fake_text(rig.engine, "x|x|x|y"); /* ids of one text */
    fake_run(rig.engine, 500);
    a = ask_pump(200);
    j = json_loads(a.body, JSON_REJECT_DUPLICATES, &e);
    assert_non_null(j);
    json_decref(j);
    forget(&a);
}

/* ---- several choices --------------------------------------------------------------- */

/* Joins the text of each choice; checks that ids agree and that each choice's reason
 * comes once and last. */
static void collect(const char *body, char text[MAX_N][512], char reason[MAX_N][16],
                    int *n_done, json_t **usage)
{
    while (strncmp(body, "data: ", 6) == 0) {
        const char *end = strstr(body, "\n\n");
        json_error_t e;
        json_t *j, *c, *choices;

        assert_non_null(end);
        if (strncmp(body, DONE, 14) == 0) {
            ++*n_done;
            assert_string_equal(body + 14, "");
            return;
        }
        j = json_loadb(body + 6, (size_t)(end - body) - 6, JSON_REJECT_DUPLICATES, &e);
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "id")), "id-1");
        choices = json_object_get(j, "choices");
        if (json_array_size(choices) == 0)
            *usage = json_incref(json_object_get(j, "usage"));
        for (size_t k = 0; k < json_array_size(choices); k++) {
            int i;
            const char *s;

            c = json_array_get(choices, k);
            i = (int)json_integer_value(json_object_get(c, "index"));
            s = json_string_value(json_object_get(c, "text"));
            assert_string_equal(reason[i], "");
            strcat(text[i], s);
            s = json_string_value(json_object_get(c, "finish_reason"));
            if (s)
                strcpy(reason[i], s);
        }
        json_decref(j);
        body = end + 2;
    }
}

static void pump_interleaves_choices_and_counts_each(void **state)
{
    char text[MAX_N][512] = {{0}}, reason[MAX_N][16] = {{0}};
    json_t *usage = NULL;
    struct answer a;
    int n_done = 0;

    (void)state;
    rig.n = 6;
    rig.o.n_prompts = 2;
    rig.o.include_usage = true;
    rig.limit = 20;
    rig.engine->n_cached = 1;
    rig.engine->loop = true;
    fake_text(rig.engine, "a|b|c");
    fake_run(rig.engine, 300);
    a = ask_pump(200);
    collect(a.body, text, reason, &n_done, &usage);
    for (int i = 0; i < 6; i++) {
        assert_string_equal(text[i], "abcabcabcabcabcabcab");
        assert_string_equal(reason[i], "length");
    }
    assert_int_equal(n_done, 1);
    assert_non_null(usage);
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 3 + 2);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                     6 * 20);
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 125);
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(usage, "prompt_tokens_details"),
                                         "cached_tokens")),
                     2);
    json_decref(usage);
    forget(&a);
}

static void pump_stream_and_whole_say_the_same(void **state)
{
    static const char *const stops[] = {"C DE", "DEFX", "F GH", "AB", NULL};
    static const char *const want[] = {"AB", "ABC DEF GH", "ABC DE", "", "ABC DEF GH"};

    (void)state;
    fake_text(rig.engine, "AB|C D|EF| GH");
    fake_run(rig.engine, 300);
    for (int i = 0; i < 5; i++) {
        char text[MAX_N][512] = {{0}}, reason[MAX_N][16] = {{0}};
        struct answer a;
        json_t *usage = NULL, *j;
        json_error_t e;
        int n_done = 0;

        rig.stop = stops[i];
        rig.o.stream = true;
        a = ask_pump(200);
        collect(a.body, text, reason, &n_done, &usage);
        assert_string_equal(text[0], want[i]);
        assert_string_equal(reason[0], "stop");
        forget(&a);
        rig.o.stream = false;
        a = ask_pump(200);
        j = json_loads(a.body, 0, &e);
        assert_string_equal(
            json_string_value(json_object_get(
                json_array_get(json_object_get(j, "choices"), 0), "text")),
            want[i]);
        json_decref(j);
        forget(&a);
    }
}

/* ---- errors ------------------------------------------------------------------------ */

static void pump_error_before_the_first_token_has_its_status(void **state)
{
    struct answer a;

    (void)state;
    fake_run(rig.engine, 300);
    rig.engine->finish = MC_FINISH_ERROR;
    mc_fail(&rig.engine->fail, MC_EDEADLINE, "the request's deadline passed");
    for (int i = 0; i < 2; i++) {
        rig.o.stream = i == 0;
        a = ask_pump(504);
        assert_non_null(strstr(a.body, "\"code\":\"deadline_exceeded\""));
        forget(&a);
    }
    rig.engine->refuse = MC_ECTX;
    a = ask_pump(400);
    assert_non_null(strstr(a.body, "\"code\":\"context_length_exceeded\""));
    forget(&a);
}

/* Until the text has arrived; it stays to be read. */
static void wait_for_text(int fd, const char *text)
{
    double until = now_s() + 60;
    char buf[4096];
    ssize_t n;

    do {
        usleep(1000);
        n = recv(fd, buf, sizeof buf, MSG_PEEK | MSG_DONTWAIT);
    } while (now_s() < until && (n < 0 || !memmem(buf, (size_t)n, text, strlen(text))));
    assert_true(now_s() < until);
}

static void pump_error_in_a_stream_is_an_event(void **state)
{
    struct answer a;
    int fd = dial(rig.port);

    (void)state;
    rig.n = 2;
    fake_text(rig.engine, "a");
    mc_fail(&rig.engine->fail, MC_ERANK, "rank 1 failed");
    assert_true(says(fd, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n"));
    while (atomic_load(&rig.engine->n_seq) < 2)
        usleep(1000);
    for (int i = 0; i < 2; i++) {
        fake_give(rig.engine, i, rig.engine->script[0]);
        wait_for_text(fd, i == 0 ? "\"index\":0" : "\"index\":1");
    }
    for (int i = 0; i < 2; i++)
        fake_end(rig.engine, i, MC_FINISH_ERROR);
    a = listen_for(fd, 10);
    blank_created(a.body);
    assert_string_equal(
        a.body, TEXT
        "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" TEXT
        "{\"index\":1,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        "data: {\"error\":{\"message\":\"rank 1 failed\",\"type\":\"server_error\","
        "\"param\":null,\"code\":\"rank_failed\"}}\n\n" DONE);
    forget(&a);
    close(fd);
    assert_int_equal(atomic_load(&rig.n_done), 1);
}

static const struct CMUnitTest tests[] = {
    rig_test(pump_streams_chat),
    rig_test(pump_streams_completions),
    rig_test(pump_answers_whole),
    rig_test(pump_tells_usage_when_asked),
    rig_test(pump_gives_an_empty_answer_its_role_and_reason),
    rig_test(pump_keeps_every_event_on_one_line),
    rig_test(pump_shows_token_ids),
    rig_test(pump_shows_logprobs_of_chat),
    rig_test(pump_shows_logprobs_of_completions),
    rig_test(pump_top_logprobs_have_no_key_twice),
    rig_test(pump_interleaves_choices_and_counts_each),
    rig_test(pump_stream_and_whole_say_the_same),
    rig_test(pump_error_before_the_first_token_has_its_status),
    rig_test(pump_error_in_a_stream_is_an_event),
};
MC_TEST_MAIN(tests)

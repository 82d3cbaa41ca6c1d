/* test_pump.c - OpenAI's streams and answers, byte for byte, over real sockets. */
#define _GNU_SOURCE
#include "tests/c/test.h"

#include <jansson.h>

#include "core/serve/pump.h"
#include "tests/c/client.h"
#include "tests/c/fake_engine.h"

enum { MAX_N = 8 };

/* Every request is answered by the pump as the fields say. */
struct rig {
    struct mc_engine *engine;
    struct mc_pump *pump;
    struct mc_http *http;
    uint16_t port;
    struct mc_pump_opts o;
    struct mc_pump_prompt prompt[2];
    int n;
    int32_t limit;
    const char *stop;
    atomic_int n_done, n_gone;
};

static struct rig rig;

static void on_done(void *ctx)
{
    mc_req_done(ctx);
    atomic_fetch_add(&rig.n_done, 1);
}

static int on_request(void *self, struct mc_req *r, struct mc_err *err)
{
    static const int32_t prompt_ids[5] = {1, 2, 3, 4, 5};
    size_t stop_len = rig.stop ? strlen(rig.stop) : 0;
    struct mc_gen_opts o = {.stop = &rig.stop, .stop_len = &stop_len, .n_stop = rig.stop != NULL};
    struct mc_pump_job *j = mc_pump_job(rig.pump, r, &rig.o);
    struct mc_gen *gen[MAX_N];
    int rc;

    (void)self;
    assert_non_null(j);
    o.req.ids = prompt_ids;
    o.req.limit = rig.limit;
    o.req.n_top = rig.o.n_logprobs;
    for (int i = 0; i < rig.n; i++) {
        o.req.n_ids = rig.prompt[i / (rig.n / rig.o.n_prompts)].n_ids;
        rc = mc_gen_open(rig.engine, &o, mc_pump_ring, j, &gen[i], err);
        if (rc < 0) {
            while (i-- > 0)
                mc_gen_close(gen[i]);
            mc_pump_drop(j);
            return rc;
        }
    }
    mc_pump_start(j, gen, rig.n, on_done, r);
    return 0;
}

static void on_gone(void *self, struct mc_req *r)
{
    (void)self;
    atomic_fetch_add(&rig.n_gone, 1);
    mc_pump_gone(rig.pump, r);
}

static const struct mc_edge_ops ops = {on_request, on_gone};

static int setup(void **state)
{
    static const int32_t ids[2][3] = {{7, 8, 9}, {10, 11, 12}};
    struct mc_http_opts h = {.edge = &ops};
    struct mc_err err;

    (void)state;
    memset(&rig, 0, sizeof rig);
    rig.engine = fake_open();
    rig.prompt[0] = (struct mc_pump_prompt){.ids = ids[0], .n_ids = 3};
    rig.prompt[1] = (struct mc_pump_prompt){.ids = ids[1], .n_ids = 2};
    rig.o = (struct mc_pump_opts){.stream = true, .n_logprobs = -1, .model = "m\"1",
                                  .id = "id-1", .prompts = rig.prompt, .n_prompts = 1};
    rig.n = 1;
    rig.limit = -1;
    assert_ok(mc_pump_open(mc_engine_tok(rig.engine), &rig.pump, &err), err);
    assert_ok(mc_http_open(&h, &rig.http, &err), err);
    rig.port = mc_http_port(rig.http);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mc_pump_close(rig.pump);
    mc_http_close(rig.http);
    fake_close(rig.engine);
    return 0;
}

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
    struct answer a = ask(rig.port, "GET /x HTTP/1.1\r\n\r\n");

    if (a.status != status)
        fail_msg("status %d: %s", a.status, a.n ? a.body : "");
    assert_true(a.whole);
    blank_created(a.body);
    return a;
}

#define CHAT "data: {\"id\":\"id-1\",\"object\":\"chat.completion.chunk\",\"created\":0," \
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
             "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        CHAT "{\"index\":0,\"delta\":{\"content\":\"lo\"},\"logprobs\":null,"
             "\"finish_reason\":null}]}\n\n"
        CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
        DONE);
    forget(&a);
    rig.limit = 1;
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"},"
                "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
           DONE);
}

static void pump_streams_completions(void **state)
{
    (void)state;
    fake_text(rig.engine, "Hel|lo");
    fake_run(rig.engine, 500);
    expect(TEXT "{\"index\":0,\"text\":\"Hel\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"lo\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
           DONE);
}

static void pump_answers_whole(void **state)
{
    (void)state;
    rig.o.stream = false;
    rig.engine->n_cached = 2;
    fake_text(rig.engine, "Hel|lo");
    fake_run(rig.engine, 500);
    expect("{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":0,\"model\":\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":"
           "\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
           "\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
    rig.o.dialect = MC_DIALECT_CHAT;
    expect("{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello\","
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
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
                "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
           CHAT "{\"index\":0,\"delta\":{\"content\":\"b\"},\"logprobs\":null,"
                "\"finish_reason\":null}],\"usage\":null}\n\n"
           CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                "\"usage\":null}\n\n"
           CHAT "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
                "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n"
           DONE);
    rig.o.continuous_usage = true;
    rig.limit = 1;
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
                "\"logprobs\":null,\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":3,"
                "\"completion_tokens\":1,\"total_tokens\":4}}\n\n"
           CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}],"
                "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n"
           CHAT "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,"
                "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n"
           DONE);
}

static void pump_gives_an_empty_answer_its_role_and_reason(void **state)
{
    (void)state;
    rig.o.dialect = MC_DIALECT_CHAT;
    rig.limit = 0;
    fake_text(rig.engine, "a");
    fake_run(rig.engine, 500);
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                "\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
           DONE);
    rig.o.dialect = MC_DIALECT_COMPLETION;
    rig.prompt[0].echo = "p\xC3\xA9";
    rig.prompt[0].n_echo = 3;
    expect(TEXT "{\"index\":0,\"text\":\"p\xC3\xA9\",\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
           DONE);
}

static void pump_keeps_every_event_on_one_line(void **state)
{
    (void)state;
    fake_text(rig.engine, "a\n\nb\r\n|data: x|\xE2\x80\xA8");
    fake_run(rig.engine, 500);
    expect(TEXT "{\"index\":0,\"text\":\"a\\n\\nb\\r\\n\",\"logprobs\":null,"
                "\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"data: x\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\\u2028\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"}]}\n\n"
           DONE);
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
    expect("{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"azb\","
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
    expect(CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"a\"},"
                "\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97],"
                "\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]},"
                "{\"token\":\"\\\\xe6\\\\xbc\",\"logprob\":-9999,\"bytes\":[230,188]}]}],"
                "\"refusal\":null},\"finish_reason\":null}]}\n\n"
           CHAT "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
           DONE);
    rig.o.n_logprobs = 0;
    rig.o.stream = false;
    expect("{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":0,\"model\":\"m\\\"1\","
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
    expect("{\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":0,\"model\":\"m\\\"1\","
           "\"choices\":[{\"index\":0,\"text\":\"\xC3\xA9+a\xE6\xBC\xA2""b\",\"logprobs\":{"
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

/* ---- several choices ------------------------------------------------------------------- */

/* Joins the text of each choice; checks that ids agree and that each choice's reason comes
 * once and last. */
static void collect(const char *body, char text[MAX_N][512], char reason[MAX_N][16], int *n_done,
                    json_t **usage)
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
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 6 * 20);
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 125);
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(usage, "prompt_tokens_details"), "cached_tokens")),
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

/* ---- errors ---------------------------------------------------------------------------- */

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

static void pump_error_in_a_stream_is_an_event(void **state)
{
    (void)state;
    rig.n = 2;
    fake_text(rig.engine, "a");
    rig.engine->finish = MC_FINISH_ERROR;
    mc_fail(&rig.engine->fail, MC_ERANK, "rank 1 failed");
    fake_run(rig.engine, 3000);
    expect(TEXT "{\"index\":0,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           TEXT "{\"index\":1,\"text\":\"a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
           "data: {\"error\":{\"message\":\"rank 1 failed\",\"type\":\"server_error\","
           "\"param\":null,\"code\":\"rank_failed\"}}\n\n" DONE);
    assert_int_equal(atomic_load(&rig.n_done), 1);
}

/* ---- clients that leave, read slowly, wait --------------------------------------------- */

static bool all_ended(double seconds)
{
    double until = now_s() + seconds;

    while (fake_live(rig.engine) > 0 && now_s() < until)
        usleep(500);
    return fake_live(rig.engine) == 0;
}

static void leave(bool stream, bool reset)
{
    enum { N = 50 };
    int fd[N], first = atomic_load(&rig.engine->n_seq), done = atomic_load(&rig.n_done);
    double t, worst = 0;

    rig.o.stream = stream;
    for (int i = 0; i < N; i++) {
        char buf[512];

        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\n\r\n");
        if (stream)
            assert_true(hear(fd[i], buf, sizeof buf, now_s() + 5) > 0);
    }
    while (atomic_load(&rig.engine->n_seq) < first + N)
        usleep(500);
    t = now_s();
    for (int i = 0; i < N; i++) {
        if (reset)
            slam(fd[i]);
        else
            close(fd[i]);
    }
    assert_true(all_ended(1));
    for (int i = first; i < first + N; i++) {
        double late = rig.engine->seq[i].t_cancel - t;

        worst = late > worst ? late : worst;
        assert_true(atomic_load(&rig.engine->seq[i].cancelled));
    }
    while (atomic_load(&rig.n_done) < done + N && now_s() - t < 1)
        usleep(500);
    assert_int_equal(atomic_load(&rig.n_done), done + N);
    print_message("# %s, %s: %d cancelled within %.1f ms\n", stream ? "streaming" : "waiting",
                  reset ? "RST" : "FIN", N, worst * 1e3);
}

static void pump_cancels_when_clients_leave(void **state)
{
    (void)state;
    rig.n = 1;
    rig.engine->loop = true;
    fake_text(rig.engine, "a|b|c");
    fake_run(rig.engine, 2000);
    for (int i = 0; i < 4; i++)
        leave(i & 1, i & 2);
    assert_int_equal(mc_http_open_requests(rig.http), 0);
}

static void pump_slow_reader_gets_everything(void **state)
{
    int fd = dial(rig.port), small = 65536;
    char big[FAKE_PIECE];
    struct answer a;

    (void)state;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    memset(big, 'x', sizeof big);
    fake_piece(rig.engine, big, sizeof big);
    rig.engine->loop = true;
    rig.limit = 20000; /* 12 MB: more than the sockets and the response hold */
    fake_run(rig.engine, 0);
    says(fd, "GET /x HTTP/1.1\r\n\r\n");
    while (atomic_load(&rig.engine->n_seq) == 0 || fake_live(rig.engine) > 0)
        usleep(1000);
    usleep(100000);
    a = listen_for(fd, 30);
    assert_true(a.whole);
    assert_true(a.n > (size_t)rig.limit * FAKE_PIECE);
    assert_string_equal(a.body + a.n - 14, DONE);
    forget(&a);
    close(fd);
}

static void pump_pings_while_nothing_comes(void **state)
{
    int fd = dial(rig.port);
    char buf[1024];
    size_t n = 0;

    (void)state;
    rig.o.ping_s = 0.2;
    fake_text(rig.engine, "a");
    says(fd, "GET /x HTTP/1.1\r\n\r\n");
    do { /* header and ping may come apart */
        ssize_t k = hear(fd, buf + n, sizeof buf - 1 - n, now_s() + 10);

        assert_true(k > 0);
        n += (size_t)k;
        buf[n] = 0;
    } while (!strstr(buf, "\r\n\r\n8\r\n: ping\n\n\r\n"));
    assert_int_equal(strncmp(buf, "HTTP/1.1 200", 12), 0);
    close(fd);
}

static void pump_close_ends_jobs_as_draining(void **state)
{
    int fd[2];
    char buf[512];
    struct answer a;
    struct mc_err err;

    (void)state;
    rig.engine->loop = true;
    fake_text(rig.engine, "a");
    fake_run(rig.engine, 2000);
    for (int i = 0; i < 2; i++) {
        rig.o.stream = i == 0;
        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\n\r\n");
        while (atomic_load(&rig.engine->n_seq) == i)
            usleep(500);
        usleep(20000);
    }
    assert_true(hear(fd[0], buf, sizeof buf, now_s() + 5) > 0);
    mc_pump_close(rig.pump);
    assert_int_equal(atomic_load(&rig.n_done), 2);
    a = listen_for(fd[1], 5);
    assert_int_equal(a.status, 503);
    forget(&a);
    assert_true(all_ended(1));
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    assert_ok(mc_pump_open(mc_engine_tok(rig.engine), &rig.pump, &err), err);
}

static void pump_many_streams_at_full_speed(void **state)
{
    enum { N = 64 };
    char text[MAX_N][512], reason[MAX_N][16];
    int fd[N];
    double t = now_s();

    (void)state;
    rig.n = 2;
    rig.limit = 100;
    rig.engine->loop = true;
    fake_text(rig.engine, "a|b|c|d");
    fake_run(rig.engine, 0);
    for (int i = 0; i < N; i++) {
        fd[i] = dial(rig.port);
        says(fd[i], "GET /x HTTP/1.1\r\n\r\n");
    }
    for (int i = 0; i < N; i++) {
        struct answer a = listen_for(fd[i], 30);
        json_t *usage = NULL;
        int n_done = 0;

        assert_true(a.whole);
        memset(text, 0, sizeof text);
        memset(reason, 0, sizeof reason);
        collect(a.body, text, reason, &n_done, &usage);
        assert_int_equal(n_done, 1);
        assert_int_equal(strlen(text[0]), 100);
        assert_string_equal(text[0], text[1]);
        forget(&a);
        close(fd[i]);
    }
    print_message("# %d streams of 2 x 100 tokens in %.0f ms\n", N, (now_s() - t) * 1e3);
}

#define rig_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
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
    rig_test(pump_cancels_when_clients_leave),
    rig_test(pump_slow_reader_gets_everything),
    rig_test(pump_pings_while_nothing_comes),
    rig_test(pump_close_ends_jobs_as_draining),
    rig_test(pump_many_streams_at_full_speed),
};
MC_TEST_MAIN(tests)

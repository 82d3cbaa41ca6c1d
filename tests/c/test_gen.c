/* test_gen.c - a sequence's tokens as text: UTF-8, stop strings, ends, memory's life. */
#include "tests/c/test.h"

#include "core/base/utf8.h"
#include "core/serve/gen.h"
#include "tests/c/fake_engine.h"

struct result {
    char text[2048];
    size_t n;
    int32_t pieces, n_gen;
    enum mc_finish finish;
};

static struct mc_gen *open_gen(struct mc_engine *e, const char *const *stop, int n_stop)
{
    size_t len[16] = {0};
    struct mc_gen_opts o = {.req.limit = -1, .stop = stop, .stop_len = len, .n_stop = n_stop};
    struct mc_gen *g;
    struct mc_err err = {0};

    for (int i = 0; i < n_stop; i++)
        len[i] = strlen(stop[i]);
    assert_ok(mc_gen_open(e, &o, NULL, NULL, &g, &err), err);
    return g;
}

/* Takes what there is; true when the end was reached. */
static bool take_all(struct mc_gen *g, struct result *r)
{
    const struct mc_end *end;
    struct mc_piece p;
    int rc;

    while ((rc = mc_gen_take(g, &p, &end)) == 1) {
        assert_true(mc_utf8_valid(p.text, p.n));
        memcpy(r->text + r->n, p.text, p.n);
        r->n += p.n;
        r->pieces++;
    }
    r->text[r->n] = 0;
    if (rc == 2) {
        r->finish = end->finish;
        r->n_gen = end->usage.n_gen;
    }
    return rc == 2;
}

/* Gives the script up to limit tokens, taking after each (eager) or only at the end. */
static struct result play(struct mc_engine *e, const char *const *stop, int n_stop,
                          int limit, bool eager)
{
    struct mc_gen *g = open_gen(e, stop, n_stop);
    int i = atomic_load(&e->n_seq) - 1;
    bool whole = limit < 0 || limit >= e->n_script;
    struct result r = {0};

    for (int k = 0; k < (whole ? e->n_script : limit) && !e->seq[i].cancelled; k++) {
        fake_give(e, i, e->script[k]);
        if (eager)
            assert_false(take_all(g, &r));
    }
    fake_end(e, i, e->seq[i].cancelled ? MC_FINISH_CANCEL
                   : whole             ? MC_FINISH_STOP
                                       : MC_FINISH_LENGTH);
    assert_true(take_all(g, &r));
    mc_gen_close(g);
    return r;
}

static void gen_text_is_whole_utf8_wherever_it_is_cut(void **state)
{
    static const char *const want[] = {"", "\xEF\xBF\xBD", "\xEF\xBF\xBD", "\xF0\x9F\x98\x80",
                                       "\xF0\x9F\x98\x80\xEF\xBF\xBD",
                                       "\xF0\x9F\x98\x80\xC3\xA9",
                                       "\xF0\x9F\x98\x80\xC3\xA9\xEF\xBF\xBD",
                                       "\xF0\x9F\x98\x80\xC3\xA9\xE6\xBC\xA2"};
    struct mc_engine *e = fake_open();

    (void)state;
    fake_hex(e, "F0|9F98|80|C3|A9|E6BC|A2");
    for (int limit = 1; limit <= 7; limit++) {
        for (int eager = 0; eager < 2; eager++) {
            struct result r = play(e, NULL, 0, limit, eager);

            assert_string_equal(r.text, want[limit]);
            assert_int_equal(r.pieces, limit);
            assert_int_equal(r.finish, limit < 7 ? MC_FINISH_LENGTH : MC_FINISH_STOP);
        }
    }
    fake_close(e);
}

static void gen_bytes_that_are_no_utf8_are_replaced(void **state)
{
    struct mc_engine *e = fake_open();
    const char *stop[] = {"zz"};
    struct result r;

    (void)state;
    fake_hex(e, "E5|27|FF|C0|80|ED|A0|80|F8");
    r = play(e, stop, 1, -1, true);
    assert_string_equal(r.text,
                        "\xEF\xBF\xBD'\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
                        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_int_equal(r.pieces, 9);
    fake_close(e);
}

/* Every way to split text into pieces, taken eagerly and late. */
static void split_all(const char *text, const char *const *stop, int n_stop,
                      const char *want, bool cut)
{
    size_t n = strlen(text);
    struct mc_engine *e = fake_open();

    for (unsigned mask = 0; mask < 1u << (n - 1); mask++) {
        size_t from = 0;

        fake_clear(e);
        atomic_store(&e->n_seq, 0);
        memset(e->seq, 0, 2 * sizeof *e->seq);
        for (size_t i = 1; i <= n; i++) {
            if (i == n || (mask >> (i - 1) & 1)) {
                fake_piece(e, text + from, i - from);
                from = i;
            }
        }
        for (int eager = 0; eager < 2; eager++) {
            struct result r = play(e, stop, n_stop, -1, eager);

            if (strcmp(r.text, want) != 0)
                fail_msg("split %x of \"%s\": \"%s\", want \"%s\"", mask, text, r.text,
                         want);
            assert_int_equal(r.finish, MC_FINISH_STOP);
            if (cut)
                assert_true(atomic_load(&e->seq[eager].cancelled) || !eager);
            else
                assert_false(atomic_load(&e->seq[eager].cancelled));
        }
    }
    fake_close(e);
}

static void gen_stop_strings_cut_alike_for_every_split(void **state)
{
    static const struct {
        const char *text, *stop[3], *want;
        bool cut;
    } row[] = {
        {"ABC DEF GH", {"C DE"}, "AB", true},
        {"ABC DEF GH", {"DEFX"}, "ABC DEF GH", false},
        {"ABC DEF GH", {"F GH"}, "ABC DE", true},
        {"ABC DEF GH", {"AB"}, "", true},
        {"ABC DEF GH", {"GHI", "HI"}, "ABC DEF GH", false},
        {"aaab", {"aab"}, "a", true},
        {"xabcd", {"ab", "abc"}, "x", true},
        {"xabcd", {"abc", "ab"}, "x", true},
        {"xabcd", {"bc", "abc"}, "x", true},      /* complete at once: the longer */
        {"xabcd", {"abc", "b"}, "xa", true},      /* the first to be complete */
        {"ababababc", {"ababc"}, "abab", true},
        {"aXbYc", {"Y", "X"}, "a", true},
        {"\xC3\xA9\xE6\xBC\xA2z", {"\xE6\xBC\xA2"}, "\xC3\xA9", true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int n = 0;

        while (n < 3 && row[i].stop[n])
            n++;
        split_all(row[i].text, row[i].stop, n, row[i].want, row[i].cut);
    }
}

static void gen_cancels_at_the_cut_and_counts_up_to_it(void **state)
{
    struct mc_engine *e = fake_open();
    const char *stop[] = {"STOP"};
    struct mc_gen *g;
    struct result r = {0};

    (void)state;
    fake_text(e, "one |two S|TO|Px|late|later");
    g = open_gen(e, stop, 1);
    for (int k = 0; k < 6; k++) /* the engine runs ahead of the reader */
        fake_give(e, 0, k);
    assert_false(atomic_load(&e->seq[0].cancelled));
    assert_false(take_all(g, &r));
    assert_string_equal(r.text, "one two ");
    assert_true(atomic_load(&e->seq[0].cancelled));
    assert_true(atomic_load(&e->seq[0].stopped)); /* not as one who was cancelled */
    fake_give(e, 0, 5);
    assert_false(take_all(g, &r));
    fake_end(e, 0, MC_FINISH_CANCEL);
    assert_true(take_all(g, &r));
    assert_true(take_all(g, &r)); /* stays ended */
    assert_int_equal(r.finish, MC_FINISH_STOP);
    assert_int_equal(r.n_gen, 4);
    assert_int_equal(r.pieces, 4);
    mc_gen_close(g);
    fake_close(e);
}

static void gen_holds_back_only_what_may_begin_a_stop(void **state)
{
    struct mc_engine *e = fake_open();
    const char *stop[] = {"STOP"};
    struct mc_gen *g;
    struct result r = {0};

    (void)state;
    fake_text(e, "ab|cS|T.|S");
    g = open_gen(e, stop, 1);
    fake_give(e, 0, 0);
    take_all(g, &r);
    assert_string_equal(r.text, "ab");
    fake_give(e, 0, 1);
    take_all(g, &r);
    assert_string_equal(r.text, "ab"); /* the piece waits with what it holds */
    fake_give(e, 0, 2);
    take_all(g, &r);
    assert_string_equal(r.text, "abcST.");
    fake_give(e, 0, 3);
    take_all(g, &r);
    assert_int_equal(r.pieces, 3);
    fake_end(e, 0, MC_FINISH_LENGTH);
    assert_true(take_all(g, &r));
    assert_string_equal(r.text, "abcST.S");
    assert_int_equal(r.pieces, 4);
    mc_gen_close(g);
    fake_close(e);
}

static void gen_control_tokens_are_no_text_unless_kept(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        struct mc_engine *e = fake_open();
        struct mc_gen_opts o = {.req.limit = -1, .keep_special = keep};
        struct mc_gen *g;
        struct mc_err err;
        struct result r = {0};

        (void)state;
        fake_text(e, "a|<|im_end|>|b");
        e->special[1] = true;
        assert_ok(mc_gen_open(e, &o, NULL, NULL, &g, &err), err);
        for (int k = 0; k < e->n_script; k++)
            fake_give(e, 0, k);
        fake_end(e, 0, MC_FINISH_STOP);
        assert_true(take_all(g, &r));
        assert_string_equal(r.text, keep ? "a<im_end>b" : "aim_end>b");
        assert_int_equal(r.pieces, 5);
        mc_gen_close(g);
        fake_close(e);
    }
}

static void gen_refuses_stops_out_of_range(void **state)
{
    struct mc_engine *e = fake_open();
    char big[300];
    const char *stop[17];
    size_t len[17];
    struct mc_gen_opts o = {.stop = stop, .stop_len = len};
    struct mc_gen *g;
    struct mc_err err;
    static const struct {
        int n;
        size_t len;
        int rc;
    } row[] = {{17, 1, MC_EARG}, {1, 0, MC_EARG}, {1, 257, MC_EARG}, {-1, 1, MC_EARG}};

    (void)state;
    memset(big, 'x', sizeof big);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        for (int k = 0; k < 17; k++) {
            stop[k] = big;
            len[k] = row[i].len;
        }
        o.n_stop = row[i].n;
        assert_int_equal(mc_gen_open(e, &o, NULL, NULL, &g, &err), row[i].rc);
        assert_string_equal(err.param, "stop");
    }
    stop[0] = "\xFF";
    len[0] = 1;
    o.n_stop = 1;
    assert_int_equal(mc_gen_open(e, &o, NULL, NULL, &g, &err), MC_EARG);
    assert_int_equal(atomic_load(&e->n_seq), 0);
    fake_close(e);
}

static void gen_passes_the_engines_refusal_on(void **state)
{
    struct mc_engine *e = fake_open();
    struct mc_gen_opts o = {.req.limit = 1};
    struct mc_gen *g;
    struct mc_err err;

    (void)state;
    e->refuse = MC_ECTX;
    assert_int_equal(mc_gen_open(e, &o, NULL, NULL, &g, &err), MC_ECTX);
    assert_string_equal(err.text, "refused by the test");
    fake_close(e);
}

static void gen_closed_early_cancels_and_outlives_its_reader(void **state)
{
    struct mc_engine *e = fake_open();
    struct mc_gen *g;

    (void)state;
    fake_text(e, "a|b");
    g = open_gen(e, NULL, 0);
    fake_give(e, 0, 0);
    mc_gen_close(g);
    assert_true(atomic_load(&e->seq[0].cancelled));
    fake_give(e, 0, 1); /* the engine may be a step behind */
    fake_end(e, 0, MC_FINISH_CANCEL);
    mc_gen_close(NULL);
    fake_close(e);
}

static void gen_wait_times_out_and_wakes(void **state)
{
    struct mc_engine *e = fake_open();
    struct mc_gen *g;
    const struct mc_end *end;
    struct mc_piece p;
    double t;

    (void)state;
    fake_text(e, "a");
    g = open_gen(e, NULL, 0);
    t = fake_now();
    assert_int_equal(mc_gen_wait(g, 0.05, &p, &end), 0);
    assert_true(fake_now() - t >= 0.05 && fake_now() - t < 1);
    fake_run(e, 20000);
    assert_int_equal(mc_gen_wait(g, 5, &p, &end), 1);
    assert_int_equal(mc_gen_wait(g, -1, &p, &end), 2);
    assert_int_equal(end->finish, MC_FINISH_STOP);
    mc_gen_close(g);
    fake_close(e);
}

struct bell {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int rings;
    atomic_bool closed; /* ringing now would be a use after close */
};

static void ring(void *ctx)
{
    struct bell *b = ctx;

    if (atomic_load(&b->closed))
        abort();
    pthread_mutex_lock(&b->lock);
    b->rings++;
    pthread_cond_signal(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static void bell_wait(struct bell *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->rings == 0)
        pthread_cond_wait(&b->cond, &b->lock);
    b->rings = 0;
    pthread_mutex_unlock(&b->lock);
}

/* Reads to the end by the bell alone, or closes after some pieces, while the engine runs. */
static void gen_bell_tells_of_everything_and_stops_at_close(void **state)
{
    struct mc_engine *e = fake_open();

    (void)state;
    fake_text(e, "a|b|c|d|e|f|g|h");
    e->loop = true;
    fake_run(e, 50);
    for (int i = 0; i < 300; i++) {
        struct bell *b = calloc(1, sizeof *b);
        struct mc_gen_opts o = {.req.limit = 24};
        struct mc_gen *g;
        struct mc_err err;
        struct result r = {0};

        pthread_mutex_init(&b->lock, NULL);
        pthread_cond_init(&b->cond, NULL);
        assert_ok(mc_gen_open(e, &o, ring, b, &g, &err), err);
        do
            bell_wait(b);
        while (!take_all(g, &r) && (i % 3 != 0 || r.pieces < i % 20));
        if (i % 3 != 0) {
            assert_int_equal(r.pieces, 24);
            assert_int_equal(r.finish, MC_FINISH_LENGTH);
        }
        mc_gen_close(g);
        atomic_store(&b->closed, true);
        usleep(i % 7 == 0 ? 200 : 0);
        pthread_cond_destroy(&b->cond);
        pthread_mutex_destroy(&b->lock);
        free(b);
    }
    fake_close(e);
}

static void gen_lagging_reader_loses_nothing(void **state)
{
    struct mc_engine *e = fake_open();
    struct mc_gen *g;
    struct result r = {0};

    (void)state;
    fake_text(e, "0|1|2|3|4|5|6|7|8|9");
    g = open_gen(e, NULL, 0);
    for (int k = 0; k < 7; k++)
        fake_give(e, 0, k % 10);
    take_all(g, &r); /* so that the ring wraps when it grows */
    for (int k = 7; k < 1000; k++)
        fake_give(e, 0, k % 10);
    fake_end(e, 0, MC_FINISH_LENGTH);
    assert_true(take_all(g, &r));
    assert_int_equal(r.n, 1000);
    for (int k = 0; k < 1000; k++)
        assert_int_equal(r.text[k], '0' + k % 10);
    mc_gen_close(g);
    fake_close(e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gen_text_is_whole_utf8_wherever_it_is_cut),
    cmocka_unit_test(gen_bytes_that_are_no_utf8_are_replaced),
    cmocka_unit_test(gen_stop_strings_cut_alike_for_every_split),
    cmocka_unit_test(gen_cancels_at_the_cut_and_counts_up_to_it),
    cmocka_unit_test(gen_holds_back_only_what_may_begin_a_stop),
    cmocka_unit_test(gen_control_tokens_are_no_text_unless_kept),
    cmocka_unit_test(gen_refuses_stops_out_of_range),
    cmocka_unit_test(gen_passes_the_engines_refusal_on),
    cmocka_unit_test(gen_closed_early_cancels_and_outlives_its_reader),
    cmocka_unit_test(gen_wait_times_out_and_wakes),
    cmocka_unit_test(gen_bell_tells_of_everything_and_stops_at_close),
    cmocka_unit_test(gen_lagging_reader_loses_nothing),
};
MC_TEST_MAIN(tests)

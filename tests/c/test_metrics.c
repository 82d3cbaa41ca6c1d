/* test_metrics.c - the exposition's text, and metrics that scripts declare. */
#include "tests/c/test.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/metrics.h"

/* ---- an engine that only has numbers ----------------------------------------------- */

const double mc_bucket_le[MC_N_BUCKET - 1] = {0.0001, 0.0005, 0.001, 0.0025, 0.005,
                                              0.01,   0.025,  0.05,  0.1,    0.25,
                                              0.5,    1,      2.5,   10,     60};

void mc_engine_status(struct mc_engine *e, struct mc_engine_status *out)
{
    (void)e;
    *out = (struct mc_engine_status){.n_waiting = 3, .n_running = 5, .p_total = 100, .p_free = 40,
                                     .p_held = 25, .p_cached = 35, .weight_bytes = 123456789012};
    snprintf(out->backend, sizeof out->backend, "cpu (avx2 \"x\")");
}

double mc_engine_counter(const struct mc_engine *e, enum mc_counter c)
{
    (void)e;
    return 1000 + c;
}

void mc_engine_histogram(const struct mc_engine *e, enum mc_hist_id h,
                         struct mc_histogram *out)
{
    (void)e;
    for (int i = 0; i < MC_N_BUCKET; i++)
        out->count[i] = i;
    out->sum = 0.1 + h;
}

static char text[1 << 20];

static const char *render(struct mc_metrics *m, bool engine)
{
    const struct mc_metrics_model model = {engine ? (struct mc_engine *)text : NULL,
                                           "a\\b\"c\nd"};
    struct mc_metrics_source s = {.metrics = m, .models = &model, .n_model = 1,
                                  .version = "0.1"};
    size_t n = mc_metrics_render(&s, text, sizeof text);

    assert_true(n < sizeof text);
    assert_int_equal(n, strlen(text));
    return text;
}

static void has(const char *line)
{
    if (!strstr(text, line))
        fail_msg("lacks: %s", line);
}

static void metrics_show_the_engine_by_vllms_names(void **state)
{
    char want[256];

    (void)state;
    render(NULL, true);
#define ALL "{model_name=\"a\\\\b\\\"c\\nd\",engine=\"0\""
    has("# HELP mascon_num_requests_running requests in prefill or decode\n"
        "# TYPE mascon_num_requests_running gauge\n"
        "mascon_num_requests_running" ALL "} 5\n");
    has("\nmascon_num_requests_waiting" ALL "} 3\n");
    has("\nmascon_kv_cache_usage_perc" ALL "} 0.25\n");
    has("\nmascon_weight_bytes" ALL "} 123456789012\n");
    has("# TYPE mascon_prompt_tokens_total counter\n");
    snprintf(want, sizeof want, "\nmascon_generation_tokens_total" ALL "} %d\n",
             1000 + MC_C_generation_tokens_total);
    has(want);
    snprintf(want, sizeof want,
             "# TYPE mascon_request_success_total counter\n"
             "mascon_request_success_total" ALL ",finished_reason=\"stop\"} %d\n",
             1000 + MC_C_requests_stop_total);
    has(want);
    has(",finished_reason=\"abort\"} ");
    has("# TYPE mascon_time_to_first_token_seconds histogram\n"
        "mascon_time_to_first_token_seconds_bucket" ALL ",le=\"0.0001\"} 0\n"
        "mascon_time_to_first_token_seconds_bucket" ALL ",le=\"0.0005\"} 1\n"
        "mascon_time_to_first_token_seconds_bucket" ALL ",le=\"0.001\"} 3\n");
    has("mascon_time_to_first_token_seconds_bucket" ALL ",le=\"60\"} 105\n"
        "mascon_time_to_first_token_seconds_bucket" ALL ",le=\"+Inf\"} 120\n"
        "mascon_time_to_first_token_seconds_sum" ALL "} 0.1\n"
        "mascon_time_to_first_token_seconds_count" ALL "} 120\n");
    has("mascon_build_info{version=\"0.1\",backend=\"cpu (avx2 \\\"x\\\")\"} 1\n");
    assert_null(strstr(text, "requests_stop_total"));
    render(NULL, false);
    assert_null(strstr(text, "num_requests"));
}

static int declare(struct mc_metrics *m, char kind, const char *name, const char *label)
{
    struct mc_metric_def d = {.name = name, .help = "h\\e\nlp", .labels = &label,
                              .n_labels = label != NULL};
    struct mc_err err;
    int id = -1, rc = kind == 'c'   ? mc_metrics_counter(m, &d, &id, &err)
                      : kind == 'g' ? mc_metrics_gauge(m, &d, &id, &err)
                                    : mc_metrics_histogram(m, &d, &id, &err);

    return rc < 0 ? rc : id;
}

static void metrics_of_scripts_are_shown(void **state)
{
    struct mc_metrics *m;
    struct mc_err err;
    const char *best = "be\"st", *other = "other";
    int c, g, h;

    (void)state;
    assert_ok(mc_metrics_open(&m, &err), err);
    c = declare(m, 'c', "picks", "route");
    g = declare(m, 'g', "depth", NULL);
    h = declare(m, 'h', "think_seconds", "route");
    assert_true(c >= 0 && g >= 0 && h >= 0);
    assert_int_equal(mc_metrics_add(m, c, &best, 2), 0);
    assert_int_equal(mc_metrics_add(m, c, &best, 0.5), 0);
    assert_int_equal(mc_metrics_add(m, c, &other, 1), 0);
    assert_int_equal(mc_metrics_set(m, g, NULL, -7.25), 0);
    assert_int_equal(mc_metrics_add(m, g, NULL, -1), 0);
    assert_int_equal(mc_metrics_observe(m, h, &best, 0.001), 0);
    assert_int_equal(mc_metrics_observe(m, h, &best, 0.3), 0);
    assert_int_equal(mc_metrics_observe(m, h, &best, 1000), 0);
    render(m, false);
    has("# HELP mascon_picks_total h\\\\e\\nlp\n# TYPE mascon_picks_total counter\n"
        "mascon_picks_total{route=\"be\\\"st\"} 2.5\nmascon_picks_total{route=\"other\"} 1\n");
    has("# TYPE mascon_depth gauge\nmascon_depth -8.25\n");
    has("mascon_think_seconds_bucket{route=\"be\\\"st\",le=\"0.001\"} 1\n");
    has("mascon_think_seconds_bucket{route=\"be\\\"st\",le=\"0.5\"} 2\n");
    has("mascon_think_seconds_bucket{route=\"be\\\"st\",le=\"60\"} 2\n"
        "mascon_think_seconds_bucket{route=\"be\\\"st\",le=\"+Inf\"} 3\n"
        "mascon_think_seconds_sum{route=\"be\\\"st\"} 1000.301\n"
        "mascon_think_seconds_count{route=\"be\\\"st\"} 3\n");
    mc_metrics_close(m);
}

static void metrics_refuse_what_does_not_fit(void **state)
{
    struct mc_metrics *m;
    struct mc_err err;
    const char *v = "x", *two[2] = {"a", "a"};
    double le[] = {1, 2, 2};
    struct mc_metric_def d = {.name = "ok", .labels = two, .n_labels = 2};
    char name[64];
    int c, g, h, id;

    (void)state;
    assert_ok(mc_metrics_open(&m, &err), err);
    assert_int_equal(declare(m, 'c', "", NULL), MC_EARG);
    assert_int_equal(declare(m, 'c', "Upper", NULL), MC_EARG);
    assert_int_equal(declare(m, 'c', "9x", NULL), MC_EARG);
    assert_int_equal(declare(m, 'c', "a-b", NULL), MC_EARG);
    assert_int_equal(declare(m, 'g', "x_total", NULL), MC_EARG);
    assert_int_equal(declare(m, 'g', "x_bucket", NULL), MC_EARG);
    assert_int_equal(declare(m, 'h', "x", "le"), MC_EARG);
    assert_int_equal(declare(m, 'c', "x", "bad label"), MC_EARG);
    assert_int_equal(mc_metrics_counter(m, &d, &id, &err), MC_EARG);
    d = (struct mc_metric_def){.name = "ok", .le = le, .n_le = 3};
    assert_int_equal(mc_metrics_histogram(m, &d, &id, &err), MC_EARG);
    d = (struct mc_metric_def){.name = "ok", .help = "\xff"};
    assert_int_equal(mc_metrics_gauge(m, &d, &id, &err), MC_EARG);
    assert_string_equal(err.param, "help");
    assert_int_equal(declare(m, 'c', "prompt_tokens_total", NULL), MC_EEXIST);
    assert_int_equal(declare(m, 'c', "prompt_tokens", NULL), MC_EEXIST);
    assert_int_equal(declare(m, 'g', "num_requests_running", NULL), MC_EEXIST);
    assert_int_equal(declare(m, 'c', "request_success", NULL), MC_EEXIST);
    c = declare(m, 'c', "x", "l");
    g = declare(m, 'g', "y", "l");
    h = declare(m, 'h', "z", "l");
    assert_int_equal(declare(m, 'c', "x", "l"), c); /* a reload */
    assert_int_equal(declare(m, 'c', "x_total", "l"), c);
    assert_int_equal(declare(m, 'c', "x", "k"), MC_EEXIST);
    assert_int_equal(declare(m, 'h', "y", "l"), MC_EEXIST);
    assert_int_equal(mc_metrics_add(m, c, &v, -1), MC_EARG);
    assert_int_equal(mc_metrics_add(m, c, &v, NAN), MC_EARG);
    assert_int_equal(mc_metrics_add(m, c, &v, INFINITY), MC_EARG);
    assert_int_equal(mc_metrics_add(m, c, NULL, 1), MC_EARG);
    assert_int_equal(mc_metrics_set(m, c, &v, 1), MC_EARG);
    assert_int_equal(mc_metrics_observe(m, g, &v, 1), MC_EARG);
    assert_int_equal(mc_metrics_add(m, h, &v, 1), MC_EARG);
    assert_int_equal(mc_metrics_add(m, -1, &v, 1), MC_EARG);
    assert_int_equal(mc_metrics_add(m, 1 << 20, &v, 1), MC_EARG);
    for (int i = 3; i < MC_METRIC_MAX; i++) {
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(declare(m, 'g', name, NULL), i);
    }
    assert_int_equal(declare(m, 'g', "over", NULL), MC_ELIMIT);
    mc_metrics_close(m);
}

static void metrics_label_sets_are_capped_and_add_up(void **state)
{
    struct mc_metrics *m;
    struct mc_err err;
    char value[128];
    const char *v = value, *p;
    double sum = 0;
    int c, n = 0;

    (void)state;
    assert_ok(mc_metrics_open(&m, &err), err);
    c = declare(m, 'c', "by_user", "user");
    for (int i = 0; i < 1000; i++) {
        snprintf(value, sizeof value, "user-%d", i);
        assert_int_equal(mc_metrics_add(m, c, &v, 1), 0);
    }
    render(m, false);
    has("mascon_by_user_total{user=\"user-0\"} 1\n");
    has("mascon_by_user_total{user=\"_other\"} 936\n");
    for (p = text; (p = strstr(p, "\nmascon_by_user_total{")) != NULL; p++) {
        sum += atof(strchr(p, '}') + 1);
        n++;
    }
    assert_int_equal(n, MC_METRIC_SETS + 1);
    assert_true(sum == 1000);
    mc_metrics_close(m);
}

static void metrics_label_values_are_cut_and_cleaned(void **state)
{
    struct mc_metrics *m;
    struct mc_err err;
    char big[200];
    const char *v = big;
    int c;

    (void)state;
    assert_ok(mc_metrics_open(&m, &err), err);
    c = declare(m, 'c', "x", "l");
    memset(big, 'a', 61);
    strcpy(big + 61, "\xC3\xA9\xC3\xA9"); /* the cut leaves no half character */
    assert_int_equal(mc_metrics_add(m, c, &v, 1), 0);
    memset(big, '\xFF', sizeof big);
    big[199] = 0;
    assert_int_equal(mc_metrics_add(m, c, &v, 1), 0);
    assert_int_equal(mc_metrics_add(m, c, &v, 1), 0);
    render(m, false);
    has("aaa\xC3\xA9\"} 1\n");
    has("\xEF\xBF\xBD\"} 2\n");
    mc_metrics_close(m);
}

static void metrics_that_do_not_fit_say_so(void **state)
{
    struct mc_metrics_source s = {.n_model = 0};
    char *small;
    size_t n = mc_metrics_render(&s, text, sizeof text);

    (void)state;
    for (size_t cap = 0; cap <= n + 2; cap++) {
        small = malloc(cap ? cap : 1); /* exact, for the sanitizer */
        if (cap <= n)
            assert_true(mc_metrics_render(&s, small, cap) > cap);
        else
            assert_int_equal(mc_metrics_render(&s, small, cap), n);
        free(small);
    }
}

struct adder {
    struct mc_metrics *m;
    int id;
};

static void *add_many(void *arg)
{
    struct adder *a = arg;
    char value[16];
    const char *v = value;

    for (int i = 0; i < 20000; i++) {
        snprintf(value, sizeof value, "%d", i % 100);
        mc_metrics_add(a->m, a->id, &v, 1);
    }
    return NULL;
}

static void metrics_threads_lose_no_count(void **state)
{
    struct adder a;
    pthread_t t[4];
    struct mc_err err;
    double sum = 0;

    (void)state;
    assert_ok(mc_metrics_open(&a.m, &err), err);
    a.id = declare(a.m, 'c', "n", "l");
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, add_many, &a);
    for (int i = 0; i < 20; i++)
        render(a.m, false);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    render(a.m, false);
    for (const char *p = text; (p = strstr(p, "\nmascon_n_total{")) != NULL; p++)
        sum += atof(strchr(p, '}') + 1);
    assert_true(sum == 80000);
    mc_metrics_close(a.m);
}

static void metrics_pass_promtool(void **state)
{
    struct mc_metrics *m;
    struct mc_err err;
    const char *v = "a\"\\\n\xC3\xA9";
    FILE *f;
    int rc;

    (void)state;
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        print_message("promtool (Debian package prometheus) is not installed\n");
        skip();
    }
    assert_ok(mc_metrics_open(&m, &err), err);
    mc_metrics_add(m, declare(m, 'c', "picks", "route"), &v, 1);
    mc_metrics_set(m, declare(m, 'g', "depth", "route"), &v, 1e300);
    mc_metrics_observe(m, declare(m, 'h', "think_seconds", "route"), &v, 0.2);
    render(m, true);
    f = popen("promtool check metrics 2>&1", "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    rc = pclose(f);
    assert_int_equal(rc, 0);
    mc_metrics_close(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(metrics_show_the_engine_by_vllms_names),
    cmocka_unit_test(metrics_of_scripts_are_shown),
    cmocka_unit_test(metrics_refuse_what_does_not_fit),
    cmocka_unit_test(metrics_label_sets_are_capped_and_add_up),
    cmocka_unit_test(metrics_label_values_are_cut_and_cleaned),
    cmocka_unit_test(metrics_that_do_not_fit_say_so),
    cmocka_unit_test(metrics_threads_lose_no_count),
    cmocka_unit_test(metrics_pass_promtool),
};
MC_TEST_MAIN(tests)

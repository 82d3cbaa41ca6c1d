/* metrics_text.c - the Prometheus exposition (text format 0.0.4).
 *
 * Owns nothing. THREAD: any; a scrape reads atomics and takes mc_engine_status's lock
 * once an engine.
 * Three scrapes a second are usual: nothing is allocated, and a page takes under a
 * millisecond.
 *
 * Names are vLLM's where they mean the same; "perc" there is a fraction of 1. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/serve/metrics_int.h"

#define PREFIX "mascon_"

struct text {
    char *p;
    size_t n, cap; /* n goes on counting past cap */
    int n_engine;  /* those that run; of each: */
    struct mc_engine *engine[MC_METRICS_MODELS];
    struct mc_engine_status status[MC_METRICS_MODELS];
    char labels[MC_METRICS_MODELS][320]; /* {model_name="...",engine="0" */
};

static void put(struct text *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *fmt, ...)
{
    size_t left = t->n < t->cap ? t->cap - t->n : 0;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(left ? t->p + t->n : NULL, left, fmt, ap);
    va_end(ap);
    t->n += n > 0 ? (size_t)n : 0;
}

/* A label's value or (quotes false) a help text. */
static void put_escaped(struct text *t, const char *s, bool quotes)
{
    for (; *s; s++) {
        if (*s == '\n')
            put(t, "\\n");
        else if (*s == '\\' || (*s == '"' && quotes))
            put(t, "\\%c", *s);
        else
            put(t, "%c", *s);
    }
}

/* The fewest digits of 15 and 17 that read back the same. */
static void put_number(struct text *t, double v)
{
    char s[40];

    snprintf(s, sizeof s, "%.15g", v);
    if (strtod(s, NULL) != v)
        snprintf(s, sizeof s, "%.17g", v);
    put(t, "%s", s);
}

static void head(struct text *t, const char *name, const char *type, const char *help)
{
    put(t, "# HELP %s ", name);
    put_escaped(t, help, false);
    put(t, "\n# TYPE %s %s\n", name, type);
}

/* ---- the engine's ------------------------------------------------------------------ */

/* The labels that all samples of model i have, escaped once. */
static void engine_labels(char *labels, size_t cap, const char *model, int i)
{
    const size_t tail = sizeof "\",engine=\"00\"";
    struct text *l = &(struct text){.p = labels, .cap = cap - tail};

    put(l, "{model_name=\"");
    put_escaped(l, model, true);
    if (l->n >= l->cap) /* an absurd name: none is better than half an escape */
        l->n = strlen("{model_name=\"");
    l->cap = cap;
    put(l, "\",engine=\"%d\"", i);
}

static void take_engines(struct text *t, const struct mc_metrics_source *src)
{
    for (int i = 0; i < src->n_model && i < MC_METRICS_MODELS; i++) {
        int k = t->n_engine;

        if (!src->models[i].engine)
            continue;
        t->engine[k] = src->models[i].engine;
        mc_engine_status(t->engine[k], &t->status[k]);
        engine_labels(t->labels[k], sizeof t->labels[k], src->models[i].name, i);
        t->n_engine++;
    }
}

/* Of engine i; with one more label unless key is NULL. */
static void sample(struct text *t, int i, const char *name, const char *key,
                   const char *value, double v)
{
    put(t, PREFIX "%s%s", name, t->labels[i]);
    if (key)
        put(t, ",%s=\"%s\"", key, value);
    put(t, "} ");
    put_number(t, v);
    put(t, "\n");
}

/* Gauges from mc_engine_status: name, help, value. */
#define GAUGES(X)                                                                      \
    X(num_requests_running, "requests in prefill or decode", s->n_running)             \
    X(num_requests_waiting, "requests that wait to start", s->n_waiting)               \
    X(num_requests_paused, "requests that gave up their pages and wait to come back",  \
      s->n_paused)                                                                     \
    X(kv_cache_usage_perc, "KV pages in use, 1 is all",                                \
      s->p_total ? 1 - (double)(s->p_free + s->p_cached) / s->p_total : 0)             \
    X(kv_pages, "KV pages in the pool", s->p_total)                                    \
    X(kv_pages_free, "KV pages that hold nothing", s->p_free)                          \
    X(kv_pages_held, "KV pages that requests hold", s->p_held)                         \
    X(kv_pages_cached, "KV pages kept for reuse", s->p_cached)                         \
    X(kv_pages_pending, "KV pages that wait for a step to pass", s->p_pending)         \
    X(kv_tokens, "tokens that the KV pool has room for", s->kv_tokens)                 \
    X(weight_bytes, "bytes of the loaded weights", (double)s->weight_bytes)            \
    X(policy_generation, "number of the policy generation that serves", s->generation) \
    X(engine_failed, "1 after a fatal error", s->failed)

static void rank_gauges(struct text *t)
{
    head(t, PREFIX "rank_weight_bytes", "gauge",
         "bytes of the weights that a rank holds");
    for (int i = 0; i < t->n_engine; i++)
        for (int32_t k = 0; k < t->status[i].n_rank; k++) {
            char rank[4];

            snprintf(rank, sizeof rank, "%d", k % MC_MAX_RANKS);
            sample(t, i, "rank_weight_bytes", "rank", rank,
                   (double)t->status[i].rank_weight_bytes[k]);
        }
}

static void gauges(struct text *t)
{
#define X(name, help, value)                                \
    head(t, PREFIX #name, "gauge", help);                   \
    for (int i = 0; i < t->n_engine; i++) {                 \
        const struct mc_engine_status *s = &t->status[i];   \
                                                            \
        sample(t, i, #name, NULL, NULL, (double)(value));   \
    }
    GAUGES(X)
#undef X
    rank_gauges(t);
}

/* How a request ended is a label, in vLLM's words. */
static const char *finished_reason(enum mc_counter c)
{
    return c == MC_C_requests_stop_total     ? "stop"
           : c == MC_C_requests_length_total ? "length"
           : c == MC_C_requests_cancel_total ? "abort"
           : c == MC_C_requests_error_total  ? "error"
                                             : NULL;
}

static void counters(struct text *t)
{
    static const char *const name[] = {
#define X(name, help) #name,
        MC_COUNTERS(X)
#undef X
    };
    static const char *const help[] = {
#define X(name, help) help,
        MC_COUNTERS(X)
#undef X
    };
    char full[80];

    for (int c = 0; c < MC_N_COUNTER; c++) {
        if (finished_reason((enum mc_counter)c))
            continue;
        snprintf(full, sizeof full, PREFIX "%s", name[c]);
        head(t, full, "counter", help[c]);
        for (int i = 0; i < t->n_engine; i++)
            sample(t, i, name[c], NULL, NULL,
                   mc_engine_counter(t->engine[i], (enum mc_counter)c));
    }
    head(t, PREFIX "request_success_total", "counter", "requests that ended, by how");
    for (int i = 0; i < t->n_engine; i++)
        for (int c = 0; c < MC_N_COUNTER; c++)
            if (finished_reason((enum mc_counter)c))
                sample(t, i, "request_success_total", "finished_reason",
                       finished_reason((enum mc_counter)c),
                       mc_engine_counter(t->engine[i], (enum mc_counter)c));
}

static void histogram(struct text *t, int i, const char *name,
                      const struct mc_histogram *h)
{
    char bucket[80], le[40];
    double below = 0;

    snprintf(bucket, sizeof bucket, "%s_bucket", name);
    for (int k = 0; k < MC_N_BUCKET; k++) {
        below += h->count[k];
        if (k < MC_N_BUCKET - 1)
            snprintf(le, sizeof le, "%.15g", mc_bucket_le[k]);
        sample(t, i, bucket, "le", k < MC_N_BUCKET - 1 ? le : "+Inf", below);
    }
    snprintf(bucket, sizeof bucket, "%s_sum", name);
    sample(t, i, bucket, NULL, NULL, h->sum);
    snprintf(bucket, sizeof bucket, "%s_count", name);
    sample(t, i, bucket, NULL, NULL, below);
}

static void histograms(struct text *t)
{
    struct mc_histogram h;

#define X(name, help)                                       \
    head(t, PREFIX #name, "histogram", help);               \
    for (int i = 0; i < t->n_engine; i++) {                 \
        mc_engine_histogram(t->engine[i], MC_H_##name, &h); \
        histogram(t, i, #name, &h);                         \
    }
    MC_HISTOGRAMS(X)
#undef X
}

/* ---- scripts' ---------------------------------------------------------------------- */

static void set_labels(struct text *t, const struct mc_metric *m,
                       const struct mc_series *s, const char *le)
{
    const char *sep = "{";

    for (int i = 0; i < m->n_labels; i++, sep = ",") {
        put(t, "%s%s=\"", sep, m->label[i]);
        put_escaped(t, s->value[i], true);
        put(t, "\"");
    }
    if (le)
        put(t, "%sle=\"%s\"", sep, le);
    if (le || m->n_labels > 0)
        put(t, "}");
}

static void set_sample(struct text *t, const struct mc_metric *m,
                       const struct mc_series *s, const char *suffix, const char *le,
                       double v)
{
    put(t, "%s%s", m->name, suffix);
    set_labels(t, m, s, le);
    put(t, " ");
    put_number(t, v);
    put(t, "\n");
}

static void set_histogram(struct text *t, const struct mc_metric *m,
                          const struct mc_series *s)
{
    double below = 0;
    char le[40];

    for (int i = 0; i <= m->n_le; i++) {
        below += atomic_load_explicit(&s->count[i], memory_order_relaxed);
        if (i < m->n_le)
            snprintf(le, sizeof le, "%.15g", m->le[i]);
        set_sample(t, m, s, "_bucket", i < m->n_le ? le : "+Inf", below);
    }
    set_sample(t, m, s, "_sum", NULL, atomic_load_explicit(&s->v, memory_order_relaxed));
    set_sample(t, m, s, "_count", NULL, below);
}

static void declared(struct text *t, struct mc_metrics *all)
{
    static const char *const type[] = {"counter", "gauge", "histogram"};
    int n = atomic_load_explicit(&all->n, memory_order_acquire);

    for (int i = 0; i < n; i++) {
        struct mc_metric *m = &all->metric[i];
        int n_series = atomic_load_explicit(&m->n_series, memory_order_acquire);

        head(t, m->name, type[m->kind], m->help);
        for (int k = 0; k < n_series; k++) {
            const struct mc_series *s = &m->series[k];

            if (m->kind == MC_METRIC_HISTOGRAM)
                set_histogram(t, m, s);
            else
                set_sample(t, m, s, "", NULL,
                           atomic_load_explicit(&s->v, memory_order_relaxed));
        }
    }
}

/* ---- all --------------------------------------------------------------------------- */

bool mc_metrics_is_builtin(const char *name)
{
    static const char *const taken[] = {
#define X(name, help, value) PREFIX #name,
        GAUGES(X)
#undef X
#define X(name, help) PREFIX #name,
        MC_COUNTERS(X) MC_HISTOGRAMS(X)
#undef X
        PREFIX "request_success_total", PREFIX "build_info", PREFIX "http_requests_open",
    };

    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcmp(taken[i], name) == 0)
            return true;
    return false;
}

static void build_info(struct text *t, const struct mc_metrics_source *src,
                       const char *backend)
{
    head(t, PREFIX "build_info", "gauge", "version and backend; always 1");
    put(t, PREFIX "build_info{version=\"");
    put_escaped(t, src->version ? src->version : "", true);
    put(t, "\",backend=\"");
    put_escaped(t, backend, true);
    put(t, "\"} 1\n");
}

size_t mc_metrics_render(const struct mc_metrics_source *src, char *buf, size_t cap)
{
    struct text *t = &(struct text){.p = buf, .cap = cap};

    take_engines(t, src);
    build_info(t, src, t->status[0].backend);
    if (src->http) {
        head(t, PREFIX "http_requests_open", "gauge", "HTTP requests without their end");
        put(t, PREFIX "http_requests_open %d\n", mc_http_open_requests(src->http));
    }
    if (t->n_engine > 0) {
        gauges(t);
        counters(t);
        histograms(t);
    }
    if (src->metrics)
        declared(t, src->metrics);
    return t->n < cap ? t->n : t->n + 1; /* vsnprintf's NUL needs a byte of its own */
}

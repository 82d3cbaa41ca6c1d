/* metrics.c - metrics that scripts declare: counters, gauges, histograms with labels.
 *
 * Owns the registry. THREAD: any.
 *
 * Rows are only ever added, and published by a release store of their number, so that the
 * common case (a metric and a label set that are known) reads without a lock: a step hook
 * that counts never waits for a scrape. A number is changed by compare and swap.
 * Always true: at most MC_METRIC_SETS label sets of a metric and one more, "_other",
 * where the rest is added up, so that a label made of user input costs bounded memory and
 * the total stays right. */
#include "core/serve/metrics_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

static const double default_le[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                    0.5,   1,      2.5,   5,    10,    30,   60};

/* ---- declaring --------------------------------------------------------------------- */

static bool is_name(const char *s, size_t max)
{
    size_t n = strlen(s);

    return n > 0 && n <= max && *s >= 'a' && *s <= 'z' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);

    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Suffixes with a meaning of their own: a series of another metric could get the name. */
static int check_name(const struct mc_metric_def *d, enum mc_metric_kind kind,
                      struct mc_err *err)
{
    static const char *const taken[] = {"_bucket", "_sum", "_count", "_info", "_created"};

    if (!is_name(d->name, 48))
        return mc_fail_param(err, MC_EARG, "name",
                             "metric name \"%s\": [a-z][a-z0-9_]*, at most 48", d->name);
    if (d->help && !mc_utf8_valid(d->help, strlen(d->help)))
        return mc_fail_param(err, MC_EARG, "help", "metric \"%s\": its help is not UTF-8",
                             d->name);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (ends_with(d->name, taken[i]))
            return mc_fail_param(err, MC_EARG, "name", "metric name \"%s\" ends with %s",
                                 d->name, taken[i]);
    if (kind != MC_METRIC_COUNTER && ends_with(d->name, "_total"))
        return mc_fail_param(err, MC_EARG, "name",
                             "\"%s\": only a counter ends with _total", d->name);
    return 0;
}

static int check_labels(const struct mc_metric_def *d, enum mc_metric_kind kind,
                        struct mc_err *err)
{
    if (d->n_labels < 0 || d->n_labels > MC_METRIC_LABELS)
        return mc_fail_param(err, MC_EARG, "labels",
                             "metric \"%s\" has %d labels, at most %d", d->name,
                             d->n_labels, MC_METRIC_LABELS);
    for (int i = 0; i < d->n_labels; i++) {
        bool twice = false;

        for (int k = 0; k < i; k++)
            twice |= strcmp(d->labels[i], d->labels[k]) == 0;
        if (!is_name(d->labels[i], 24) || strncmp(d->labels[i], "__", 2) == 0 || twice ||
            (kind == MC_METRIC_HISTOGRAM && strcmp(d->labels[i], "le") == 0))
            return mc_fail_param(err, MC_EARG, "labels", "metric \"%s\": label \"%s\"",
                                 d->name, d->labels[i]);
    }
    return 0;
}

static int check_bounds(const struct mc_metric_def *d, struct mc_err *err)
{
    if (!d->le)
        return 0;
    if (d->n_le < 1 || d->n_le > MC_METRIC_BUCKETS)
        return mc_fail_param(err, MC_EARG, "le", "metric \"%s\" has %d bounds, 1 to %d",
                             d->name, d->n_le, MC_METRIC_BUCKETS);
    for (int i = 0; i < d->n_le; i++)
        if (!isfinite(d->le[i]) || (i > 0 && d->le[i] <= d->le[i - 1]))
            return mc_fail_param(err, MC_EARG, "le", "metric \"%s\": bounds must rise",
                                 d->name);
    return 0;
}

/* An unpublished row from a checked definition. */
static void fill(struct mc_metric *m, const struct mc_metric_def *d,
                 enum mc_metric_kind kind)
{
    const double *le = d->le ? d->le : default_le;
    bool total = kind != MC_METRIC_COUNTER || ends_with(d->name, "_total");

    memset(m, 0, sizeof *m);
    m->kind = kind;
    snprintf(m->name, sizeof m->name, "mascon_%s%s", d->name, total ? "" : "_total");
    snprintf(m->help, sizeof m->help, "%s", d->help && *d->help ? d->help : d->name);
    m->help[mc_utf8_ready(m->help, strlen(m->help))] = 0;
    m->n_labels = d->n_labels;
    for (int i = 0; i < d->n_labels; i++)
        snprintf(m->label[i], sizeof m->label[i], "%s", d->labels[i]);
    if (kind != MC_METRIC_HISTOGRAM)
        return;
    m->n_le = d->le ? d->n_le : (int)(sizeof default_le / sizeof default_le[0]);
    memcpy(m->le, le, (size_t)m->n_le * sizeof *le);
}

static bool same(const struct mc_metric *a, const struct mc_metric *b)
{
    return a->kind == b->kind && a->n_labels == b->n_labels && a->n_le == b->n_le &&
           memcmp(a->label, b->label, sizeof a->label) == 0 &&
           memcmp(a->le, b->le, sizeof a->le) == 0;
}

/* Lock held. */
static int add_row(struct mc_metrics *m, const struct mc_metric_def *d,
                   enum mc_metric_kind kind, int *id, struct mc_err *err)
{
    int n = atomic_load(&m->n);
    struct mc_metric row;

    fill(&row, d, kind);
    if (mc_metrics_is_builtin(row.name))
        return mc_fail_param(err, MC_EEXIST, "name", "%s is the engine's own", row.name);
    for (int i = 0; i < n; i++) {
        if (strcmp(m->metric[i].name, row.name) != 0)
            continue;
        if (!same(&m->metric[i], &row))
            return mc_fail_param(err, MC_EEXIST, "name",
                                 "%s was declared with another kind, labels or bounds",
                                 row.name);
        *id = i;
        return 0;
    }
    if (n == MC_METRIC_MAX)
        return mc_fail_param(err, MC_ELIMIT, "name",
                             "%d metrics are declared, no room for %s", n, row.name);
    row.series = calloc(MC_METRIC_SETS + 1, sizeof *row.series);
    if (!row.series)
        return mc_fail(err, MC_ENOMEM, "no memory for metric %s", row.name);
    m->metric[n] = row;
    atomic_store_explicit(&m->n, n + 1, memory_order_release);
    *id = n;
    return 0;
}

static int declare(struct mc_metrics *m, const struct mc_metric_def *d,
                   enum mc_metric_kind kind, int *id, struct mc_err *err)
{
    int rc = check_name(d, kind, err);

    if (rc == 0)
        rc = check_labels(d, kind, err);
    if (rc == 0 && kind == MC_METRIC_HISTOGRAM)
        rc = check_bounds(d, err);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&m->lock);
    rc = add_row(m, d, kind, id, err);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

int mc_metrics_counter(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                       struct mc_err *err)
{
    return declare(m, d, MC_METRIC_COUNTER, id, err);
}

int mc_metrics_gauge(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                     struct mc_err *err)
{
    return declare(m, d, MC_METRIC_GAUGE, id, err);
}

int mc_metrics_histogram(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                         struct mc_err *err)
{
    return declare(m, d, MC_METRIC_HISTOGRAM, id, err);
}

/* ---- adding up --------------------------------------------------------------------- */

struct key {
    char value[MC_METRIC_LABELS][MC_METRIC_VALUE];
};

/* A label's value as it is kept: valid UTF-8 of at most 63 bytes. */
static void clean_value(const char *s, char out[MC_METRIC_VALUE])
{
    size_t n = strnlen(s, MC_METRIC_VALUE - 1);
    char wide[3 * MC_METRIC_VALUE];

    n = mc_utf8_ready(s, n); /* not half a character at the cut */
    n = mc_utf8_clean(s, n, wide);
    if (n > MC_METRIC_VALUE - 1)
        n = mc_utf8_ready(wide, MC_METRIC_VALUE - 1);
    memcpy(out, wide, n);
    out[n] = 0;
}

static struct mc_series *find(struct mc_metric *m, const struct key *k, int n)
{
    for (int i = 0; i < n && i < MC_METRIC_SETS; i++) {
        int same_labels = 0;

        while (same_labels < m->n_labels &&
               strcmp(m->series[i].value[same_labels], k->value[same_labels]) == 0)
            same_labels++;
        if (same_labels == m->n_labels)
            return &m->series[i];
    }
    return NULL;
}

/* Lock held: the set that another thread just added, a new one, or "_other". */
static struct mc_series *add_set(struct mc_metric *m, const struct key *k)
{
    int n = atomic_load(&m->n_series);
    struct mc_series *s = find(m, k, n);

    if (s)
        return s;
    s = &m->series[n < MC_METRIC_SETS ? n : MC_METRIC_SETS];
    if (n > MC_METRIC_SETS)
        return s;
    for (int i = 0; i < m->n_labels; i++)
        snprintf(s->value[i], sizeof s->value[i], "%s",
                 n < MC_METRIC_SETS ? k->value[i] : "_other");
    atomic_store_explicit(&m->n_series, n + 1, memory_order_release);
    return s;
}

static void plus(_Atomic double *d, double v)
{
    double old = atomic_load_explicit(d, memory_order_relaxed);

    while (!atomic_compare_exchange_weak_explicit(d, &old, old + v, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

/* The row of a valid id of one of two kinds, else NULL. */
static struct mc_metric *row_of(struct mc_metrics *m, int id, enum mc_metric_kind kind,
                                enum mc_metric_kind or_kind)
{
    if (id < 0 || id >= atomic_load_explicit(&m->n, memory_order_acquire))
        return NULL;
    if (m->metric[id].kind != kind && m->metric[id].kind != or_kind)
        return NULL;
    return &m->metric[id];
}

static struct mc_series *series_of(struct mc_metrics *all, struct mc_metric *m,
                                   const char *const *values)
{
    struct mc_series *s;
    struct key k;

    for (int i = 0; i < m->n_labels; i++) {
        if (!values || !values[i])
            return NULL;
        clean_value(values[i], k.value[i]);
    }
    s = find(m, &k, atomic_load_explicit(&m->n_series, memory_order_acquire));
    if (s)
        return s;
    pthread_mutex_lock(&all->lock);
    s = add_set(m, &k);
    pthread_mutex_unlock(&all->lock);
    return s;
}

int mc_metrics_add(struct mc_metrics *m, int id, const char *const *values, double v)
{
    struct mc_metric *row = row_of(m, id, MC_METRIC_COUNTER, MC_METRIC_GAUGE);
    struct mc_series *s;

    if (!row || !isfinite(v) || (v < 0 && row->kind == MC_METRIC_COUNTER))
        return MC_EARG;
    s = series_of(m, row, values);
    if (!s)
        return MC_EARG;
    plus(&s->v, v);
    return 0;
}

int mc_metrics_set(struct mc_metrics *m, int id, const char *const *values, double v)
{
    struct mc_metric *row = row_of(m, id, MC_METRIC_GAUGE, MC_METRIC_GAUGE);
    struct mc_series *s;

    if (!row || !isfinite(v))
        return MC_EARG;
    s = series_of(m, row, values);
    if (!s)
        return MC_EARG;
    atomic_store_explicit(&s->v, v, memory_order_relaxed);
    return 0;
}

int mc_metrics_observe(struct mc_metrics *m, int id, const char *const *values, double v)
{
    struct mc_metric *row = row_of(m, id, MC_METRIC_HISTOGRAM, MC_METRIC_HISTOGRAM);
    struct mc_series *s;
    int i = 0;

    if (!row || !isfinite(v))
        return MC_EARG;
    s = series_of(m, row, values);
    if (!s)
        return MC_EARG;
    while (i < row->n_le && v > row->le[i])
        i++;
    plus(&s->count[i], 1);
    plus(&s->v, v);
    return 0;
}

/* ---- life -------------------------------------------------------------------------- */

int mc_metrics_open(struct mc_metrics **out, struct mc_err *err)
{
    struct mc_metrics *m = calloc(1, sizeof *m);

    if (!m)
        return mc_fail(err, MC_ENOMEM, "no memory for metrics");
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return 0;
}

void mc_metrics_close(struct mc_metrics *m)
{
    if (!m)
        return;
    for (int i = 0; i < atomic_load(&m->n); i++)
        free(m->metric[i].series);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* metrics.h - Prometheus text: the engine's numbers and those that scripts declare.
 *
 * Names are "mascon_" and vLLM's base names, so that dashboards port by their prefix.
 * OWNS the declared metrics, which outlive the VM that declared them: declaring the same
 * name again (a reload) gives the same id. THREAD: any. Adding to a label set that was
 * seen before takes no lock. */
#ifndef MC_SERVE_METRICS_H
#define MC_SERVE_METRICS_H

#include "core/mc.h"
#include "core/serve/http.h"

struct mc_metrics;

enum {
    MC_METRIC_MAX = 128,    /* declared metrics */
    MC_METRIC_LABELS = 4,   /* label names of one */
    MC_METRIC_SETS = 64,    /* label sets of one: more are added up under "_other" */
    MC_METRIC_BUCKETS = 20, /* bounds of a histogram, +Inf not counted */
};

struct mc_metric_def {
    const char
        *name; /* without "mascon_": [a-z][a-z0-9_]*, 48 bytes; a counter's "_total"
                         is added when it lacks, and it alone may have one */
    const char *help;
    const char *const *labels; /* [a-z][a-z0-9_]*, 24 bytes */
    int n_labels;
    const double *le; /* histograms: rising bounds, NULL: seconds from 1 ms to 60 s */
    int n_le;
};

int mc_metrics_open(struct mc_metrics **out, struct mc_err *err);
void mc_metrics_close(struct mc_metrics *m);

/* Each sets *id. MC_EEXIST when the name is the engine's or was declared otherwise,
 * MC_ELIMIT when there are too many, MC_EARG for a bad name. */
int mc_metrics_counter(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                       struct mc_err *err);
int mc_metrics_gauge(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                     struct mc_err *err);
int mc_metrics_histogram(struct mc_metrics *m, const struct mc_metric_def *d, int *id,
                         struct mc_err *err);

/* values: one for each label, cut to 63 bytes; NULL when it has none. add: counters (v >=
 * 0) and gauges; set: gauges; observe: histograms. MC_EARG for another kind, a bad id or
 * a v that is not finite. */
int mc_metrics_add(struct mc_metrics *m, int id, const char *const *values, double v);
int mc_metrics_set(struct mc_metrics *m, int id, const char *const *values, double v);
int mc_metrics_observe(struct mc_metrics *m, int id, const char *const *values, double v);

struct mc_metrics_model {
    struct mc_engine *engine; /* NULL while the model loads */
    const char *name;
};

enum { MC_METRICS_MODELS = 16 };

struct mc_metrics_source {
    struct mc_metrics *metrics; /* may be NULL, as http may */
    const struct mc_http *http;
    const struct mc_metrics_model *models;
    int n_model;
    const char *version;
};
/* Writes the exposition; returns its length, or more than cap when it does not fit (then
 * nothing useful is in buf). */
size_t mc_metrics_render(const struct mc_metrics_source *s, char *buf, size_t cap);

#endif

/* metrics_int.h - the registry as metrics.c keeps it and metrics_text.c shows it. */
#ifndef MC_SERVE_METRICS_INT_H
#define MC_SERVE_METRICS_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/serve/metrics.h"

enum mc_metric_kind { MC_METRIC_COUNTER, MC_METRIC_GAUGE, MC_METRIC_HISTOGRAM };

enum { MC_METRIC_VALUE = 64 };

struct mc_series {
    char value[MC_METRIC_LABELS][MC_METRIC_VALUE];
    _Atomic double v; /* histograms: the sum */
    _Atomic double count[MC_METRIC_BUCKETS + 1]; /* not cumulative, the last is +Inf */
};

struct mc_metric {
    enum mc_metric_kind kind;
    char name[64], help[200]; /* name with "mascon_" */
    char label[MC_METRIC_LABELS][32];
    int n_labels;
    double le[MC_METRIC_BUCKETS];
    int n_le;
    struct mc_series *series; /* [MC_METRIC_SETS + 1], the last is "_other" */
    atomic_int n_series;      /* published with release */
};

struct mc_metrics {
    pthread_mutex_t lock; /* taken alone, to declare and to add a label set */
    struct mc_metric metric[MC_METRIC_MAX];
    atomic_int n; /* published with release */
};

/* True when the engine's part of the text has this name (with "mascon_"). */
bool mc_metrics_is_builtin(const char *name);

#endif

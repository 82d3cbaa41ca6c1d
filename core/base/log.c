/* log.c - log lines to stderr as text or JSON.
 *
 * Owns the table of unit levels, which only grows. THREAD: any; the table is read
 * without a lock: a row is published by the release store of n_unit.
 * Always true: a line is at most LINE_MAX_ bytes and one write(2), so lines of
 * different threads never mix; control bytes in a message are escaped and what is not
 * UTF-8 is replaced, so that a line of JSON is JSON. */
#include "core/base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/err.h"
#include "core/base/utf8.h"

enum { LINE_MAX_ = 2048, UNIT_MAX = 32 };

struct unit {
    char name[16];
    atomic_int level;
};

static struct unit units[UNIT_MAX];
static atomic_int n_unit;
static atomic_int default_level = MC_LOG_INFO;
static atomic_bool as_json;
static pthread_mutex_t add_lock = PTHREAD_MUTEX_INITIALIZER; /* taken alone */

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};

static struct unit *find(const char *name)
{
    int n = atomic_load_explicit(&n_unit, memory_order_acquire);

    for (int i = 0; i < n; i++)
        if (strcmp(units[i].name, name) == 0)
            return &units[i];
    return NULL;
}

bool mc_log_on(enum mc_log_level level, const char *unit)
{
    struct unit *u = find(unit);
    int min = atomic_load_explicit(u ? &u->level : &default_level, memory_order_relaxed);

    return (int)level >= min;
}

int mc_log_set(const char *unit, enum mc_log_level level)
{
    int rc = 0, n;
    struct unit *u;

    if (!unit) {
        atomic_store(&default_level, (int)level);
        return 0;
    }
    if (strlen(unit) >= sizeof units[0].name)
        return MC_EARG;
    pthread_mutex_lock(&add_lock);
    u = find(unit);
    n = atomic_load(&n_unit);
    if (u) {
        atomic_store(&u->level, (int)level);
    } else if (n == UNIT_MAX) {
        rc = MC_ELIMIT;
    } else {
        snprintf(units[n].name, sizeof units[n].name, "%s", unit);
        atomic_store(&units[n].level, (int)level);
        atomic_store_explicit(&n_unit, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&add_lock);
    return rc;
}

int mc_log_units(struct mc_log_unit *out, int cap)
{
    int n = 0, all = atomic_load(&default_level), have = atomic_load(&n_unit);

    for (int i = -1; i < have && n < cap; i++, n++) {
        snprintf(out[n].name, sizeof out[n].name, "%s", i < 0 ? "all" : units[i].name);
        out[n].level = level_names[i < 0 ? all : atomic_load(&units[i].level)];
    }
    return n;
}

int mc_log_level_of(const char *name)
{
    for (int i = 0; i <= MC_LOG_OFF; i++)
        if (strcmp(level_names[i], name) == 0)
            return i;
    return MC_EARG;
}

void mc_log_json(bool on)
{
    atomic_store(&as_json, on);
}

/* Copies src with control bytes (and, for JSON, quotes) escaped; returns the length. */
static size_t escape(char *dst, size_t cap, const char *src, bool json)
{
    size_t n = 0;

    for (const unsigned char *s = (const unsigned char *)src; *s && n + 7 < cap; s++) {
        if (*s < 0x20 || *s == 0x7F)
            n += (size_t)snprintf(dst + n, cap - n, json ? "\\u%04x" : "\\x%02x", *s);
        else if (json && (*s == '"' || *s == '\\'))
            n += (size_t)snprintf(dst + n, cap - n, "\\%c", *s);
        else
            dst[n++] = (char)*s;
    }
    dst[n] = 0;
    return n;
}

void mc_log_at(enum mc_log_level level, const char *unit, const char *fmt, ...)
{
    char msg[LINE_MAX_ / 2], clean[3 * sizeof msg + 1], safe[LINE_MAX_ - 160];
    char line[LINE_MAX_], when[32];
    bool json = atomic_load_explicit(&as_json, memory_order_relaxed);
    struct timespec ts;
    struct tm tm;
    va_list ap;
    int n;

    if (!mc_log_on(level, unit))
        return;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    clean[mc_utf8_clean(msg, strlen(msg), clean)] = 0;
    escape(safe, sizeof safe, clean, json);
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    n = snprintf(
        line, sizeof line,
        json
            ? "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"unit\":\"%s\",\"msg\":\"%s\"}\n"
            : "%s.%03ldZ %-5s %s: %s\n",
        when, ts.tv_nsec / 1000000, level_names[level], unit, safe);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nowhere left to report to */
}

/* log.h - structured log lines: a message and key=value fields, a level per unit.
 *
 * Units are the program's parts ("engine", "kv", "lua", "http", ...): their levels can
 * change at run time. A line is one write(2) to stderr, text or JSON. Values that came
 * from outside (model text, headers, scripts) are escaped. THREAD: any. */
#ifndef MC_BASE_LOG_H
#define MC_BASE_LOG_H

#include <stdbool.h>

enum mc_log_level { MC_LOG_DEBUG, MC_LOG_INFO, MC_LOG_WARN, MC_LOG_ERROR, MC_LOG_OFF };

/* fmt makes the message; fields go in it as "key=value" by the caller's own words. */
#define mc_debug(unit, ...) mc_log_at(MC_LOG_DEBUG, (unit), __VA_ARGS__)
#define mc_info(unit, ...) mc_log_at(MC_LOG_INFO, (unit), __VA_ARGS__)
#define mc_warn(unit, ...) mc_log_at(MC_LOG_WARN, (unit), __VA_ARGS__)
#define mc_error(unit, ...) mc_log_at(MC_LOG_ERROR, (unit), __VA_ARGS__)
void mc_log_at(enum mc_log_level level, const char *unit, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

bool mc_log_on(enum mc_log_level level, const char *unit);

/* unit NULL sets the default level for units that have none of their own. At most 32
 * units; returns 0, MC_ELIMIT, or MC_EARG for a name over 15 bytes. */
int mc_log_set(const char *unit, enum mc_log_level level);
/* The levels: "all", then each unit that has one of its own; at most cap. */
struct mc_log_unit {
    char name[16];
    const char *level;
};
int mc_log_units(struct mc_log_unit *out, int cap);
int mc_log_level_of(const char *name); /* "debug" -> MC_LOG_DEBUG; MC_EARG if unknown */
void mc_log_json(bool on);

#endif

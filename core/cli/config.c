/* config.c - the table of settings, and everything that walks it.
 *
 * OWNS the strings of a struct mc_settings. THREAD: one.
 * Always true: every setting holds a value that passed its check; text[i] is what was
 * typed for it and the struct's field what that means. */
#define _GNU_SOURCE /* asprintf */
#include "core/cli/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RESTART = false, LIVE = true, NEAREST_MAX = 64 };

const struct mc_setting mc_setting_list[MC_N_SETTING] = {
#define SERVE MC_FOR_SERVE
#define CHAT MC_FOR_CHAT
#define EVAL MC_FOR_EVAL
#define BENCH MC_FOR_BENCH
#define SOCK MC_FOR_SOCK
#define MC_SETTING(key, kind, def, limits, when, who, help) \
    {#key, def, limits, help, MC_SET_##kind, when, who, offsetof(struct mc_settings, key)},
#include "core/cli/config.def"
#undef MC_SETTING
#undef SERVE
#undef CHAT
#undef EVAL
#undef BENCH
#undef SOCK
};

/* ---- nearest name ------------------------------------------------------------------ */

/* Edits (insert, drop, change, swap neighbours) that turn a into b. */
static unsigned distance(const char *a, const char *b)
{
    unsigned d[3][NEAREST_MAX + 1];
    size_t na = strlen(a), nb = strlen(b), i, j;
    unsigned *two, *one, *now;

    if (na > NEAREST_MAX || nb > NEAREST_MAX)
        return NEAREST_MAX;
    for (j = 0; j <= nb; j++)
        d[0][j] = (unsigned)j;
    for (i = 1; i <= na; i++) {
        two = d[(i + 1) % 3];
        one = d[(i + 2) % 3];
        now = d[i % 3];
        now[0] = (unsigned)i;
        for (j = 1; j <= nb; j++) {
            unsigned best = one[j - 1] + (a[i - 1] != b[j - 1]);

            if (one[j] + 1 < best)
                best = one[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two[j - 2] + 1 < best)
                best = two[j - 2] + 1;
            now[j] = best;
        }
    }
    return d[na % 3][nb];
}

const char *mc_nearest(const char *word, const char *const *list)
{
    const char *best = NULL;
    unsigned least = NEAREST_MAX;

    for (; *list; list++) {
        unsigned d = distance(word, *list);

        if (d < least) {
            least = d;
            best = *list;
        }
    }
    return least <= 1 + strlen(word) / 4 ? best : NULL;
}

int mc_setting_find(const char *key, const char **nearest)
{
    const char *keys[MC_N_SETTING + 1];
    int i;

    for (i = 0; i < MC_N_SETTING; i++) {
        keys[i] = mc_setting_list[i].key;
        if (strcmp(keys[i], key) == 0)
            return i;
    }
    keys[i] = NULL;
    if (nearest)
        *nearest = mc_nearest(key, keys);
    return -1;
}

/* ---- one value --------------------------------------------------------------------- */

static int set_int(const struct mc_setting *row, const char *text, int64_t *out,
                   const char *shown, struct mc_err *err)
{
    long long lo = 0, hi = 0, v;
    char *end;

    sscanf(row->limits, "%lld..%lld", &lo, &hi);
    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return mc_fail_param(err, MC_EARG, row->key, "%s: '%.60s' is not a whole number",
                             shown, text);
    if (v < lo || v > hi)
        return mc_fail_param(err, MC_EARG, row->key, "%s: %lld is outside %s", shown, v,
                             row->limits);
    *out = v;
    return 0;
}

bool mc_size_of(const char *text, double whole, double *out)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end), scale = 1;
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;

    if (*end == '%') {
        scale = whole / 100;
        end++;
    } else if (unit) {
        scale = (double)(1ull << (10 * (unit - units + 1)));
        end++;
        end += strncmp(end, "iB", 2) == 0 ? 2 : *end == 'B';
    }
    *out = v * scale;
    return end != text && !*end && v >= 0 && *out <= 9e15;
}

static int set_size(const struct mc_setting *row, const char *text, int64_t *out,
                    const char *shown, struct mc_err *err)
{
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE),
           bytes;

    if (!mc_size_of(text, memory, &bytes))
        return mc_fail_param(err, MC_EARG, row->key,
                             "%s: '%.60s' is no size (write 512M, 8G or 60%%)", shown, text);
    *out = (int64_t)bytes;
    return 0;
}

/* "small=1G,large=60%": *out is their sum. */
static int set_sizes(const struct mc_setting *row, const char *text, int64_t *out,
                     const char *shown, struct mc_err *err)
{
    char copy[1024], *save = NULL, *pair, *eq;
    int64_t one;
    int rc = 0;

    if (!strchr(text, '='))
        return set_size(row, text, out, shown, err);
    *out = 0;
    if (strlen(text) >= sizeof copy)
        return mc_fail_param(err, MC_EARG, row->key, "%s: longer than %zu bytes", shown,
                             sizeof copy - 1);
    strcpy(copy, text);
    for (pair = strtok_r(copy, ",", &save); pair && rc == 0;
         pair = strtok_r(NULL, ",", &save)) {
        eq = strchr(pair, '=');
        if (!eq || eq == pair)
            return mc_fail_param(err, MC_EARG, row->key, "%s: '%.60s' is no MODEL=SIZE",
                                 shown, pair);
        rc = set_size(row, eq + 1, &one, shown, err);
        *out += rc == 0 ? one : 0;
    }
    return rc;
}

static int set_word(const struct mc_setting *row, const char *text, const char *shown,
                    struct mc_err *err)
{
    char copy[128], *save = NULL, *w;
    const char *words[16];
    const char *near;
    int n = 0;

    if (!*text && !*row->def)
        return 0;
    snprintf(copy, sizeof copy, "%s", row->limits);
    for (w = strtok_r(copy, "|", &save); w && n < 15; w = strtok_r(NULL, "|", &save)) {
        if (strcmp(w, text) == 0)
            return 0;
        words[n++] = w;
    }
    words[n] = NULL;
    near = mc_nearest(text, words);
    return mc_fail_param(err, MC_EARG, row->key, "%s: '%.60s' is not one of %s%s%s%s",
                         shown, text, row->limits, near ? " (did you mean '" : "",
                         near ? near : "", near ? "'?)" : "");
}

static int set_bool(const struct mc_setting *row, const char *text, bool *out,
                    const char *shown, struct mc_err *err)
{
    bool yes = strcmp(text, "true") == 0;

    if (!yes && strcmp(text, "false") != 0)
        return mc_fail_param(err, MC_EARG, row->key, "%s: '%.60s' is not true or false",
                             shown, text);
    *out = yes;
    return 0;
}

static bool is_text(const struct mc_setting *row)
{
    return row->kind == MC_SET_STR || row->kind == MC_SET_WORD ||
           row->kind == MC_SET_PAIRS;
}

static void keep_text(struct mc_settings *s, int id, const char *text,
                      enum mc_setting_from from)
{
    const struct mc_setting *row = &mc_setting_list[id];
    bool adds = row->kind == MC_SET_PAIRS && from != MC_FROM_DEFAULT &&
                s->from[id] == from;
    char *copy;

    if (asprintf(&copy, "%s%s%s", adds ? s->text[id] : "", adds ? "," : "", text) < 0)
        abort();
    free(s->text[id]);
    s->text[id] = copy;
    s->from[id] = from;
    if (is_text(row))
        memcpy((char *)s + row->at, &copy, sizeof copy);
}

int mc_settings_set(struct mc_settings *s, int id, const char *text,
                    enum mc_setting_from from, const char *shown, struct mc_err *err)
{
    const struct mc_setting *row = &mc_setting_list[id];
    void *field = (char *)s + row->at;
    int rc = 0;

    if (!text)
        text = row->kind == MC_SET_TRUE ? "false" : "true";
    if (row->kind == MC_SET_INT)
        rc = set_int(row, text, field, shown, err);
    else if (row->kind == MC_SET_SIZE)
        rc = set_size(row, text, field, shown, err);
    else if (row->kind == MC_SET_SIZES)
        rc = set_sizes(row, text, field, shown, err);
    else if (row->kind == MC_SET_WORD)
        rc = set_word(row, text, shown, err);
    else if (row->kind == MC_SET_SWITCH || row->kind == MC_SET_TRUE)
        rc = set_bool(row, text, field, shown, err);
    if (rc < 0)
        return rc;
    keep_text(s, id, text, from);
    return 0;
}

/* The i-th "name=size" of a setting's text; false past the last. */
static bool share_at(const char *text, int i, char *name, size_t cap, const char **size)
{
    const char *eq, *p = text;

    for (; i > 0 && p; i--) {
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
    }
    eq = p ? strchr(p, '=') : NULL;
    if (!eq)
        return false;
    snprintf(name, cap, "%.*s", (int)(eq - p), p);
    *size = eq + 1;
    return true;
}

bool mc_settings_share_name(const struct mc_settings *s, int id, int i, char *name,
                            size_t cap)
{
    const char *size;

    return share_at(s->text[id], i, name, cap, &size);
}

int mc_settings_share(const struct mc_settings *s, int id, const char *model, int n,
                      int64_t *out, struct mc_err *err)
{
    const struct mc_setting *row = &mc_setting_list[id];
    char name[128], text[64];
    const char *size;

    *out = *(const int64_t *)((const char *)s + row->at) / n;
    if (!strchr(s->text[id], '='))
        return 0;
    for (int i = 0; share_at(s->text[id], i, name, sizeof name, &size); i++) {
        if (strcmp(name, model) != 0)
            continue;
        snprintf(text, sizeof text, "%.*s", (int)strcspn(size, ","), size);
        return set_size(row, text, out, row->key, err);
    }
    return mc_fail_param(err, MC_EARG, row->key, "%s: '%s' gives '%.60s' no share",
                         row->key, s->text[id], model);
}

/* ---- all of them ------------------------------------------------------------------- */

void mc_settings_init(struct mc_settings *s)
{
    int i;

    memset(s, 0, sizeof *s);
    for (i = 0; i < MC_N_SETTING; i++) {
        const struct mc_setting *row = &mc_setting_list[i];
        const char *def = row->kind == MC_SET_TRUE     ? "true"
                          : row->kind == MC_SET_SWITCH ? "false"
                                                       : row->def;

        if (row->kind == MC_SET_INT && !*def)
            *(int64_t *)((char *)s + row->at) = -1;
        keep_text(s, i, def, MC_FROM_DEFAULT);
        if (*def && mc_settings_set(s, i, def, MC_FROM_DEFAULT, row->key, NULL) < 0)
            abort();
    }
}

void mc_settings_free(struct mc_settings *s)
{
    int i;

    for (i = 0; i < MC_N_SETTING; i++)
        free(s->text[i]);
    memset(s, 0, sizeof *s);
}

/* One key of mascon.lua as the text that a flag would have had; "" when of no usable type. */
static void text_of(const json_t *v, char *out, size_t cap)
{
    const char *key;
    json_t *item;
    size_t n = 0;

    *out = 0;
    if (json_is_string(v)) {
        snprintf(out, cap, "%s", json_string_value(v));
    } else if (json_is_integer(v)) {
        snprintf(out, cap, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    } else if (json_is_real(v)) {
        snprintf(out, cap, "%.17g", json_real_value(v));
    } else if (json_is_boolean(v)) {
        snprintf(out, cap, "%s", json_is_true(v) ? "true" : "false");
    } else if (json_is_object(v)) {
        json_object_foreach((json_t *)v, key, item) {
            if (json_is_string(item) && n < cap)
                n += (size_t)snprintf(out + n, cap - n, "%s%s=%s", n ? "," : "", key,
                                      json_string_value(item));
        }
    }
}

int mc_settings_file(struct mc_settings *s, const json_t *table, struct mc_err *err)
{
    char text[8192]; /* every tenant that there may be has room */
    const char *key, *near;
    json_t *v;
    int id, rc;

    if (!json_is_object(table))
        return mc_fail(err, MC_EFORMAT, "the settings file returns no table of settings");
    json_object_foreach((json_t *)table, key, v) {
        near = NULL;
        id = mc_setting_find(key, &near);
        if (id < 0)
            return mc_fail_param(err, MC_EARG, key, "no setting is called '%.60s'%s%s%s",
                                 key, near ? "; did you mean '" : "", near ? near : "",
                                 near ? "'?" : "");
        if (json_is_array(v) || json_is_null(v) ||
            (json_is_object(v) && mc_setting_list[id].kind != MC_SET_PAIRS &&
             mc_setting_list[id].kind != MC_SET_SIZES))
            return mc_fail_param(err, MC_EARG, key, "%s: takes %s, not a table", key,
                                 mc_setting_list[id].limits);
        if (s->from[id] == MC_FROM_FLAG)
            continue;
        text_of(v, text, sizeof text);
        if (strlen(text) == sizeof text - 1)
            return mc_fail_param(err, MC_EBIG, key, "%s: over %zu bytes", key,
                                 sizeof text - 2);
        rc = mc_settings_set(s, id, text, MC_FROM_FILE, key, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

json_t *mc_settings_json(const struct mc_settings *s)
{
    json_t *o = json_object();
    int i;

    for (i = 0; i < MC_N_SETTING; i++) {
        const struct mc_setting *row = &mc_setting_list[i];
        const void *field = (const char *)s + row->at;
        json_t *v;

        if (row->kind == MC_SET_INT || row->kind == MC_SET_SIZE ||
            row->kind == MC_SET_SIZES)
            v = json_integer(*(const int64_t *)field);
        else if (row->kind == MC_SET_SWITCH || row->kind == MC_SET_TRUE)
            v = json_boolean(*(const bool *)field);
        else
            v = json_string(s->text[i]);
        json_object_set_new(o, row->key, v);
    }
    return o;
}

/* Where a value came from, for a comment. */
static void put_origin(FILE *f, const struct mc_settings *s, int id)
{
    const struct mc_setting *row = &mc_setting_list[id];
    const char *p;

    if (s->from[id] == MC_FROM_FILE) {
        fputs("from ", f);
        for (p = *s->config ? s->config : "the file"; *p; p++)
            fputc((unsigned char)*p < 32 ? '?' : *p, f);
    } else if (s->from[id] == MC_FROM_FLAG) {
        fprintf(f, "from --%s", row->kind == MC_SET_TRUE ? "no-" : "");
        for (p = row->key; *p; p++)
            fputc(*p == '_' ? '-' : *p, f);
    } else {
        fputs(*s->text[id] ? "default" : "not set", f);
    }
}

char *mc_settings_dump(const struct mc_settings *s)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    int i;

    if (!f)
        abort();
    fputs("return {\n", f);
    for (i = 0; i < MC_N_SETTING; i++) {
        const struct mc_setting *row = &mc_setting_list[i];
        const void *field = (const char *)s + row->at;
        const char *p;

        if (i == MC_SETTING_config)
            continue;
        fprintf(f, "  %s%s = ", row->kind == MC_SET_INT && !*s->text[i] ? "-- " : "",
                row->key);
        if (row->kind == MC_SET_SWITCH || row->kind == MC_SET_TRUE) {
            fputs(*(const bool *)field ? "true" : "false", f);
        } else if (row->kind == MC_SET_INT) {
            fputs(*s->text[i] ? s->text[i] : "0", f);
        } else {
            fputc('"', f);
            for (p = s->text[i]; *p; p++)
                fprintf(f, *p == '"' || *p == '\\' ? "\\%c" :
                           (unsigned char)*p < 32  ? "\\%03d" : "%c", *p);
            fputc('"', f);
        }
        fputs(",  -- ", f);
        put_origin(f, s, i);
        fprintf(f, "; %s\n", row->live ? "live" : "restart");
    }
    fputs("}\n", f);
    fclose(f);
    return text;
}

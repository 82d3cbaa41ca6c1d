/* err.c - error codes as strings and HTTP statuses; filling in an mc_err.
 *
 * Owns nothing. THREAD: any.
 * Always true: text and param end with NUL and are UTF-8, text is one line, whatever its
 * values held (names out of files, scripts' errors): JSON can carry them. */
#include "core/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/utf8.h"

struct code_row {
    const char *name;
    int http;
    const char *type, *api, *text;
};

static const struct code_row rows[] = {
    {"OK", 200, "", "", "ok"},
#define MC_ERR(name, http, type, code, text) {#name, http, type, code, text},
#include "core/mc_err.def"
#undef MC_ERR
};

static const struct code_row *row_of(int code)
{
    static const struct code_row unknown = {"E?", 500, "server_error", "internal_error",
                                            "unknown error"};
    int i = -code;

    return i >= 0 && i < MC_E_END_ ? &rows[i] : &unknown;
}

const char *mc_code_name(int code)
{
    return row_of(code)->name;
}

const char *mc_code_text(int code)
{
    return row_of(code)->text;
}

int mc_code_http(int code)
{
    return row_of(code)->http;
}

const char *mc_code_type(int code)
{
    return row_of(code)->type;
}

const char *mc_code_api(int code)
{
    return row_of(code)->api;
}

enum { HEAD = 16, TEXT = sizeof((struct mc_err *)0)->text };

/* A character that snprintf or cap cuts in two is dropped. */
static void put(char *dst, size_t cap, const char *s)
{
    char clean[3 * (HEAD + 2 * TEXT)];
    size_t n = mc_utf8_clean(s, mc_utf8_ready(s, strlen(s)), clean);

    n = mc_utf8_ready(clean, n < cap ? n : cap - 1);
    memcpy(dst, clean, n);
    dst[n] = 0;
    for (; *dst; dst++)
        if ((unsigned char)*dst < 0x20 || *dst == 0x7F)
            *dst = ' ';
}

static void fill(struct mc_err *err, int code, const char *param, const char *file,
                 int line, const char *fmt, va_list ap)
{
    char text[TEXT], name[sizeof err->param];

    snprintf(name, sizeof name, "%s", param);
    vsnprintf(text, sizeof text, fmt, ap);
    err->code = code;
    err->line = line;
    err->file = file;
    put(err->param, sizeof err->param, name);
    put(err->text, sizeof err->text, text);
}

int mc_err_set(struct mc_err *err, int code, const char *file, int line, const char *fmt,
               ...)
{
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    fill(err, code, "", file, line, fmt, ap);
    va_end(ap);
    return code;
}

int mc_err_set_param(struct mc_err *err, int code, const char *param, const char *file,
                     int line, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return code;
    va_start(ap, fmt);
    fill(err, code, param, file, line, fmt, ap);
    va_end(ap);
    return code;
}

int mc_err_while(struct mc_err *err, const char *fmt, ...)
{
    char head[TEXT], all[HEAD + 2 * TEXT];
    va_list ap;

    if (!err)
        return MC_EINTERNAL;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(all, sizeof all, "while %s: %s", head, err->text);
    put(err->text, sizeof err->text, all);
    return err->code;
}

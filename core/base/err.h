/* err.h - error codes and the error object that crosses every border.
 *
 * A function that can fail returns 0 or a negative MC_E code. Where an operator may
 * see the failure its last parameter is `struct mc_err *err` (may be NULL): it is set
 * once, where the failure happens, with the values that explain it; callers pass it up
 * untouched or prefix it with mc_err_while(). THREAD: any; an mc_err has one owner. */
#ifndef MC_BASE_ERR_H
#define MC_BASE_ERR_H

enum mc_code {
    MC_OK_ = 0,
#define MC_ERR(name, http, type, code, text) MC_##name##_N_,
#include "core/mc_err.def"
#undef MC_ERR
    MC_E_END_
};

enum {
#define MC_ERR(name, http, type, code, text) MC_##name = -MC_##name##_N_,
#include "core/mc_err.def"
#undef MC_ERR
};

struct mc_err {
    int code;         /* 0 or MC_E... */
    int line;         /* where it was set */
    const char *file; /* static string */
    char param[64];   /* the request field or flag at fault, "" if none */
    char text[240];   /* one line of valid UTF-8 */
};

/* Sets err (if not NULL) and returns code, so that a failure is one statement:
 * return mc_fail(err, MC_EARG, "n_dims %u exceeds 4", n). */
#define mc_fail(err, code, ...) mc_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__)
int mc_err_set(struct mc_err *err, int code, const char *file, int line, const char *fmt,
               ...) __attribute__((format(printf, 5, 6)));

/* The same with the field or flag that is wrong, for err->param. */
#define mc_fail_param(err, code, param, ...) \
    mc_err_set_param((err), (code), (param), __FILE__, __LINE__, __VA_ARGS__)
int mc_err_set_param(struct mc_err *err, int code, const char *param, const char *file,
                     int line, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* Prefixes the text: "while loading model.safetensors: ...". Returns err's code. */
int mc_err_while(struct mc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

const char *mc_code_name(int code);  /* "EARG"; "E?" when unknown; "OK" for 0 */
const char *mc_code_text(int code);  /* "invalid value" */
int mc_code_http(int code);          /* 400; 200 for 0 */
const char *mc_code_type(int code);  /* OpenAI error type */
const char *mc_code_api(int code);   /* OpenAI error code; never NULL */

#endif

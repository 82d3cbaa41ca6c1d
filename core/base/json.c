/* json.c - the depth check and the strict parse. OWNS nothing. THREAD: any. */
#include "core/base/json.h"

#include "core/base/utf8.h"

/* Deepest nesting of brackets outside strings; stops counting above MC_JSON_DEPTH. */
static int depth_of(const char *s, size_t n)
{
    int depth = 0, most = 0;
    bool in_string = false;
    size_t i;

    for (i = 0; i < n && most <= MC_JSON_DEPTH; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '[' || s[i] == '{') {
            depth++;
            if (depth > most)
                most = depth;
        } else if (s[i] == ']' || s[i] == '}') {
            depth--;
        }
    }
    return most;
}

json_t *mc_json_read(const char *text, size_t n, struct mc_err *err)
{
    json_error_t at;
    json_t *v;

    if (n == 0) {
        mc_fail(err, MC_EFORMAT, "the body is empty: expected JSON");
        return NULL;
    }
    if (!mc_utf8_valid(text, n)) {
        mc_fail(err, MC_EFORMAT, "the JSON is not valid UTF-8");
        return NULL;
    }
    if (depth_of(text, n) > MC_JSON_DEPTH) {
        mc_fail(err, MC_EFORMAT, "the JSON is nested deeper than the allowed depth of %d",
                MC_JSON_DEPTH);
        return NULL;
    }
    v = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!v) {
        enum json_error_code code = json_error_code(&at);

        mc_fail(err, code == json_error_out_of_memory ? MC_ENOMEM : MC_EFORMAT,
                "bad JSON at line %d, column %d%s", at.line, at.column,
                code == json_error_duplicate_key       ? ": duplicate key"
                : code == json_error_numeric_overflow  ? ": number out of range"
                : code == json_error_premature_end_of_input ? ": it ends too early"
                                                            : "");
    }
    return v;
}

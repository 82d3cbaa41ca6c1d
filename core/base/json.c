/* json.c - the checks of depth and size, and the strict parse. OWNS nothing. THREAD: any. */
#include "core/base/json.h"

#include "core/base/utf8.h"

/* Counts outside strings, up to just above the limits: the deepest nesting of brackets, and
 * the values, by the marks before them. */
static void measure(const char *s, size_t n, int *most, size_t *values)
{
    bool in_string = false;
    int depth = 0;
    size_t i;

    *most = 0;
    *values = 0;
    for (i = 0; i < n && *most <= MC_JSON_DEPTH && *values <= MC_JSON_VALUES; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
            continue;
        }
        in_string = s[i] == '"';
        if (s[i] == '[' || s[i] == '{')
            depth++;
        else if (s[i] == ']' || s[i] == '}')
            depth--;
        if (depth > *most)
            *most = depth;
        *values += s[i] == ',' || s[i] == ':' || s[i] == '[' || s[i] == '{';
    }
}

json_t *mc_json_read(const char *text, size_t n, struct mc_err *err)
{
    json_error_t at;
    size_t values;
    int depth;
    json_t *v;

    if (n == 0) {
        mc_fail(err, MC_EFORMAT, "the body is empty: expected JSON");
        return NULL;
    }
    if (!mc_utf8_valid(text, n)) {
        mc_fail(err, MC_EFORMAT, "the JSON is not valid UTF-8");
        return NULL;
    }
    measure(text, n, &depth, &values);
    if (depth > MC_JSON_DEPTH) {
        mc_fail(err, MC_EFORMAT, "the JSON is nested deeper than the allowed depth of %d",
                MC_JSON_DEPTH);
        return NULL;
    }
    if (values > MC_JSON_VALUES) {
        mc_fail(err, MC_EBIG, "the JSON has more than the allowed %d values",
                MC_JSON_VALUES);
        return NULL;
    }
    v = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                   &at);
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

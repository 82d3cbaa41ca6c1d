/* json.c - parses a checkpoint's JSON files strictly, with errors that name the place.
 *
 * Owns nothing. THREAD: any.
 * Duplicate keys, NUL escapes and bytes after the value are errors. jansson bounds nesting
 * (2,048) and salts its hash tables, so hostile keys do not make them slow. */
#include <string.h>

#include "core/weights/ckpt_int.h"

/* The last string at nesting level `depth` that ends before pos: the key under which
 * parsing stopped, or the value beside it. Runs over text that may be no JSON, so whatever
 * is not plain ASCII becomes '?'. */
static void key_before(const char *text, size_t pos, int depth, char *out, size_t cap)
{
    size_t start = 0, from = 0, n = 0;
    bool string = false;
    int level = 0;

    for (size_t i = 0; i < pos; i++) {
        if (string && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            if (!string) {
                start = i + 1;
            } else if (level == depth) {
                from = start;
                n = i - start;
            }
            string = !string;
        } else if (!string && (text[i] == '{' || text[i] == '[')) {
            level++;
        } else if (!string && (text[i] == '}' || text[i] == ']')) {
            level--;
        }
    }
    if (n >= cap)
        n = cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = text[from + i] >= ' ' && text[from + i] < 0x7F ? text[from + i] : '?';
    out[n] = 0;
}

int mc_json_parse(const char *text, size_t n, size_t flags, int depth, json_t **out,
                  struct mc_err *err)
{
    char key[101];
    json_error_t e;
    size_t pos;

    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | flags, &e);
    if (*out)
        return 0;
    pos = e.position < 0 ? 0 : (size_t)e.position;
    key_before(text, pos < n ? pos : n, depth, key, sizeof key);
    return mc_fail(err, MC_EFORMAT, "line %d: %s%s%s%s", e.line, e.text,
                   key[0] ? ", at '" : "", key, key[0] ? "'" : "");
}

/* jansson.h - as much of jansson as loading a checkpoint and its golden file uses, for a
 * machine without it: reading only, values never change. Functions: json.c. THREAD: any.
 */
#ifndef MC_BARE_JANSSON_H
#define MC_BARE_JANSSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum {
    JSON_OBJECT,
    JSON_ARRAY,
    JSON_STRING,
    JSON_INTEGER,
    JSON_REAL,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
} json_type;

typedef long long json_int_t;

typedef struct json_t {
    json_type type;
    size_t n, cap;
    char **key;        /* of an object */
    struct json_t **v; /* of an object or array */
    char *text;        /* of a string, n bytes */
    json_int_t i;
    double d;
} json_t;

typedef struct {
    int line, column, position;
    char text[160];
} json_error_t;

enum json_error_code {
    json_error_unknown,
    json_error_out_of_memory,
    json_error_premature_end_of_input,
    json_error_numeric_overflow,
    json_error_duplicate_key
};

enum {
    JSON_REJECT_DUPLICATES = 1,
    JSON_DECODE_ANY = 4,
    JSON_DECODE_INT_AS_REAL = 8,
    JSON_ALLOW_NUL = 16
};

json_t *json_loadb(const char *text, size_t n, size_t flags, json_error_t *e);
json_t *json_load_file(const char *path, size_t flags, json_error_t *e);
void json_decref(json_t *j);
json_t *json_object_get(const json_t *j, const char *key);
bool json_equal(const json_t *a, const json_t *b);

static inline enum json_error_code json_error_code(const json_error_t *e)
{
    (void)e;
    return json_error_unknown;
}

#define json_is(j, t) ((j) && (j)->type == (t))
#define json_is_object(j) json_is(j, JSON_OBJECT)
#define json_is_array(j) json_is(j, JSON_ARRAY)
#define json_is_string(j) json_is(j, JSON_STRING)
#define json_is_integer(j) json_is(j, JSON_INTEGER)
#define json_is_number(j) (json_is(j, JSON_INTEGER) || json_is(j, JSON_REAL))
#define json_is_true(j) json_is(j, JSON_TRUE)
#define json_is_false(j) json_is(j, JSON_FALSE)
#define json_is_boolean(j) (json_is_true(j) || json_is_false(j))
#define json_is_null(j) json_is(j, JSON_NULL)

static inline size_t json_object_size(const json_t *j)
{
    return json_is_object(j) ? j->n : 0;
}

static inline size_t json_array_size(const json_t *j)
{
    return json_is_array(j) ? j->n : 0;
}

static inline json_t *json_array_get(const json_t *j, size_t i)
{
    return i < json_array_size(j) ? j->v[i] : NULL;
}

static inline const char *json_string_value(const json_t *j)
{
    return json_is_string(j) ? j->text : NULL;
}

static inline json_int_t json_integer_value(const json_t *j)
{
    return json_is_integer(j) ? j->i : 0;
}

static inline double json_number_value(const json_t *j)
{
    return json_is_integer(j) ? (double)j->i : json_is(j, JSON_REAL) ? j->d : 0;
}

#define json_array_foreach(a, i, x) \
    for (i = 0; i < json_array_size(a) && ((x) = (a)->v[i]) != NULL; i++)
#define json_object_foreach(o, k, x)                                            \
    for (size_t i_##x = 0; i_##x < json_object_size(o) &&                       \
                           ((k) = (o)->key[i_##x], (x) = (o)->v[i_##x], (k) && (x)); \
         i_##x++)

#endif

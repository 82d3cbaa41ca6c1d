/* json.c - the reader behind jansson.h. Recursive; errors say where, not what. Owns
 * nothing. THREAD: any. */
#include "tests/gpu/bare/jansson.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct in {
    const char *at, *end;
    size_t flags;
};

static json_t *value(struct in *in);

static json_t *make(json_type t)
{
    json_t *j = calloc(1, sizeof *j);

    if (!j)
        abort();
    j->type = t;
    return j;
}

static bool eat(struct in *in, char c)
{
    while (in->at < in->end && strchr(" \t\r\n", *in->at) && *in->at)
        in->at++;
    if (in->at == in->end || *in->at != c)
        return false;
    in->at++;
    return true;
}

static void put(json_t *j, char *key, json_t *v)
{
    if (j->n == j->cap) {
        j->cap = j->cap ? 2 * j->cap : 8;
        j->v = realloc(j->v, j->cap * sizeof *j->v);
        j->key = realloc(j->key, j->cap * sizeof *j->key);
        if (!j->v || !j->key)
            abort();
    }
    j->key[j->n] = key;
    j->v[j->n++] = v;
}

static char *utf8(char *to, unsigned c)
{
    if (c < 0x80) {
        *to++ = (char)c;
    } else if (c < 0x800) {
        *to++ = (char)(0xc0 | c >> 6);
        *to++ = (char)(0x80 | (c & 63));
    } else {
        *to++ = (char)(0xe0 | c >> 12);
        *to++ = (char)(0x80 | (c >> 6 & 63));
        *to++ = (char)(0x80 | (c & 63));
    }
    return to;
}

/* Behind the opening quote; NULL when it does not end. Halves of pairs stay as they are.
 */
static char *text(struct in *in, size_t *n)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char *out = malloc((size_t)(in->end - in->at) + 1), *o = out, hex[5] = "";

    if (!out)
        abort();
    for (; in->at < in->end && *in->at != '"'; in->at++) {
        const char *f;

        if (*in->at != '\\') {
            *o++ = *in->at;
            continue;
        }
        if (++in->at == in->end)
            break;
        f = strchr(from, *in->at);
        if (*in->at == 'u' && in->end - in->at > 4) {
            memcpy(hex, in->at + 1, 4);
            o = utf8(o, (unsigned)strtoul(hex, NULL, 16));
            in->at += 4;
        } else {
            *o++ = f ? to[f - from] : *in->at;
        }
    }
    if (in->at == in->end) {
        free(out);
        return NULL;
    }
    in->at++;
    *o = 0;
    *n = (size_t)(o - out);
    return out;
}

static json_t *number(struct in *in)
{
    char s[64], *end;
    size_t n = strspn(in->at, "+-.0123456789eE");
    json_t *j;

    if (n == 0 || n >= sizeof s || n > (size_t)(in->end - in->at))
        return NULL;
    memcpy(s, in->at, n);
    s[n] = 0;
    j = make(strpbrk(s, ".eE") || in->flags & JSON_DECODE_INT_AS_REAL ? JSON_REAL
                                                                      : JSON_INTEGER);
    j->d = strtod(s, &end);
    if (j->type == JSON_INTEGER)
        j->i = strtoll(s, &end, 10);
    in->at += n;
    if (*end == 0)
        return j;
    json_decref(j);
    return NULL;
}

static json_t *word(struct in *in)
{
    static const struct {
        const char *text;
        json_type type;
    } words[] = {{"true", JSON_TRUE}, {"false", JSON_FALSE}, {"null", JSON_NULL}};

    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i].text);

        if ((size_t)(in->end - in->at) >= n && memcmp(in->at, words[i].text, n) == 0) {
            in->at += n;
            return make(words[i].type);
        }
    }
    return number(in);
}

/* Members up to the closing bracket. */
static json_t *list(struct in *in, json_t *j, char close)
{
    if (eat(in, close))
        return j;
    do {
        char *key = NULL;
        json_t *v;
        size_t n;

        if (close == '}' && (!eat(in, '"') || !(key = text(in, &n)) || !eat(in, ':'))) {
            free(key);
            break;
        }
        v = value(in);
        if (!v ||
            (in->flags & JSON_REJECT_DUPLICATES && key && json_object_get(j, key))) {
            json_decref(v);
            free(key);
            break;
        }
        put(j, key, v);
        if (eat(in, close))
            return j;
    } while (eat(in, ','));
    json_decref(j);
    return NULL;
}

static json_t *value(struct in *in)
{
    json_t *j;

    if (eat(in, '{'))
        return list(in, make(JSON_OBJECT), '}');
    if (eat(in, '['))
        return list(in, make(JSON_ARRAY), ']');
    if (!eat(in, '"'))
        return word(in);
    j = make(JSON_STRING);
    j->text = text(in, &j->n);
    if (j->text)
        return j;
    json_decref(j);
    return NULL;
}

json_t *json_loadb(const char *s, size_t n, size_t flags, json_error_t *e)
{
    char *copy = malloc(n + 1);
    struct in in = {copy, copy + n, flags};
    json_t *j = NULL;

    if (!copy)
        abort();
    memcpy(copy, s, n);
    copy[n] = 0;
    j = value(&in);
    eat(&in, 0);
    if (j && in.at != in.end) {
        json_decref(j);
        j = NULL;
    }
    if (e && !j) {
        *e = (json_error_t){.line = 1, .position = (int)(in.at - copy)};
        snprintf(e->text, sizeof e->text, "bad JSON");
        for (const char *c = copy; c < in.at; c++)
            e->line += *c == '\n';
    }
    free(copy);
    return j;
}

json_t *json_load_file(const char *path, size_t flags, json_error_t *e)
{
    FILE *f = fopen(path, "rb");
    json_t *j = NULL;
    char *s = NULL;
    long n;

    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    s = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (s && fread(s, 1, (size_t)n, f) == (size_t)n)
        j = json_loadb(s, (size_t)n, flags, e);
    free(s);
    fclose(f);
    return j;
}

void json_decref(json_t *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->n && j->v; i++) {
        json_decref(j->v[i]);
        free(j->key[i]);
    }
    free(j->v);
    free(j->key);
    free(j->text);
    free(j);
}

json_t *json_object_get(const json_t *j, const char *key)
{
    for (size_t i = 0; i < json_object_size(j); i++)
        if (strcmp(j->key[i], key) == 0)
            return j->v[i];
    return NULL;
}

bool json_equal(const json_t *a, const json_t *b)
{
    if (!a || !b || a->type != b->type || a->n != b->n || a->i != b->i || a->d != b->d)
        return false;
    if (a->text)
        return memcmp(a->text, b->text, a->n) == 0;
    for (size_t i = 0; i < a->n; i++)
        if ((a->key[i] && strcmp(a->key[i], b->key[i]) != 0) ||
            !json_equal(a->v[i], b->v[i]))
            return false;
    return true;
}

/* req.c - an HTTP request: copied from libmicrohttpd, checked, lent to the edge.
 *
 * Owns a copy of everything received: libmicrohttpd's memory dies with the connection,
 * while the edge may look at the request until mc_req_done. THREAD: filled on the HTTP
 * thread, constant once served; see http_int.h for the locks.
 *
 * libmicrohttpd 0.9.75 lets through what two parsers may read differently (request
 * smuggling): several Content-Length, one beside Transfer-Encoding, codings other than
 * chunked, blanks before a colon, and folded lines, of which it glues the continuation to
 * the field's *name*. All of it is refused here, and the connection closed. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/log.h"
#include "core/base/utf8.h"
#include "core/serve/http_int.h"

/* ---- life ------------------------------------------------------------------------------ */

struct mc_req *mc_req_new(struct mc_http *h, const char *uri)
{
    struct mc_req *r = calloc(1, sizeof *r);
    pthread_mutexattr_t attr;

    if (!r)
        return NULL;
    r->uri = strdup(uri ? uri : "");
    if (!r->uri) {
        free(r);
        return NULL;
    }
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&r->call, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_mutex_init(&r->lock, NULL);
    atomic_init(&r->refs, 1);
    atomic_fetch_add(&h->refs, 1);
    r->http = h;
    snprintf(r->id, sizeof r->id, "req-%08lx%08lx", h->id_base,
             (unsigned long)atomic_fetch_add(&h->n_req, 1) & 0xffffffff);
    return r;
}

void mc_req_ref(struct mc_req *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void mc_req_unref(struct mc_req *r)
{
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (r->resp)
        MHD_destroy_response(r->resp);
    for (int i = 0; i < r->n_res_header; i++)
        free((void *)(uintptr_t)r->res_header[i].key);
    free(r->res_header);
    mc_buf_free(&r->body);
    mc_buf_free(&r->out);
    free(r->query);
    free(r->header);
    free(r->mem);
    free(r->uri);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->call);
    mc_http_unref(r->http);
    free(r);
}

void mc_req_gone(struct mc_req *r)
{
    bool first;

    pthread_mutex_lock(&r->call);
    pthread_mutex_lock(&r->lock);
    first = r->owned && !r->gone;
    r->gone |= first;
    mc_res_wake(r);
    pthread_mutex_unlock(&r->lock);
    if (first) {
        mc_info("http", "client gone: id=%s path=%s after=%.3fs", r->id, r->path,
                mc_http_now() - r->t_served);
        r->ops->gone(r->ops_self, r);
    }
    pthread_mutex_unlock(&r->call);
}

void mc_req_done(struct mc_req *r)
{
    struct mc_err e;

    pthread_mutex_lock(&r->call);
    r->owned = false;
    pthread_mutex_unlock(&r->call);
    if (!mc_res_started(r)) {
        mc_fail(&e, MC_EINTERNAL, "the request was dropped without an answer");
        mc_res_error(r, &e);
    }
    pthread_mutex_lock(&r->lock);
    if (!r->ended) {
        r->broken = true; /* a stream without its end must not look complete */
        mc_res_wake(r);
    }
    pthread_mutex_unlock(&r->lock);
    atomic_fetch_sub(&r->http->n_open, 1);
    mc_req_unref(r);
}

/* ---- the request line ------------------------------------------------------------------ */

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes [s, end) to out with its NUL; returns the length, or -1 when an escape is broken
 * or the result is not text. */
static int decode(const char *s, const char *end, bool plus, char *out)
{
    char *to = out;

    for (; s < end; s++) {
        char c = *s;

        if (c == '%') {
            if (end - s < 3 || hex(s[1]) < 0 || hex(s[2]) < 0)
                return -1;
            c = (char)(hex(s[1]) << 4 | hex(s[2]));
            s += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        } else if ((unsigned char)c <= ' ') {
            return -1;
        }
        if ((unsigned char)c < 0x20 || c == 0x7F)
            return -1;
        *to++ = c;
    }
    *to = 0;
    return mc_utf8_valid(out, (size_t)(to - out)) ? (int)(to - out) : -1;
}

static int bad_target(struct mc_err *err)
{
    return mc_fail(err, MC_EARG, "the request target is malformed");
}

/* What follows scheme and authority, which a client that takes us for a proxy sends. */
static const char *origin_form(const char *uri)
{
    const char *rest = strncasecmp(uri, "http://", 7) == 0 ? uri + 7 : NULL;

    if (!rest)
        return uri;
    rest += strcspn(rest, "/?");
    return *rest == '/' ? rest : "/";
}

static int parse_query(struct mc_req *r, const char *s, char *to, struct mc_err *err)
{
    int n = 1;

    for (const char *p = s; *p; p++)
        n += *p == '&';
    r->query = calloc((size_t)n, sizeof *r->query);
    if (!r->query)
        return mc_fail(err, MC_ENOMEM, "no memory for a query");
    while (*s) {
        const char *end = s + strcspn(s, "&"), *eq = memchr(s, '=', (size_t)(end - s));
        struct mc_pair *q = &r->query[r->n_query];
        int len = decode(s, eq ? eq : end, true, to);

        if (len < 0)
            return bad_target(err);
        q->key = to;
        q->value = to += len + 1;
        len = decode(eq ? eq + 1 : end, end, true, to);
        if (len < 0)
            return bad_target(err);
        to += len + 1;
        r->n_query += end > s;
        s = *end ? end + 1 : end;
    }
    return 0;
}

/* ---- header fields --------------------------------------------------------------------- */

static bool is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("!#$%&'*+-.^_`|~", *s))
            return false;
    return true;
}

static bool is_value(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7F)
            return false;
    return true;
}

struct fields {
    struct mc_req *r;
    char *to; /* NULL: count */
    size_t bytes;
    int n;
    bool folded;
};

/* A line that was continued on the next. libmicrohttpd 0.9 parses in place, name before
 * value with nothing but blanks between; to append the continuation it moves the name. */
static bool is_folded(const char *key, size_t key_n, const char *value)
{
    uintptr_t after = (uintptr_t)key + key_n + 1, at = (uintptr_t)value;

    if (!value || strncmp(MHD_get_version(), "0.9.", 4) != 0)
        return false;
    return at < after || strspn(key + key_n + 1, " \t") != at - after;
}

static enum MHD_Result on_field(void *ctx, enum MHD_ValueKind kind, const char *key,
                                size_t key_n, const char *value, size_t value_n)
{
    struct fields *f = ctx;

    (void)kind;
    f->bytes += key_n + value_n + 2;
    f->n++;
    f->folded |= is_folded(key, key_n, value);
    if (f->to) {
        f->r->header[f->r->n_header++] = (struct mc_pair){f->to, f->to + key_n + 1};
        memcpy(f->to, key, key_n + 1);
        f->to += key_n + 1;
        memcpy(f->to, value ? value : "", value_n);
        f->to[value_n] = 0;
        f->to += value_n + 1;
    }
    return MHD_YES;
}

static int bad_field(struct mc_err *err, const char *why)
{
    return mc_fail(err, MC_EARG, "the request's header is malformed: %s", why);
}

/* Where the body ends must be said once and clearly. */
static int check_framing(struct mc_req *r, const char *version, struct mc_err *err)
{
    int n_length = 0, n_coding = 0;
    const char *length = NULL;

    for (int i = 0; i < r->n_header; i++) {
        const struct mc_pair *h = &r->header[i];

        if (!is_token(h->key))
            return bad_field(err, "a field's name");
        if (!is_value(h->value))
            return bad_field(err, "a field's value");
        if (strcasecmp(h->key, "content-length") == 0) {
            n_length++;
            length = h->value;
        } else if (strcasecmp(h->key, "transfer-encoding") == 0) {
            n_coding++;
            if (strcasecmp(h->value, "chunked") != 0)
                return bad_field(err, "transfer-encoding other than chunked");
        }
    }
    if (n_length > 1 || n_coding > 1)
        return bad_field(err, "content-length or transfer-encoding given twice");
    if (n_length > 0 && n_coding > 0)
        return bad_field(err, "content-length beside transfer-encoding");
    if (n_coding > 0 && strcmp(version, "HTTP/1.1") != 0)
        return bad_field(err, "transfer-encoding before HTTP/1.1");
    if (!length)
        return 0;
    if (*length == 0 || strspn(length, "0123456789") != strlen(length) || strlen(length) > 19)
        return bad_field(err, "content-length");
    r->n_declared = strtoull(length, NULL, 10);
    return 0;
}

/* After check_framing, which must see what libmicrohttpd saw. */
static void trim_values(struct mc_req *r)
{
    for (int i = 0; i < r->n_header; i++) {
        char *v = (char *)(uintptr_t)r->header[i].value, *end = v + strlen(v);

        while (end > v && (end[-1] == ' ' || end[-1] == '\t'))
            *--end = 0;
    }
}

static int too_big(struct mc_err *err, size_t max)
{
    return mc_fail(err, MC_EBIG, "the request's body is over the limit of %zu bytes", max);
}

/* Ids that came from outside go into logs and headers: letters, digits and a few marks. */
static void take_id(struct mc_req *r)
{
    const char *id = mc_req_header(r, "x-request-id");
    size_t n = id ? strlen(id) : 0;

    if (n == 0 || n >= sizeof r->id)
        return;
    for (const char *s = id; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-_.:/+=", *s))
            return;
    memcpy(r->id, id, n + 1);
}

/* One block: header fields, then path and query decoded (never longer than raw). */
static int copy_in(struct mc_req *r, struct MHD_Connection *c, struct mc_err *err)
{
    const char *target = origin_form(r->uri), *query = strchr(target, '?');
    const char *end = query ? query : target + strlen(target);
    struct fields f = {.r = r};
    int n;

    MHD_get_connection_values_n(c, MHD_HEADER_KIND, on_field, &f);
    r->header = calloc((size_t)f.n + 1, sizeof *r->header);
    r->mem = malloc(f.bytes + 2 * strlen(r->uri) + 8);
    if (!r->header || !r->mem)
        return mc_fail(err, MC_ENOMEM, "no memory for a request");
    f.to = r->mem;
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, on_field, &f);
    r->path = f.to;
    n = decode(target, end, false, f.to);
    if (n < 0 || (*f.to != '/' && strcmp(f.to, "*") != 0)) {
        r->path = "";
        return bad_target(err);
    }
    if (f.folded)
        return bad_field(err, "a folded line");
    return query ? parse_query(r, query + 1, f.to + n + 1, err) : 0;
}

int mc_req_header_in(struct mc_req *r, struct MHD_Connection *c, const char *method,
                     const char *version, size_t max_body, struct mc_err *err)
{
    const char *coding;
    int rc;

    r->path = "";
    rc = copy_in(r, c, err);
    if (rc == 0)
        rc = check_framing(r, version, err);
    trim_values(r);
    take_id(r);
    if (rc < 0)
        return rc;
    if (strlen(method) >= sizeof r->method || !is_token(method))
        return bad_field(err, "the method");
    memcpy(r->method, method, strlen(method) + 1);
    coding = mc_req_header(r, "content-encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return mc_fail(err, MC_EMEDIA, "compressed request bodies are not accepted");
    if (r->n_declared > max_body)
        return too_big(err, max_body);
    return 0;
}

int mc_req_body_in(struct mc_req *r, const char *data, size_t n, size_t max_body,
                   struct mc_err *err)
{
    if (n > max_body - r->body.n)
        return too_big(err, max_body);
    mc_buf_put(&r->body, data, n);
    return r->body.failed ? mc_fail(err, MC_ENOMEM, "no memory for a request's body") : 0;
}

/* ---- looking in ------------------------------------------------------------------------ */

const char *mc_req_method(const struct mc_req *r)
{
    return r->method;
}

const char *mc_req_path(const struct mc_req *r)
{
    return r->path;
}

const char *mc_req_query(const struct mc_req *r, const char *key)
{
    for (int i = 0; i < r->n_query; i++)
        if (strcmp(r->query[i].key, key) == 0)
            return r->query[i].value;
    return NULL;
}

const char *mc_req_header(const struct mc_req *r, const char *key)
{
    for (int i = 0; i < r->n_header; i++)
        if (strcasecmp(r->header[i].key, key) == 0)
            return r->header[i].value;
    return NULL;
}

const char *mc_req_body(const struct mc_req *r, size_t *n)
{
    *n = r->body.n;
    return r->body.p ? r->body.p : "";
}

const char *mc_req_id(const struct mc_req *r)
{
    return r->id;
}

bool mc_req_is_gone(const struct mc_req *r)
{
    struct mc_req *m = (struct mc_req *)(uintptr_t)r;
    bool gone;

    pthread_mutex_lock(&m->lock);
    gone = m->gone;
    pthread_mutex_unlock(&m->lock);
    return gone;
}

void mc_req_each_query(const struct mc_req *r, void (*fn)(void *, const char *, const char *),
                       void *ctx)
{
    for (int i = 0; i < r->n_query; i++)
        fn(ctx, r->query[i].key, r->query[i].value);
}

void mc_req_each_header(const struct mc_req *r, void (*fn)(void *, const char *, const char *),
                        void *ctx)
{
    for (int i = 0; i < r->n_header; i++)
        fn(ctx, r->header[i].key, r->header[i].value);
}

void *mc_req_user(const struct mc_req *r)
{
    return r->user;
}

void mc_req_set_user(struct mc_req *r, void *user)
{
    r->user = user;
}

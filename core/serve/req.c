/* req.c - an HTTP request: copied from libmicrohttpd, checked, lent to the edge.
 *
 * Owns a copy of everything received: libmicrohttpd's memory dies with the connection,
 * while the edge may look at the request until mc_req_done. THREAD: filled on the HTTP
 * thread, constant once served; see http_int.h for the locks.
 *
 * Two things are refused here, as it takes libmicrohttpd's pointers to see them. A folded
 * header line: it glues the continuation to the field's *name*, so that "Content-Lengt:
 * 36\r\n h" becomes a Content-Length. A line with an empty name (": x"): it takes the
 * colon's place, where it has put a NUL, for the header's end, and what follows for the
 * body or the next request. The other checks are in http_parse.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/log.h"
#include "core/serve/http_int.h"

/* ---- life -------------------------------------------------------------------------- */

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
    r->target.path = "";
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
    mc_target_free(&r->target);
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
    bool first, served;

    pthread_mutex_lock(&r->call);
    pthread_mutex_lock(&r->lock);
    first = r->owned && !r->gone;
    served = r->ended &&
             r->out_from == r->out.n; /* and closed before the edge was done */
    r->gone |= first;
    mc_res_wake(r);
    pthread_mutex_unlock(&r->lock);
    if (first && !served)
        mc_info("http", "client gone: id=%s path=%s after=%.3fs", r->id, r->target.path,
                mc_http_now() - r->t_served);
    if (first)
        r->ops->gone(r->ops_self, r);
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

/* ---- what was received ------------------------------------------------------------- */

struct fields {
    struct mc_req *r;
    char *to; /* NULL: count */
    size_t bytes;
    int n;
    bool folded;
    const char *end; /* of the last value, in libmicrohttpd's memory */
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
    f->end = value && value + value_n > f->end ? value + value_n : f->end;
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

/* The header goes on after what libmicrohttpd 0.9 took for its end. It is parsed in place
 * and begins with the method; behind the last value are two line ends, made NULs. Of one
 * CRLF and one bare LF they may also be a colon and a bare LF: refused with the rest.
 * (CRLF, a colon alone and a bare LF can't be told from two CRLF.) */
static bool is_cut(struct MHD_Connection *c, const char *method, const char *end)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *stop = i ? method + i->header_size : end;

    if (!end || !i || strncmp(MHD_get_version(), "0.9.", 4) != 0)
        return false;
    return (stop - end != 4 && stop - end != 2) ||
           memcmp(end, "\0\0\0", (size_t)(stop - end)) != 0;
}

/* After mc_fields_check, which must see what libmicrohttpd saw. */
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
    return mc_fail(err, MC_EBIG, "the request's body is over the limit of %zu bytes",
                   max);
}

static int copy_fields(struct mc_req *r, struct MHD_Connection *c, const char *method,
                       struct mc_err *err)
{
    struct fields f = {.r = r};

    MHD_get_connection_values_n(c, MHD_HEADER_KIND, on_field, &f);
    r->header = calloc((size_t)f.n + 1, sizeof *r->header);
    r->mem = malloc(f.bytes + 1);
    if (!r->header || !r->mem)
        return mc_fail(err, MC_ENOMEM, "no memory for a request");
    f.to = r->mem;
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, on_field, &f);
    if (f.folded || is_cut(c, method, f.end))
        return mc_fail(err, MC_EARG, "the request's header is malformed: %s",
                       f.folded ? "a folded line" : "a field's name is empty");
    return 0;
}

/* From whom it comes: the socket's other end, or who the proxies there speak for. */
static void find_client(struct mc_req *r, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    struct in6_addr ip = mc_ip_of(i ? i->client_addr : NULL);
    bool goes_on = true;

    for (int k = r->n_header - 1; k >= 0 && goes_on; k--)
        if (strcasecmp(r->header[k].key, "x-forwarded-for") == 0)
            goes_on = mc_proxies_follow(r->http->o.proxies, r->header[k].value, &ip);
    mc_ip_text(&ip, r->ip);
}

/* All is copied before the first complaint, which shall carry the client's id. */
int mc_req_header_in(struct mc_req *r, struct MHD_Connection *c, const char *method,
                     const char *version, size_t max_body, struct mc_err *err)
{
    struct mc_err of_target;
    int rc = copy_fields(r, c, method, err);
    int rc_target = mc_target_parse(&r->target, r->uri, &of_target);
    const char *id, *coding;

    if (rc == 0)
        rc = mc_fields_check(r->header, r->n_header, version, &r->n_declared, err);
    trim_values(r);
    find_client(r, c);
    id = mc_req_header(r, "x-request-id");
    if (id && mc_is_request_id(id, sizeof r->id - 1))
        snprintf(r->id, sizeof r->id, "%s", id);
    if (rc < 0)
        return rc;
    if (rc_target < 0) {
        *err = of_target;
        return rc_target;
    }
    if (strlen(method) >= sizeof r->method || !mc_is_token(method))
        return mc_fail(err, MC_EARG, "the request's method is malformed");
    snprintf(r->method, sizeof r->method, "%s", method);
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

/* ---- looking in -------------------------------------------------------------------- */

const char *mc_req_method(const struct mc_req *r)
{
    return r->method;
}

const char *mc_req_path(const struct mc_req *r)
{
    return r->target.path;
}

const char *mc_req_query(const struct mc_req *r, const char *key)
{
    for (int i = 0; i < r->target.n_query; i++)
        if (strcmp(r->target.query[i].key, key) == 0)
            return r->target.query[i].value;
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

const char *mc_req_ip(const struct mc_req *r)
{
    return r->ip;
}

void mc_req_set_tenant(struct mc_req *r, const char *name)
{
    snprintf(r->tenant, sizeof r->tenant, "%s", name);
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

void mc_req_each_query(const struct mc_req *r,
                       void (*fn)(void *, const char *, const char *), void *ctx)
{
    for (int i = 0; i < r->target.n_query; i++)
        fn(ctx, r->target.query[i].key, r->target.query[i].value);
}

void mc_req_each_header(const struct mc_req *r,
                        void (*fn)(void *, const char *, const char *), void *ctx)
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

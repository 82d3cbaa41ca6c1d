/* res.c - HTTP responses: given from any thread, sent by libmicrohttpd's.
 *
 * libmicrohttpd takes a response only on its own thread, and calls a stream's reader
 * until it has data: so what is given here is kept in the request, the connection is
 * suspended whenever there is nothing to do (mc_res_step, read_stream) and resumed when
 * there is (mc_res_wake). THREAD: see http_int.h.
 *
 * Always true: `suspended` is up exactly while libmicrohttpd has the connection suspended
 * and no resume is on its way; both change under `lock`, so no resume is lost or doubled.
 * A queued stream response holds a reference to its request. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/serve/http_int.h"

enum {
    UNREAD_MAX = 1 << 20,
    BLOCK = 32768,
    HEADER_MAX = 32,
};

void mc_res_wake(struct mc_req *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->mhd);
}

/* HTTP thread, lock held. */
static void suspend(struct mc_req *r)
{
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
}

static bool closing(const struct mc_req *r)
{
    return atomic_load(&r->http->closing);
}

/* ---- the stream -------------------------------------------------------------------- */

static size_t unread(const struct mc_req *r)
{
    return r->out.n - r->out_from;
}

/* libmicrohttpd's content reader. Returning 0 without suspending would make it spin. */
static ssize_t read_stream(void *ctx, uint64_t pos, char *buf, size_t max)
{
    struct mc_req *r = ctx;
    ssize_t n = 0;

    (void)pos;
    pthread_mutex_lock(&r->lock);
    if (r->gone || r->broken || closing(r)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (unread(r) > 0) {
        n = (ssize_t)(unread(r) < max ? unread(r) : max);
        memcpy(buf, r->out.p + r->out_from, (size_t)n);
        r->out_from += (size_t)n;
        r->n_sent += (uint64_t)n;
        if (r->out_from == r->out.n)
            r->out_from = r->out.n = 0;
    } else if (r->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend(r);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

static void free_stream(void *ctx)
{
    mc_req_unref(ctx);
}

/* ---- queueing, on the HTTP thread -------------------------------------------------- */

enum MHD_Result mc_res_step(struct mc_req *r, struct MHD_Connection *c)
{
    enum MHD_Result ok = MHD_YES;
    struct MHD_Response *resp;

    pthread_mutex_lock(&r->lock);
    resp = r->resp;
    r->resp = NULL;
    if (r->gone || closing(r))
        ok = MHD_NO; /* closes the connection */
    else if (!resp)
        suspend(r);
    pthread_mutex_unlock(&r->lock);
    if (!resp)
        return ok;
    if (ok == MHD_YES)
        ok = MHD_queue_response(c, (unsigned)r->status, resp);
    MHD_destroy_response(resp);
    return ok;
}

/* ---- header ------------------------------------------------------------------------ */

static struct mc_pair *header_of(struct mc_req *r, const char *key)
{
    for (int i = 0; i < r->n_res_header; i++)
        if (strcasecmp(r->res_header[i].key, key) == 0)
            return &r->res_header[i];
    return NULL;
}

/* Line breaks would let a value write header fields of its own. */
static bool sane(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F)
            return false;
    return true;
}

/* The framing is libmicrohttpd's. */
static bool reserved(const char *key)
{
    return strcasecmp(key, "content-length") == 0 || strcasecmp(key, "connection") == 0 ||
           strcasecmp(key, "transfer-encoding") == 0;
}

static int set_header(struct mc_req *r, const char *key, const char *value)
{
    size_t key_n = strlen(key) + 1, value_n = strlen(value) + 1;
    struct mc_pair *h = header_of(r, key);
    char *mem;

    if (!h && r->n_res_header == HEADER_MAX)
        return MC_ELIMIT;
    if (!r->res_header)
        r->res_header = calloc(HEADER_MAX, sizeof *r->res_header);
    mem = malloc(key_n + value_n);
    if (!mem || !r->res_header) {
        free(mem);
        return MC_ENOMEM;
    }
    memcpy(mem, key, key_n);
    memcpy(mem + key_n, value, value_n);
    if (h)
        free((void *)(uintptr_t)h->key);
    else
        h = &r->res_header[r->n_res_header++];
    *h = (struct mc_pair){mem, mem + key_n};
    return 0;
}

int mc_res_header(struct mc_req *r, const char *key, const char *value)
{
    int rc = MC_EEXIST;

    if (!*key || strpbrk(key, " :") || !sane(key) || !sane(value) || reserved(key))
        return MC_EARG;
    pthread_mutex_lock(&r->lock);
    if (!r->started)
        rc = set_header(r, key, value);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

static void add_headers(struct mc_req *r, struct MHD_Response *resp, const char *type)
{
    if (type && !header_of(r, "content-type"))
        MHD_add_response_header(resp, "Content-Type", type);
    if (type && strncmp(type, "text/event-stream", 17) == 0) {
        if (!header_of(r, "cache-control"))
            MHD_add_response_header(resp, "Cache-Control", "no-cache");
        MHD_add_response_header(resp, "X-Accel-Buffering", "no");
    }
    for (int i = 0; i < r->n_res_header; i++)
        MHD_add_response_header(resp, r->res_header[i].key, r->res_header[i].value);
    if (!header_of(r, "x-request-id"))
        MHD_add_response_header(resp, "x-request-id", r->id);
    mc_cors_headers(r, resp);
    if (atomic_load(&r->http->draining))
        MHD_add_response_header(resp, "Connection", "close");
}

/* ---- the edge's side --------------------------------------------------------------- */

/* Lock held: 0 when a response may start. */
static int may_start(const struct mc_req *r)
{
    return r->started ? MC_EEXIST : r->gone ? MC_ECANCEL : 0;
}

/* Lock held; resp may be NULL. */
static int start(struct mc_req *r, struct MHD_Response *resp, int status,
                 const char *type)
{
    if (!resp)
        return MC_ENOMEM;
    add_headers(r, resp, type);
    r->started = true;
    r->status = status;
    r->resp = resp;
    mc_res_wake(r);
    return 0;
}

int mc_res_send(struct mc_req *r, int status, const char *type, const void *body,
                size_t n)
{
    int rc;

    pthread_mutex_lock(&r->lock);
    rc = may_start(r);
    if (rc == 0)
        rc = start(r,
                   MHD_create_response_from_buffer(n, (void *)(uintptr_t)body,
                                                   MHD_RESPMEM_MUST_COPY),
                   status, type);
    if (rc == 0) {
        r->ended = true;
        r->n_sent = n;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int mc_res_begin(struct mc_req *r, int status, const char *type)
{
    int rc;

    pthread_mutex_lock(&r->lock);
    rc = may_start(r);
    if (rc == 0) {
        mc_req_ref(r);
        rc = start(r,
                   MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream,
                                                     r, free_stream),
                   status, type);
        if (rc < 0)
            mc_req_unref(r);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int mc_res_write(struct mc_req *r, const void *data, size_t n)
{
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    if (r->gone) {
        rc = MC_ECANCEL;
    } else if (!r->started || r->ended) {
        rc = MC_EARG;
    } else if (unread(r) > UNREAD_MAX) {
        rc = MC_EAGAIN;
    } else {
        mc_buf_drop(&r->out, r->out_from);
        r->out_from = 0;
        mc_buf_put(&r->out, data, n);
        rc = r->out.failed ? MC_ENOMEM : 0;
        mc_res_wake(r);
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int mc_res_end(struct mc_req *r)
{
    int rc = 0;

    pthread_mutex_lock(&r->lock);
    if (!r->started)
        rc = MC_EARG;
    else if (r->gone)
        rc = MC_ECANCEL;
    r->ended = r->started;
    mc_res_wake(r);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

bool mc_res_started(const struct mc_req *r)
{
    struct mc_req *m = (struct mc_req *)(uintptr_t)r;
    bool started;

    pthread_mutex_lock(&m->lock);
    started = m->started;
    pthread_mutex_unlock(&m->lock);
    return started;
}

int mc_res_error(struct mc_req *r, const struct mc_err *e)
{
    int status = mc_code_http(e->code), rc;
    struct mc_buf b = {0};
    bool told;

    pthread_mutex_lock(&r->lock);
    told = header_of(r, "retry-after") != NULL;
    pthread_mutex_unlock(&r->lock);
    if (!told && (status == 429 || status == 503)) {
        mc_res_header(r, "retry-after", "1");
        mc_res_header(r, "retry-after-ms", "1000");
    }
    if (status == 401)
        mc_res_header(r, "www-authenticate", "Bearer");
    mc_json_error(&b, e);
    rc = b.failed ? MC_ENOMEM : mc_res_send(r, status, "application/json", b.p, b.n);
    mc_buf_free(&b);
    return rc;
}

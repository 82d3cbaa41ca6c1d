/* tensor.c - tensors: stores and their count, shapes, views, what work makes.
 *
 * Owns stores and accounts. THREAD: any; counts are atomic, a store's contents are
 * ordered by the queue. Always true: used <= total, and an account's bytes <= its quota.
 */
#include "core/tensor/tensor_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- accounts and stores ----------------------------------------------------------- */

struct mc_account *mc_account_open(struct mc_tensors *ts, uint64_t quota)
{
    struct mc_account *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->ts = ts;
    a->quota = quota;
    atomic_init(&a->refs, 1);
    return a;
}

static void account_drop(struct mc_account *a)
{
    if (atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) == 1)
        free(a);
}

void mc_account_close(struct mc_account *a)
{
    if (a)
        account_drop(a);
}

struct mc_tensors *mc_account_pool(const struct mc_account *a)
{
    return a->ts;
}

void mc_tensors_use(struct mc_tensors *ts, const struct mc_account *a,
                    struct mc_tensors_use *out)
{
    *out = (struct mc_tensors_use){.used = atomic_load(&ts->used), .total = ts->total};
    if (a) {
        out->mine = atomic_load(&a->bytes);
        out->quota = a->quota;
    }
}

/* Adds n unless the sum would pass the limit. */
static bool charge(_Atomic uint64_t *sum, uint64_t n, uint64_t limit)
{
    uint64_t was = atomic_load(sum);

    do {
        if (n > limit || was > limit - n)
            return false;
    } while (!atomic_compare_exchange_weak(sum, &was, was + n));
    return true;
}

static int take(struct mc_account *a, size_t bytes, bool host, struct mc_store **out,
                struct mc_err *err)
{
    struct mc_tensors *ts = a->ts;
    const double mib = 1 << 20;
    struct mc_store *s;

    if (!charge(&a->bytes, bytes, a->quota))
        return mc_fail(err, MC_ELIMIT,
                       "a tensor of %.1f MiB: this VM's scripts hold %.1f of "
                       "the %.1f MiB that they may",
                       (double)bytes / mib, (double)atomic_load(&a->bytes) / mib,
                       (double)a->quota / mib);
    if (!charge(&ts->used, bytes, ts->total)) {
        atomic_fetch_sub(&a->bytes, bytes);
        return mc_fail(err, MC_ELIMIT,
                       "a tensor of %.1f MiB: %.1f of the pool's %.1f MiB are "
                       "taken (--tensor-memory)",
                       (double)bytes / mib, (double)atomic_load(&ts->used) / mib,
                       (double)ts->total / mib);
    }
    s = malloc(sizeof *s);
    if (s)
        s->p = host ? ts->be->host_alloc(ts->be, bytes) : ts->be->alloc(ts->be, bytes);
    if (!s || !s->p) {
        free(s);
        atomic_fetch_sub(&ts->used, bytes);
        atomic_fetch_sub(&a->bytes, bytes);
        return mc_fail(err, MC_ENOMEM, "no memory for a tensor of %.1f MiB",
                       (double)bytes / mib);
    }
    atomic_init(&s->refs, 1);
    s->account = a;
    s->bytes = bytes;
    s->host = host;
    atomic_fetch_add(&a->refs, 1);
    *out = s;
    return 0;
}

void mc_store_ref(struct mc_store *s)
{
    if (s)
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void mc_store_drop(struct mc_store *s)
{
    struct mc_account *a = s ? s->account : NULL;
    struct mc_tensors *ts;

    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    ts = a->ts;
    if (s->host)
        ts->be->host_release(ts->be, s->p, s->bytes);
    else
        ts->be->release(ts->be, s->p, s->bytes);
    atomic_fetch_sub(&ts->used, s->bytes);
    atomic_fetch_sub(&a->bytes, s->bytes);
    account_drop(a);
    free(s);
}

/* ---- types and shapes -------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t dt, bytes;
} types[] = {{"f32", MC_F32, 4},
             {"f16", MC_F16, 2},
             {"bf16", MC_BF16, 2},
             {"i32", MC_I32, 4}};
enum { N_TYPE = sizeof types / sizeof *types };

int mc_dtype_of(const char *name)
{
    for (int i = 0; i < N_TYPE; i++)
        if (strcmp(types[i].name, name) == 0)
            return types[i].dt;
    return -1;
}

const char *mc_dtype_name(int dt)
{
    for (int i = 0; i < N_TYPE; i++)
        if (types[i].dt == dt)
            return types[i].name;
    return NULL;
}

size_t mc_dtype_bytes(int dt)
{
    for (int i = 0; i < N_TYPE; i++)
        if (types[i].dt == dt)
            return types[i].bytes;
    return 0;
}

int64_t mc_tensor_count(const struct mc_tensor *t)
{
    return (int64_t)t->v.n[0] * t->v.n[1] * t->v.n[2] * t->v.n[3];
}

const int32_t *mc_tensor_shape(const struct mc_tensor *t)
{
    return t->v.n + MC_AXES - t->n_dim;
}

void mc_tensor_text(const struct mc_tensor *t, char out[80])
{
    const int32_t *shape = mc_tensor_shape(t);
    size_t at = (size_t)snprintf(out, 80, "%s [", mc_dtype_name(t->v.dt));

    for (int i = 0; i < t->n_dim; i++)
        at += (size_t)snprintf(out + at, 80 - at, "%s%" PRId32, i ? ", " : "", shape[i]);
    snprintf(out + at, 80 - at, "]");
}

/* A contiguous view of this shape; the count of its elements, or an error. */
static int64_t lay_out(int dt, int n_dim, const int32_t *shape, struct mc_tensor *t,
                       struct mc_err *err)
{
    int64_t count = 1;

    if (!mc_dtype_name(dt))
        return mc_fail(err, MC_EARG, "a tensor's type is f32, f16, bf16 or i32");
    if (n_dim < 0 || n_dim > MC_AXES)
        return mc_fail(err, MC_EARG, "a tensor of %d axes: it has up to %d", n_dim,
                       MC_AXES);
    *t = (struct mc_tensor){.n_dim = n_dim, .v = {.dt = (uint16_t)dt}};
    for (int i = MC_AXES - 1; i >= 0; i--) {
        int32_t n = i < MC_AXES - n_dim ? 1 : shape[i - (MC_AXES - n_dim)];

        if (n < 1)
            return mc_fail(err, MC_EARG, "a tensor with an axis of %" PRId32, n);
        t->v.n[i] = n;
        t->v.step[i] = count;
        if (n > (INT64_C(1) << 40) / count)
            return mc_fail(err, MC_ELIMIT, "a tensor of more than 2^40 elements");
        count *= n;
    }
    return count;
}

static int make(struct mc_account *a, int dt, int n_dim, const int32_t *shape, bool host,
                struct mc_tensor *out, struct mc_err *err)
{
    int64_t count = lay_out(dt, n_dim, shape, out, err);
    int rc;

    if (count < 0)
        return (int)count;
    rc = take(a, (size_t)count * mc_dtype_bytes(dt), host, &out->store, err);
    if (rc == 0)
        out->v.p = out->store->p;
    return rc;
}

int mc_tensor_new(struct mc_account *a, int dt, int n_dim, const int32_t *shape,
                  struct mc_tensor *out, struct mc_err *err)
{
    return make(a, dt, n_dim, shape, false, out, err);
}

int mc_tensor_new_host(struct mc_account *a, int dt, int n_dim, const int32_t *shape,
                       struct mc_tensor *out, struct mc_err *err)
{
    return make(a, dt, n_dim, shape, true, out, err);
}

struct mc_tensor mc_tensor_ref(const struct mc_tensor *t)
{
    mc_store_ref(t->store);
    return *t;
}

void mc_tensor_drop(struct mc_tensor *t)
{
    mc_store_drop(t->store);
    t->store = NULL;
}

struct mc_account *mc_tensor_account(const struct mc_tensor *t)
{
    return t->store->account;
}

/* ---- views ------------------------------------------------------------------------- */

static void *moved(const struct mc_tensor *t, int64_t elements)
{
    return (char *)t->v.p + elements * (int64_t)mc_dtype_bytes(t->v.dt);
}

int mc_tensor_slice(const struct mc_tensor *t, int axis, int32_t from, int32_t n,
                    struct mc_tensor *out, struct mc_err *err)
{
    int i = MC_AXES - t->n_dim + axis;
    char text[80];

    mc_tensor_text(t, text);
    if (axis < 0 || axis >= t->n_dim)
        return mc_fail(err, MC_EARG, "%s has no axis %d", text, axis + 1);
    if (n < 1 || from < 0 || n > t->v.n[i] - from)
        return mc_fail(err, MC_EARG, "%s has no %" PRId32 " to %" PRId32 " along axis %d",
                       text, from + 1, from + n, axis + 1);
    *out = mc_tensor_ref(t);
    out->v.p = moved(t, from * t->v.step[i]);
    out->v.n[i] = n;
    return 0;
}

int mc_tensor_index(const struct mc_tensor *t, int32_t i, struct mc_tensor *out,
                    struct mc_err *err)
{
    int first = MC_AXES - t->n_dim;
    char text[80];

    mc_tensor_text(t, text);
    if (t->n_dim == 0 || i < 0 || i >= t->v.n[first])
        return mc_fail(err, MC_EARG, "%s has no row %" PRId32, text, i + 1);
    *out = mc_tensor_ref(t);
    out->v.p = moved(t, i * t->v.step[first]);
    out->v.n[first] = 1;
    out->v.step[first] = 0;
    out->n_dim--;
    return 0;
}

int mc_tensor_transpose(const struct mc_tensor *t, struct mc_tensor *out,
                        struct mc_err *err)
{
    char text[80];

    mc_tensor_text(t, text);
    if (t->n_dim < 2)
        return mc_fail(err, MC_EARG, "%s has no two axes to exchange", text);
    *out = mc_tensor_ref(t);
    out->v.n[2] = t->v.n[3], out->v.n[3] = t->v.n[2];
    out->v.step[2] = t->v.step[3], out->v.step[3] = t->v.step[2];
    return 0;
}

/* ---- what work makes --------------------------------------------------------------- */

/* The shape in which a and b meet, axis by axis before `axes`; false when they can't. */
static bool meet(const struct mc_strided *a, const struct mc_strided *b, int axes,
                 int32_t *n)
{
    for (int i = 0; i < axes; i++) {
        if (a->n[i] != b->n[i] && a->n[i] != 1 && b->n[i] != 1)
            return false;
        n[i] = a->n[i] > b->n[i] ? a->n[i] : b->n[i];
    }
    return true;
}

/* v over shape n in the axes before `axes`: what has 1 there repeats. */
static void spread(struct mc_strided *v, int axes, const int32_t *n)
{
    for (int i = 0; i < axes; i++) {
        if (v->n[i] == 1)
            v->step[i] = 0;
        v->n[i] = n[i];
    }
}

static int refuse(const struct mc_tensor_work *w, const char *why, struct mc_err *err)
{
    static const char *const names[MC_N_T] = {"cast", "+", "-", "*", "/", "matmul", "sum",
                                              "mean", "norm", "max", "softmax", "topk"};
    char a[80], b[80] = "";

    mc_tensor_text(w->a, a);
    if (w->b)
        mc_tensor_text(w->b, b);
    return mc_fail(err, MC_EARG, "%s of %s%s%s: %s", names[w->what], a,
                   w->b ? " and " : "", b, why);
}

/* The type of a result: that of its operands, f32 of two kinds. */
static int type_of(const struct mc_tensor_work *w)
{
    if (w->what == MC_T_COPY)
        return w->dt;
    return w->b && w->b->v.dt != w->a->v.dt ? MC_F32 : w->a->v.dt;
}

/* Fills the operands of p and the result's shape; a row times a matrix is a row. */
static int shape_of(const struct mc_tensor_work *w, struct mc_tensor_p *p,
                    int32_t n[MC_AXES], int *n_dim, struct mc_err *err)
{
    bool product = w->what == MC_T_MATMUL;
    int axes = product ? 2 : MC_AXES;

    p->a = w->a->v;
    memcpy(n, p->a.n, sizeof p->a.n);
    *n_dim = w->a->n_dim;
    if (w->b) {
        p->b = w->b->v;
        if (product && w->b->n_dim < 2)
            return refuse(w, "the second is no matrix", err);
        if (!meet(&p->a, &p->b, axes, n))
            return refuse(w, "the shapes don't meet", err);
        spread(&p->a, axes, n);
        spread(&p->b, axes, n);
        if (product && w->a->n_dim < w->b->n_dim && w->b->n_dim > 2)
            *n_dim = w->b->n_dim;
        else if (!product && w->b->n_dim > *n_dim)
            *n_dim = w->b->n_dim;
        if (product)
            n[3] = p->b.n[3];
    }
    if (w->what == MC_T_TOPK)
        n[3] = w->k;
    if (w->what >= MC_T_SUM && w->what <= MC_T_MAX) {
        if (w->a->n_dim == 0)
            return refuse(w, "it has no axis", err);
        n[3] = 1;
    }
    return 0;
}

/* The axis that was summed goes: the others move up behind it. */
static void close_up(struct mc_tensor *t)
{
    for (int i = MC_AXES - 1; i > 0; i--) {
        t->v.n[i] = t->v.n[i - 1];
        t->v.step[i] = t->v.step[i - 1];
    }
    t->v.n[0] = 1;
    t->n_dim--;
}

static int make_results(const struct mc_tensor_work *w, struct mc_tensor_p *p,
                        const int32_t n[MC_AXES], int n_dim, struct mc_tensor *out,
                        struct mc_tensor *ids, struct mc_err *err)
{
    struct mc_account *a = w->a->store->account;
    int rc = mc_tensor_new(a, type_of(w), n_dim, n + MC_AXES - n_dim, out, err);

    if (rc < 0)
        return rc;
    p->out = out->v;
    if (w->what != MC_T_TOPK)
        return 0;
    rc = mc_tensor_new(a, MC_I32, n_dim, n + MC_AXES - n_dim, ids, err);
    if (rc < 0)
        mc_tensor_drop(out);
    else
        p->ids = ids->v;
    return rc;
}

int mc_tensor_work(const struct mc_tensor_work *w, struct mc_tensor *out,
                   struct mc_tensor *ids, struct mc_err *err)
{
    struct mc_tensors *ts = w->a->store->account->ts;
    struct mc_tensor_p p = {.what = w->what, .scale = w->scale};
    struct mc_tensor places = {0};
    const char *why = NULL;
    int32_t n[MC_AXES];
    int n_dim, rc;

    if (mc_tensors_full(ts))
        return 1;
    rc = shape_of(w, &p, n, &n_dim, err);
    if (rc == 0 && w->what == MC_T_TOPK &&
        (w->k < 1 || w->k > p.a.n[3] || w->k > MC_TOPK_MAX))
        rc = refuse(w, "k is 1 to 1024, at most the last axis", err);
    if (rc == 0)
        rc = make_results(w, &p, n, n_dim, out, &places, err);
    if (rc < 0)
        return rc;
    why = mc_tensors_refuse(ts, &p);
    rc = why ? refuse(w, why, err)
             : mc_tensors_queue(ts, &p,
                                (struct mc_store *[]){out->store, places.store,
                                                      w->a->store,
                                                      w->b ? w->b->store : NULL},
                                err);
    if (rc < 0) {
        mc_tensor_drop(out);
        mc_tensor_drop(&places);
        return rc;
    }
    if (w->what >= MC_T_SUM && w->what <= MC_T_MAX)
        close_up(out);
    if (ids)
        *ids = places;
    else
        mc_tensor_drop(&places);
    return 0;
}

int mc_tensor_move(const struct mc_tensor *from, const struct mc_tensor *to,
                   struct mc_err *err)
{
    struct mc_tensors *ts = to->store->account->ts;
    struct mc_tensor_p p = {.what = MC_T_COPY, .out = to->v, .a = from->v};
    const char *why;

    if (mc_tensors_full(ts))
        return 1;
    why = mc_tensors_refuse(ts, &p);
    if (why)
        return mc_fail(err, MC_EARG, "a copy: %s", why);
    return mc_tensors_queue(ts, &p,
                            (struct mc_store *[]){to->store, from->store, NULL, NULL},
                            err);
}

/* tensor.h - tensors that scripts compute with, in a pool of device memory of their own.
 *
 * Rules
 *  1. A tensor is a view of a store. Stores are counted: handles, queued work and running
 *     sequences each hold a reference, and memory goes with the last.
 *  2. Work is queued and done in order, on a stream that gives way to the steps'. Shapes
 * and types are checked when it is queued; contents are never changed afterwards, so that
 *     views need no copies.
 *  3. Bytes count against the pool and against an account (a VM's) until they are freed.
 * Misuse is MC_EARG with the shapes in its text; MC_ELIMIT: the pool or the account is
 * full.
 *
 * OWNS memory, queue, stream and thread; the thread starts with the first work.
 * THREAD: any. Nothing here waits, save mc_tensors_close. */
#ifndef MC_TENSOR_TENSOR_H
#define MC_TENSOR_TENSOR_H

#include "core/base/err.h"
#include "kernels/kernels.h"

struct mc_tensors; /* the pool */
struct mc_account;
struct mc_store;

struct mc_tensor {
    struct mc_store *store; /* a reference; NULL: none */
    int32_t n_dim;          /* axes that it has: the last of v's */
    struct mc_strided v;
};

int mc_tensors_open(struct mc_backend *be, uint64_t bytes, struct mc_tensors **out,
                    struct mc_err *err);
/* After every tensor and account is gone. NULL is fine. */
void mc_tensors_close(struct mc_tensors *ts);

struct mc_tensors_use {
    uint64_t used, total;         /* of the pool */
    uint64_t mine, quota;         /* of the account */
};
void mc_tensors_use(struct mc_tensors *ts, const struct mc_account *a,
                    struct mc_tensors_use *out);

/* Whether a backend's steps reach the pool's memory: that of hosts is one. */
bool mc_tensors_reach(const struct mc_tensors *ts, const struct mc_backend *be);

/* Who asks: its tensors take at most quota bytes. NULL: no memory. */
struct mc_account *mc_account_open(struct mc_tensors *ts, uint64_t quota);
void mc_account_close(struct mc_account *a); /* what it holds stays until it is dropped */
struct mc_tensors *mc_account_pool(const struct mc_account *a);

/* ---- making, views ----------------------------------------------------------------- */

/* "f32", "f16", "bf16", "i32" and back; -1, NULL: none of these. */
int mc_dtype_of(const char *name);
const char *mc_dtype_name(int dt);
size_t mc_dtype_bytes(int dt);

/* Zeroed, of n_dim (0..4) axes. */
int mc_tensor_new(struct mc_account *a, int dt, int n_dim, const int32_t *shape,
                  struct mc_tensor *out, struct mc_err *err);
/* The same in host memory, contiguous, to be written before it is named in queued work,
 * or read after. */
int mc_tensor_new_host(struct mc_account *a, int dt, int n_dim, const int32_t *shape,
                       struct mc_tensor *out, struct mc_err *err);
struct mc_tensor mc_tensor_ref(const struct mc_tensor *t);
void mc_tensor_drop(struct mc_tensor *t); /* and forgets it; twice is fine */
struct mc_account *mc_tensor_account(const struct mc_tensor *t);

int64_t mc_tensor_count(const struct mc_tensor *t); /* elements */
const int32_t *mc_tensor_shape(const struct mc_tensor *t); /* [n_dim] */
/* "bf16 [8, 576]" */
void mc_tensor_text(const struct mc_tensor *t, char out[80]);

/* Views; out is a reference of its own. axis from 0, elements [from, from+n). */
int mc_tensor_slice(const struct mc_tensor *t, int axis, int32_t from, int32_t n,
                    struct mc_tensor *out, struct mc_err *err);
int mc_tensor_index(const struct mc_tensor *t, int32_t i, struct mc_tensor *out,
                    struct mc_err *err); /* of the first axis, which goes */
int mc_tensor_transpose(const struct mc_tensor *t, struct mc_tensor *out,
                        struct mc_err *err); /* of the last two */

/* ---- work -------------------------------------------------------------------------- */

/* Queues what of a (and b; axes of 1 and missing ones repeat), a op scale, or the k
 * largest; the result is on a's account. 1: so much is queued already that nothing was
 * done: await some of it. dt: of COPY's result, else ignored. */
struct mc_tensor_work {
    enum mc_tensor_what what;
    const struct mc_tensor *a, *b;
    float scale;
    int32_t k;
    int dt;
};
int mc_tensor_work(const struct mc_tensor_work *w, struct mc_tensor *out,
                   struct mc_tensor *ids, struct mc_err *err);
/* Queues a copy between tensors of one shape, to host memory or from it. As above. */
int mc_tensor_move(const struct mc_tensor *from, const struct mc_tensor *to,
                   struct mc_err *err);

/* Queues a call on the pool's thread: what may take its time, as files do. */
int mc_tensors_call(struct mc_tensors *ts, void (*fn)(void *ctx), void *ctx,
                    struct mc_err *err);

/* What is queued is awaited with a fence: fn is called once, by the pool's thread and at
 * the earliest before this returns, when all that was queued before is done; it must only
 * ring a bell. The fence's memory is the caller's. */
struct mc_fence {
    struct mc_fence *next;
    uint64_t ticket;
    void (*fn)(void *ctx);
    void *ctx;
    bool armed;
};
void mc_fence_arm(struct mc_tensors *ts, struct mc_fence *f, void (*fn)(void *),
                  void *ctx);
void mc_fence_disarm(struct mc_tensors *ts,
                     struct mc_fence *f); /* fn is not called after */
bool mc_fence_passed(struct mc_tensors *ts, struct mc_fence *f);
bool mc_tensors_busy(struct mc_tensors *ts); /* something is queued */
/* The error that stopped the queue for good, or 0. */
int mc_tensors_failed(struct mc_tensors *ts);

#endif

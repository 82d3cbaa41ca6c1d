/* tensor_int.h - between the files of core/tensor.
 *
 * OWNS nothing. THREAD: as tensor.h says. */
#ifndef MC_TENSOR_INT_H
#define MC_TENSOR_INT_H

#include "core/tensor/tensor.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MC_N_NAMED = 4 }; /* stores that one piece of work names */

struct mc_account {
    struct mc_tensors *ts;
    uint64_t quota;
    _Atomic uint64_t bytes;
    atomic_int refs; /* its owner's and each store's */
};

struct mc_store {
    struct mc_account *account;
    void *p;
    size_t bytes;
    bool host;
    atomic_int refs;
};

struct mc_job {
    struct mc_tensor_p p;
    struct mc_store *named[MC_N_NAMED];
    void (*call)(void *ctx); /* instead of p */
    void *ctx;
};

struct mc_tensors {
    struct mc_backend *be;
    uint64_t total;
    _Atomic uint64_t used;

    pthread_mutex_t lock; /* guards what follows; a leaf, save for a fence's bell */
    pthread_cond_t work;
    struct mc_job *ring;      /* [MC_QUEUE] */
    uint64_t queued, done;    /* counts; the ring holds [done, queued) */
    struct mc_fence *fences;  /* armed, any order */
    bool started, quit;
    int failed;
    pthread_t thread;
};

void mc_store_ref(struct mc_store *s);
void mc_store_drop(struct mc_store *s); /* NULL is fine */

/* queue.c */
bool mc_tensors_full(struct mc_tensors *ts);
const char *mc_tensors_refuse(const struct mc_tensors *ts, const struct mc_tensor_p *p);
/* Takes references of its own. The caller saw that it is not full, or loses a race: then
 * the queue has a little room beyond. */
int mc_tensors_queue(struct mc_tensors *ts, const struct mc_tensor_p *p,
                     struct mc_store *const named[MC_N_NAMED], struct mc_err *err);

#endif

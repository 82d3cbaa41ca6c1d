/* host.h - what the backends that run on the CPU share: streams, threads, memory.
 *
 * Internal to kernels/host, kernels/ref and kernels/cpu. A body is a plain function over
 * its operation's params; the stream calls it on its leader thread, and it may spread its
 * loop over the stream's threads with mc_par_for. An operation's run() is then one push.
 *
 * OWNS: a stream its threads and ring; struct mc_host nothing but its own fields.
 * THREAD: pushing, marking, recording: one thread at a time; waiting: any thread;
 * mc_par_for: only from a body. */
#ifndef MC_HOST_H
#define MC_HOST_H

#include "kernels/kernels.h"

/* ---- threads of a stream ----------------------------------------------------------- */

struct mc_par;

/* Items [i0, i1) on thread `lane`, 0..mc_par_threads()-1. */
typedef void (*mc_par_fn)(void *ctx, int64_t i0, int64_t i1, int lane);

/* Calls fn over [0, n) in chunks of grain, taken in rising order by whichever thread is
 * free, and returns when all are done. Results must not depend on which thread ran what. */
void mc_par_for(struct mc_par *par, int64_t n, int64_t grain, mc_par_fn fn, void *ctx);
int mc_par_threads(const struct mc_par *par);

/* ---- streams ----------------------------------------------------------------------- */

enum {
    MC_REC_BYTES = 640, /* the largest params struct */
    MC_RING = 512,      /* records in flight; a full ring blocks the pusher */
};

typedef int (*mc_body)(struct mc_par *par, const void *p);

/* Enqueues (or records) body over a copy of p. A body that returns a negative code stops
 * the stream for good: what follows is skipped, wait() returns the code, and the ranks of
 * the stream's peer part. */
int mc_stream_push(struct mc_stream *s, mc_body body, const void *p, size_t bytes);

int mc_stream_new(int threads, const struct mc_peer *peer, struct mc_stream **out);
/* Waits for what is enqueued. NULL is fine; so it is for graphs, which must not be in
 * flight. */
void mc_stream_free(struct mc_stream *s);
uint64_t mc_stream_mark(struct mc_stream *s);
int mc_stream_wait(struct mc_stream *s, uint64_t ticket);
int mc_stream_wait_ms(struct mc_stream *s, uint64_t ticket, uint32_t ms);
bool mc_stream_done(struct mc_stream *s, uint64_t ticket);
int mc_graph_begin(struct mc_stream *s);
int mc_graph_end(struct mc_stream *s, struct mc_graph **out);
int mc_graph_run(struct mc_stream *s, const struct mc_graph *g);
void mc_graph_free(struct mc_graph *g);

/* ---- backends ---------------------------------------------------------------------- */

struct mc_host {
    struct mc_backend b; /* first: a backend is cast to its host */
    int threads;
};

/* Fills the memory, stream and graph functions and the operations whose bodies are shared;
 * the caller adds its own, run_of, act_of and close. Threads: the rank's share of those
 * asked for, or of the cores allowed; one at least. */
void mc_host_init(struct mc_host *h, const char *name, const struct mc_backend_opts *o);

/* Defines `const struct mc_op sym` of operation `name` from
 *   static int need(const struct mc_<name>_p *, struct mc_need *, const char **why)
 *   static int body(struct mc_par *, const struct mc_<name>_p *) */
#define MC_HOST_OP(sym, name, need, body)                                                  \
    _Static_assert(sizeof(struct mc_##name##_p) <= MC_REC_BYTES, #name);                   \
    static int need_##name(const void *p, struct mc_need *n, const char **why)             \
    {                                                                                      \
        *n = (struct mc_need){0};                                                          \
        return need((const struct mc_##name##_p *)p, n, why);                              \
    }                                                                                      \
    static int body_##name(struct mc_par *par, const void *p)                              \
    {                                                                                      \
        return body(par, (const struct mc_##name##_p *)p);                                 \
    }                                                                                      \
    static int run_##name(struct mc_stream *s, const void *p)                              \
    {                                                                                      \
        return mc_stream_push(s, body_##name, p, sizeof(struct mc_##name##_p));            \
    }                                                                                      \
    const struct mc_op sym = {#name, sizeof(struct mc_##name##_p), need_##name, NULL,      \
                              run_##name}

/* The need of an operation that takes any shape and no scratch. */
#define MC_HOST_NEEDS_NOTHING(name)                                                        \
    static int name##_need(const struct mc_##name##_p *p, struct mc_need *n,               \
                           const char **why)                                               \
    {                                                                                      \
        (void)p;                                                                           \
        (void)n;                                                                           \
        (void)why;                                                                         \
        return 0;                                                                          \
    }

/* NULL, or why p is no tensor operation. tensor.c */
const char *mc_tensor_refuse(const struct mc_tensor_p *p);

/* A refusal: `return mc_refuse(why, "...")`. */
static inline int mc_refuse(const char **why, const char *text)
{
    if (why)
        *why = text;
    return MC_K_EUNSUP;
}

/* The operations that ref and cpu share. */
extern const struct mc_op mc_host_page_init, mc_host_page_copy, mc_host_page_check,
    mc_host_table_apply, mc_host_chain, mc_host_sample, mc_host_verify, mc_host_commit,
    mc_host_gather_rows, mc_host_nll, mc_host_all_gather, mc_host_all_to_all,
    mc_host_agree, mc_host_shard_merge, mc_host_dsa_merge, mc_host_tap;

#endif

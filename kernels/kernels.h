/* kernels.h - the operation table: what a forward pass may ask of a device.
 *
 * The contract between the forward passes (core/model), the engine (core/engine) and the
 * bodies: kernels/ref (scalar, the oracle) and kernels/cpu (SIMD). It is written for a
 * CUDA backend too, but includes nothing outside of kernels/ and names no CUDA type.
 *
 * Rules
 *  1. An operation is three functions over one plain params struct. need() at boot: scratch
 *     and plan bytes for the capacities in p, or a refusal by name. plan() once a step on
 *     the host, pure: a work-list into a staging buffer (attention only). run() enqueues
 *     only: no allocation, no wait, no host read of device data; legal to replay.
 *  2. Params hold capacities and addresses, never live counts: those sit in device memory
 *     (struct mc_rows) at fixed addresses, so that a captured step replays as lengths
 *     change. On the CPU device memory is host memory.
 *  3. Activations are opaque (struct mc_act): whoever runs before a linear writes them in
 *     the form that the linear's run layout wants (mc_backend.act_of). A pass hands them on
 *     and never looks inside.
 *  4. Rounding points are stated beside each operation; ref reproduces them.
 *  5. A row's result does not depend on the other rows of the batch: sums over K run in one
 *     order for any number of rows; attention is cut in splits of MC_SPLIT tokens aligned
 *     to absolute positions and folded left to right.
 *  6. Collectives are operations; sums run in rank order 0..n-1 on every rank, so that
 *     what all ranks compute is bit-equal. What a rank brings to one (x of join, in of the
 *     others) stays as it is until the rank's next collective has run, so that two in a row
 *     take different memory. Every wait is bounded and ends when the ranks part.
 *  7. Ties in top-k and argmax go to the lowest id.
 *
 * T rows, R sampled rows, S sequences, H hidden, h heads of a rank, hk kv heads of a rank,
 * d head dim, c latent and r rope dims of MLA, E experts, V vocabulary (of a rank where it
 * says [V/n]). All sums are f32. "row type" is the type of the residual stream and of q, k,
 * v: f32 in ref and cpu, bf16 in cuda.
 * THREAD: need and run: the engine's; bodies run on the stream's own threads. */
#ifndef MC_KERNELS_H
#define MC_KERNELS_H

#include "kernels/ops.h"
#include "kernels/types.h"

/* ---- backend ----------------------------------------------------------------------- */

struct mc_need {
    size_t scratch; /* bytes behind the params' scratch pointer */
    size_t plan;    /* bytes of its work-list */
    size_t q, scale, zero; /* pack: bytes of the packed matrix */
};

struct mc_op {
    const char *name;
    size_t p_bytes; /* of its params struct */
    int (*need)(const void *p, struct mc_need *need, const char **why);
    int (*plan)(const void *p, const struct mc_rows *host_rows, void *buf); /* or NULL */
    int (*run)(struct mc_stream *s, const void *p);
};

struct mc_backend_opts {
    int threads;          /* of all ranks; 0: one a core */
    const char *cpu;      /* "portable", "avx2", "avx512", NULL: the best that runs here */
    int ref_act;          /* ref only: enum mc_act_layout to round activations to, -1: f32 */
    struct mc_peer peer;  /* the rank that it computes for; all zero: alone */
};

/* A device and its bodies. Returned functions give 0 or a negative error code; a code is
 * one of MC_K_*, which equal the program's codes of the same name. */
struct mc_backend {
    const char *name; /* "ref", "cpu", "cuda" */
    char what[64];    /* "avx512-vnni, 2 threads" */
    uint16_t row_dt;  /* row type */
    struct mc_peer peer;
    int32_t few_rows; /* steps of at most so many rows want a pass of their own, as launches
                         cost what they could have to do; 0: they cost what they do */
    const struct mc_op *op[MC_N_OP];
    const struct mc_op *any[MC_N_OP]; /* NULL, or a slower body for the sizes that op refuses */

    /* The run layout for a disk format, and the activation layout that it reads. */
    uint16_t (*run_of)(const struct mc_backend *b, uint16_t disk_fmt);
    uint16_t (*act_of)(const struct mc_backend *b, uint16_t run_layout);

    void *(*alloc)(struct mc_backend *b, size_t bytes); /* device memory, zeroed; or NULL */
    void (*release)(struct mc_backend *b, void *p, size_t bytes);
    void *(*host_alloc)(struct mc_backend *b, size_t bytes); /* staging, zeroed */
    void (*host_release)(struct mc_backend *b, void *p, size_t bytes);
    /* The bytes of device memory are not needed: what they are is undefined from now on, and
     * the system may have the memory until they are written. NULL: it can't be given back. */
    void (*discard)(struct mc_backend *b, void *p, size_t bytes);
    /* A blocking copy of host bytes to device memory, for boot. */
    int (*upload)(struct mc_backend *b, void *dst, const void *src, size_t bytes);

    int (*stream_new)(struct mc_backend *b, struct mc_stream **out);
    /* One whose work gives way to the others', and whose failure parts no ranks; or NULL. */
    int (*stream_low)(struct mc_backend *b, struct mc_stream **out);
    void (*stream_free)(struct mc_stream *s);
    /* Events are numbers: mark() returns the ticket of all that was enqueued before it;
     * wait() blocks the caller until that is done, or returns the error that stopped it. */
    uint64_t (*mark)(struct mc_stream *s);
    int (*wait)(struct mc_stream *s, uint64_t ticket);
    /* As wait, but gives up after ms milliseconds: 1. */
    int (*wait_ms)(struct mc_stream *s, uint64_t ticket, uint32_t ms);
    bool (*done)(struct mc_stream *s, uint64_t ticket);
    /* Between begin and end run() records instead of enqueuing. */
    int (*graph_begin)(struct mc_stream *s);
    int (*graph_end)(struct mc_stream *s, struct mc_graph **out);
    int (*graph_run)(struct mc_stream *s, const struct mc_graph *g);
    void (*graph_free)(struct mc_graph *g);

    void (*close)(struct mc_backend *b);
};

enum { MC_K_EARG = -1, MC_K_EUNSUP = -3, MC_K_EINTERNAL = -17, MC_K_ERANK = -21,
       MC_K_ENOMEM = -26 };

/* Each makes a backend or returns NULL with a static reason in *why. */
struct mc_backend *mc_ref_open(const struct mc_backend_opts *o, const char **why);
struct mc_backend *mc_cpu_open(const struct mc_backend_opts *o, const char **why);
struct mc_backend *mc_cuda_open(const struct mc_backend_opts *o, const char **why);

/* Typed calls: mc_k_embed(b, s, &p). */
#define MC_OP(name)                                                                        \
    struct mc_##name##_p;                                                                  \
    static inline int mc_k_##name(const struct mc_backend *b, struct mc_stream *s,         \
                                  const struct mc_##name##_p *p)                           \
    {                                                                                      \
        return b->op[MC_OP_##name]->run(s, p);                                             \
    }
MC_OPS(MC_OP)
#undef MC_OP

#endif

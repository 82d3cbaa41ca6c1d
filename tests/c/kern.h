/* kern.h - what the tests of kernels share: a backend, a stream, rows of a step.
 *
 * Memory comes from calloc, so that a sanitizer sees its ends. */
#ifndef MC_TEST_KERN_H
#define MC_TEST_KERN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

struct kern {
    struct mc_backend *b;
    struct mc_stream *s;
};

static inline struct kern kern_open(struct mc_backend *b, const char *why)
{
    struct kern k = {b, NULL};

    if (!b)
        fail_msg("no backend: %s", why);
    assert_int_equal(b->stream_new(b, &k.s), 0);
    return k;
}

static inline struct kern kern_ref(int threads, int act)
{
    struct mc_backend_opts o = {.threads = threads, .ref_act = act};
    const char *why = "";

    return kern_open(mc_ref_open(&o, &why), why);
}

static inline void kern_close(struct kern *k)
{
    k->b->stream_free(k->s);
    k->b->close(k->b);
}

/* need() must accept; then run and wait. */
#define kern_run(k, name, ...)                                                             \
    do {                                                                                   \
        struct mc_##name##_p p_ = __VA_ARGS__;                                             \
        struct mc_need need_;                                                              \
        const char *why_ = "";                                                             \
        if ((k)->b->op[MC_OP_##name]->need(&p_, &need_, &why_) != 0)                       \
            fail_msg(#name " refused: %s", why_);                                          \
        assert_int_equal(mc_k_##name((k)->b, (k)->s, &p_), 0);                             \
        assert_int_equal((k)->b->wait((k)->s, (k)->b->mark((k)->s)), 0);                   \
    } while (0)

/* The reason for which need() refuses p, or NULL. */
#define kern_refuses(k, name, ...)                                                         \
    __extension__({                                                                        \
        struct mc_##name##_p p_ = __VA_ARGS__;                                             \
        struct mc_need need_;                                                              \
        const char *why_ = NULL;                                                           \
        int rc_ = (k)->b->op[MC_OP_##name]->need(&p_, &need_, &why_);                      \
        assert_int_equal(rc_, why_ ? MC_K_EUNSUP : 0);                                     \
        why_;                                                                              \
    })

enum { KERN_T = 1024, KERN_S = 16 };

/* The rows of a step, in order; kern_seq adds one sequence's. */
struct kern_rows {
    int32_t live[4];
    int32_t tok[KERN_T], pos[KERN_T], row_seq[KERN_T], out_row[KERN_T];
    int32_t q0[KERN_S + 1], kv_len[KERN_S], slot[KERN_S];
};

static inline struct mc_rows kern_view(const struct kern_rows *r)
{
    return (struct mc_rows){.cap = KERN_T, .cap_seq = KERN_S, .cap_out = KERN_T,
                            .live = r->live, .tok = r->tok, .pos = r->pos,
                            .row_seq = r->row_seq, .q0 = r->q0, .kv_len = r->kv_len,
                            .slot = r->slot, .out_row = r->out_row};
}

/* n rows of a new sequence in slot from position pos; a decode row when decode is true
 * (those come first); its last row is sampled. */
static inline void kern_seq(struct kern_rows *r, int32_t slot, int32_t pos, int32_t n,
                            bool decode)
{
    int32_t s = r->live[MC_LIVE_SEQS]++, i, t = 0;

    r->slot[s] = slot;
    r->q0[s] = r->live[MC_LIVE_ROWS];
    r->kv_len[s] = pos + n;
    for (i = 0; i < n; i++) {
        t = r->live[MC_LIVE_ROWS]++;
        r->pos[t] = pos + i;
        r->row_seq[t] = s;
        r->tok[t] = -1;
    }
    r->q0[s + 1] = r->live[MC_LIVE_ROWS];
    if (decode)
        r->live[MC_LIVE_DECODE] += n;
    r->out_row[r->live[MC_LIVE_OUT]++] = t;
}

/* xorshift: tests print or fix their seed. */
static inline uint32_t kern_rand(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (uint32_t)(*seed >> 32);
}

/* About normal, variance 1. */
static inline float kern_randn(uint64_t *seed)
{
    float sum = 0;
    int i;

    for (i = 0; i < 12; i++)
        sum += (float)kern_rand(seed) * 0x1p-32f;
    return sum - 6;
}

#endif

/* record.h - what a server did, on disk: arrivals, steps, tokens, now and then a whole view.
 *
 * A file is 8 bytes "MASCREC2" and zstd frames; what they hold, put together, is a list of
 * events: struct mc_rec, then its body. A file cut short anywhere is good up to its last
 * whole frame. Little-endian; times are seconds since the recording began.
 * OWNS the file and a thread that compresses and writes. THREAD: put the engine's; the rest
 * any one. The engine only copies into a ring: when that is full (a slow disk) events are
 * lost and counted in the next; at the bound of the file's size recording ends. */
#ifndef MC_ENGINE_RECORD_H
#define MC_ENGINE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/engine/cost.h"
#include "core/mc_abi.h"

enum mc_rec_kind {
    MC_REC_HEAD = 1,
    MC_REC_ARRIVE,
    MC_REC_START,
    MC_REC_STEP,
    MC_REC_END,
    MC_REC_VIEW,
    MC_REC_FULL, /* the file has its size: nothing follows */
};

enum { MC_REC_BODY = 16 << 20, MC_REC_LANES = 8 };

struct mc_rec {
    uint32_t kind, bytes; /* of the body, a multiple of 8 */
    uint32_t lost;        /* events before this one that are not there */
    uint32_t pad_;
};

struct mc_rec_head { /* first */
    uint32_t abi, depth;
    int32_t p_tokens, p_total, tok_cap, row_cap, max_context;
    float weight[MC_REC_LANES];
    uint32_t pad_;
    char model[128];
};

struct mc_rec_arrive {
    double t, due_first, due_end;
    uint32_t seq, gen, lane, tenant, group;
    int32_t n_prompt, limit, priority;
    float slo_token;
    uint32_t n_ids; /* that follow: n_prompt, or 0 */
};

struct mc_rec_start { /* it ran for the first time */
    uint32_t seq, gen;
    int32_t n_hit, pad_;
};

struct mc_rec_step { /* followed by n_tok sequence numbers that got a token */
    double t; /* when it was published */
    struct mc_cost_step cost;
    float host_us;
    uint32_t n_tok;
};

struct mc_rec_end {
    double t;
    uint32_t seq, gen;
    int32_t n_gen, finish;
};

struct mc_rec_view { /* followed by the block */
    int32_t tok_left, row_left, page_left, pad_;
};

/* ---- writing ----------------------------------------------------------------------- */

struct mc_recorder;

struct mc_recorder_opts {
    const char *path;
    uint64_t max_bytes;
    bool tokens; /* prompts too */
};

/* The file must not be there, or be empty: a recording is not written over. */
int mc_recorder_open(const struct mc_recorder_opts *o, struct mc_recorder **out,
                     struct mc_err *err);
/* Writes out what was put. NULL is accepted. */
void mc_recorder_close(struct mc_recorder *r);
/* Copies a body of two parts (b may be NULL); NULL r does nothing. Never waits. */
void mc_recorder_put(struct mc_recorder *r, enum mc_rec_kind kind, const void *a,
                     size_t n_a, const void *b, size_t n_b);
double mc_recorder_time(const struct mc_recorder *r, double t); /* of CLOCK_MONOTONIC's */
bool mc_recorder_tokens(const struct mc_recorder *r);

/* ---- reading ----------------------------------------------------------------------- */

struct mc_rec_req {
    struct mc_rec_arrive in;
    int32_t n_hit, n_gen, finish; /* finish 0: it had not ended */
    double t_first, t_last, t_end; /* 0: never */
};

struct mc_recording {
    struct mc_rec_head head;
    struct mc_rec_req *req; /* in order of arrival */
    int32_t n_req;
    struct mc_rec_step *step;
    int32_t n_step;
    float *gap; /* seconds between tokens of a sequence, all of them */
    int32_t n_gap;
    struct mc_rec_view *view[256]; /* each with its block, checked */
    int32_t n_view;
    uint32_t lost;
    bool cut; /* the file ends in a broken frame or event, or was full */
};

/* Checks everything: MC_EFORMAT for what is no recording. */
int mc_recording_load(const char *path, struct mc_recording *out, struct mc_err *err);
/* The same from memory. */
int mc_recording_parse(const void *data, size_t n, struct mc_recording *out,
                       struct mc_err *err);
void mc_recording_free(struct mc_recording *r);

#endif

/* mc.h - mascon as a library: an engine that turns prompts of token ids into tokens.
 *
 * An engine is an instance: a model on its backend, a KV pool, a policy and one engine
 * thread; nothing is global. THREAD: submit, cancel and status from any thread; open,
 * start, stop and close from one. Everything passed to a call is copied or used only
 * during it, unless said otherwise. */
#ifndef MC_H
#define MC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"
#include "core/engine/policy.h"
#include "core/mc_abi.h"
#include "core/model/config.h"
#include "core/model/tokenizer.h"
#include "core/tensor/tensor.h"
#include "kernels/kernels.h"

struct mc_engine;

struct mc_engine_opts {
    const char *model;    /* directory or .gguf */
    const char *backend;  /* "cpu" (default) or "ref" */
    const char *cpu;      /* forces a body of the cpu backend, NULL: the best */
    int threads;          /* of the cpu backend, divided over the ranks; 0: one a core */
    int32_t ranks;        /* that share the model, 0: 1 */
    int32_t shard_tokens; /* ranks that a sequence's tokens are spread over, 0: none */
    const char *kv;       /* "auto", "f32", "bf16", "fp8" */
    uint64_t kv_bytes;    /* KV pool of a rank, 0: enough for max_seqs short contexts, see open.c */
    int64_t swap_bytes;   /* host memory of a rank for preempted pages; 0: as many as the pool
                             has, at most 4 GiB and an eighth of memory; below a page: none */
    int32_t max_context;  /* tokens, 0: the model's, cut to what the pool holds */
    int32_t max_seqs;     /* sequences running at once, 0: 64 */
    int32_t max_waiting;  /* queued requests, 0: 1024 */
    int32_t chunk;        /* tokens a step, 0: 256 */
    uint64_t tensor_bytes; /* pool of scripts' tensors, 0: 512 MiB */
    bool sync;            /* no look-ahead: publish a step before the next is planned */
    bool prefill_bf16;    /* prompt rows see their own step's keys and values in bf16 */
    int32_t mla_expand;   /* latents: chunks of so many tokens attend expanded, 0: none,
                             below 0: from where it pays */
    bool no_page_tags;
};

/* Loads everything; the engine thread does not run yet. */
int mc_engine_open(const struct mc_engine_opts *o, struct mc_engine **out,
                   struct mc_err *err);
/* Before start only. The policy must outlive the engine. */
void mc_engine_set_policy(struct mc_engine *e, const struct mc_policy *p);
/* Before start only: what happens is put into r, which must outlive the engine's run. */
struct mc_recorder;
int mc_engine_record(struct mc_engine *e, struct mc_recorder *r, struct mc_err *err);
/* Before start only: prompts are read by reader, another engine of the same model, say in
 * eight bits where e has four; see core/engine/pair.c. e starts, stops and closes it from
 * now on. MC_EARG tells what the two do not have in common, or the sum of their memory. */
int mc_engine_pair(struct mc_engine *e, struct mc_engine *reader, struct mc_err *err);
int mc_engine_start(struct mc_engine *e, struct mc_err *err);
/* Ends every sequence with MC_EDRAIN and joins the thread. */
void mc_engine_stop(struct mc_engine *e);
void mc_engine_close(struct mc_engine *e);

const struct mc_config *mc_engine_config(const struct mc_engine *e);
const struct mc_tok *mc_engine_tok(const struct mc_engine *e);
const char *mc_engine_path(const struct mc_engine *e); /* of its checkpoint */
/* The pool of scripts' tensors, on rank 0; NULL where the backend has none. */
int mc_engine_row_type(const struct mc_engine *e); /* of hidden states */
struct mc_tensors *mc_engine_tensors(struct mc_engine *e, struct mc_err *err);

/* ---- sequences --------------------------------------------------------------------- */

struct mc_handle {
    uint32_t seq, gen; /* seq 0 is never a sequence */
};

enum mc_finish {
    MC_FINISH_STOP = 1,   /* a stop id */
    MC_FINISH_LENGTH = 2, /* limit, or the context is full */
    MC_FINISH_CANCEL = 3,
    MC_FINISH_ERROR = 4,
};

struct mc_token {
    int32_t id;
    float logprob; /* natural log, raw logits; 0 unless asked for */
    int32_t n_top;
    int32_t top_id[MC_TOP];
    float top_logprob[MC_TOP];
};

struct mc_usage {
    int32_t n_prompt, n_cached, n_gen;
    double t_arrive, t_start, t_first, t_end; /* CLOCK_MONOTONIC seconds, 0: never */
};

struct mc_end {
    enum mc_finish finish;
    int32_t stop_id; /* the id that stopped it, else -1; it is not delivered as a token */
    struct mc_usage usage;
    struct mc_err err;   /* CANCEL, ERROR */
    uint32_t generation; /* policy generation that served the last step */
};

/* Where a sequence's tokens go. Called on the engine thread, in order; must not block, and
 * may be called before mc_engine_submit has returned. end is called exactly once, last. */
struct mc_sink {
    void (*token)(void *ctx, const struct mc_token *t);
    void (*end)(void *ctx, const struct mc_end *e);
    void *ctx;
    /* With prompt_logprobs: each prompt token but the first, in order, before any token. */
    void (*prompt)(void *ctx, const struct mc_token *t);
};

/* What is taken from a sequence's rows, and added to them. Layer 0 is the embeddings, layer i
 * what the i-th layer leaves in the residual stream. */
enum { MC_MAX_TAPS = 8 };
struct mc_steer { /* every row of that layer += scale * add */
    int32_t layer;
    float scale;
    struct mc_tensor add; /* [hidden] of the rows' type, computed already */
};
struct mc_capture { /* row i of `to` gets that of position i; of logits, of the i-th token */
    int32_t layer;       /* or MC_TAP_NORM: the last norm's rows, MC_TAP_LOGITS: f32 */
    struct mc_tensor to; /* [rows, hidden or vocab]; rows past the last are not taken */
};

struct mc_request {
    const int32_t *ids;
    int32_t n_ids;
    int32_t limit; /* tokens to generate at most; 0: prefill only; -1: as room allows */
    struct mc_params want;
    bool seeded;
    uint64_t seed; /* unseeded: random */
    const struct mc_bias *bias;
    int32_t n_bias;
    const int32_t *stop_ids;
    int32_t n_stop; /* besides the model's own */
    bool ignore_eos;
    int32_t n_top;  /* top logprobs a token, 0..MC_TOP; -1: none */
    bool prompt_logprobs; /* of the prompt too: no prefix is reused; needs n_top >= 0 */
    const struct mc_steer *steer; /* at most MC_MAX_TAPS; their stores are kept, no prefix */
    int32_t n_steer;              /* is reused, with captured layers neither */
    const struct mc_capture *capture;
    int32_t n_capture;
    uint32_t lane, tenant;
    int32_t priority;
    double deadline;  /* CLOCK_MONOTONIC seconds, 0: none */
    double due_first; /* the same: when the first token is wanted */
    double slo_token; /* seconds a token wanted, 0: any */
    struct mc_parcel *parcel; /* of a pair of engines, where the pages go; else NULL */
    char name[64];    /* request id for logs, seqs and cancel */
    char salt[64];    /* prefixes are shared among equal salts and tenants only */
    struct mc_handle from; /* a fork: of a sequence that lives and has the same salt and tenant,
                              the KV of the ids that both begin with is shared, its last,
                              partial page copied; a sampler's state is copied. Otherwise no
                              more than a hint: seq 0 is nobody */
    struct mc_sink sink;
};

/* Checks everything first (ids in range, room in the pool, limits) and names the field at
 * fault; after 0 the sink's end will be called. */
int mc_engine_submit(struct mc_engine *e, const struct mc_request *r,
                     struct mc_handle *out, struct mc_err *err);
/* The share of a lane, or of a tenant, against the others'; 1 until it is set. MC_EARG when
 * there is no such lane or tenant, or the weight is no number from 0.001 to 1e6. Any thread. */
int mc_engine_set_weight(struct mc_engine *e, bool tenant, uint32_t id, double weight,
                         struct mc_err *err);

/* Makes the KV pool of each rank smaller, or as large again as it was made: pages leave as
 * they become free, running sequences give way. MC_EARG names the least that works, or the
 * most. Any thread; resized waits until it is done, or so many seconds. */
int mc_engine_set_kv(struct mc_engine *e, uint64_t bytes, struct mc_err *err);
bool mc_engine_resized(struct mc_engine *e, double seconds);

/* ---- pins: prefixes whose pages stay ----------------------------------------------- */

enum { MC_MAX_PINS = 64 };
struct mc_pin_info {
    uint32_t id, tenant;
    int32_t n_page;
    double bytes, until; /* of all ranks; CLOCK_MONOTONIC seconds, 0: until it is dropped */
};
/* Tokens at the front of ids, in whole pages, that a request of that tenant and salt would
 * find now. These functions: any thread. */
int32_t mc_engine_cached(struct mc_engine *e, const int32_t *ids, int32_t n,
                         uint32_t tenant, const char *salt);
/* Keeps those pages, for so many seconds (0: until unpin). MC_ENOENT: there are none; MC_ELIMIT:
 * pins hold at most half of the pool. Short of pages the engine gives up the oldest. */
int mc_engine_pin(struct mc_engine *e, const int32_t *ids, int32_t n, uint32_t tenant,
                  const char *salt, double seconds, struct mc_pin_info *out,
                  struct mc_err *err);
int mc_engine_unpin(struct mc_engine *e, uint32_t id, struct mc_err *err);
int mc_engine_pins(struct mc_engine *e, struct mc_pin_info out[MC_MAX_PINS]); /* how many */

/* Asks for the end of a sequence: its sink gets CANCEL with this text, unless it ends
 * first. With why NULL its reader has all it wanted (a stop string) and it ends as a STOP.
 * A stale handle is not an error. */
void mc_engine_cancel(struct mc_engine *e, struct mc_handle h, const char *why);

/* Makes an idle engine take a turn, and so call the policy's step_end. Any thread. */
void mc_engine_wake(struct mc_engine *e);
/* How often the engine's loop went round: a watchdog wakes it and sees whether it moves. */
uint64_t mc_engine_turns(const struct mc_engine *e);

/* ---- looking in -------------------------------------------------------------------- */

struct mc_engine_status {
    bool running, failed;
    struct mc_err fail;  /* failed: why */
    char backend[80], kv[16];
    uint64_t weight_bytes;      /* of all ranks: what they replicate counts for each */
    uint64_t rank_weight_bytes[MC_MAX_RANKS];
    int32_t n_rank;
    int32_t n_waiting, n_running, n_paused;
    int32_t p_total, p_free, p_held, p_cached, p_pending;
    int32_t p_host, p_host_free; /* of host memory */
    double swap_bytes_us;        /* that move there in a us, as measured */
    int32_t max_context, max_seqs, kv_tokens;
    uint32_t generation;
    double steps;
};
void mc_engine_status(struct mc_engine *e, struct mc_engine_status *out);

/* A piece of the KV pool as it lies in memory: of a page a layer, or an index's keys. */
struct mc_page_piece {
    int32_t page, layer;
    bool index;   /* `layer` is an index's number */
    int32_t rank; /* whose memory is read; of sharded tokens the page's owner is */
};
struct mc_page_dump {
    const char *state, *layout; /* "free", "held", "cached", "pending"; "fp8" */
    uint32_t tag;               /* stamped when it was last taken; 0: never */
    int32_t rank, n_layer, n_index;
    uint8_t *bytes; /* malloced; what lies where: struct mc_kv in kernels/types.h */
    size_t n;
};
/* Waits for what is enqueued. MC_EARG names what is out of range. Any thread. */
int mc_engine_dump(struct mc_engine *e, const struct mc_page_piece *p,
                   struct mc_page_dump *out, struct mc_err *err);

/* ---- contexts that are kept -------------------------------------------------------- */

struct mc_held; /* whole pages of a prompt that stay, and their ids */
struct mc_who { /* who may share them, as struct mc_request has it */
    uint32_t tenant;
    const char *salt; /* shorter than 64 */
};
/* Holds the pages of the first of these ids that are there and whole; maybe none. MC_ELIMIT: a
 * quarter of the pool is held so already. Any thread, as all of these. */
int mc_engine_hold(struct mc_engine *e, const int32_t *ids, int32_t n,
                   const struct mc_who *who, struct mc_held **out, struct mc_err *err);
void mc_engine_release(struct mc_engine *e, struct mc_held *h); /* NULL is fine */
const int32_t *mc_held_ids(const struct mc_held *h, int32_t *n); /* borrowed */
uint64_t mc_held_bytes(const struct mc_engine *e, const struct mc_held *h);
/* As a file's bytes (malloced; core/engine/kv_file.h), and back: these wait for copies that
 * are put between steps. Bytes are hostile until checked: MC_EFORMAT. */
int mc_engine_pack(struct mc_engine *e, const struct mc_held *h, uint8_t **data,
                   size_t *n, struct mc_err *err);
uint64_t mc_engine_pack_most(struct mc_engine *e); /* bytes that unpack may take */
int mc_engine_unpack(struct mc_engine *e, const uint8_t *data, size_t n,
                     const struct mc_who *who, struct mc_held **out, struct mc_err *err);

/* One line a live sequence; returns how many there are, writes at most cap. */
struct mc_seq_info {
    struct mc_handle h;
    char name[64];
    enum mc_seq_state state;
    uint32_t lane, tenant;
    int32_t n_prompt, n_gen;
    double age;
};
int mc_engine_seqs(struct mc_engine *e, struct mc_seq_info *out, int cap);

/* A sequence's life: what came to it and when, the policy generation that served then, and
 * after each event for how many steps it could have run and did not, by reason. Too many
 * events: the last place holds the newest. */
enum mc_life_what {
    MC_LIFE_QUEUED = 1,    /* n prompt tokens */
    MC_LIFE_STARTED = 2,   /* n of them from the prefix cache */
    MC_LIFE_FIRST = 3,     /* the first token */
    MC_LIFE_SERVED = 4,    /* by another generation from here on; n tokens were made */
    MC_LIFE_PREEMPTED = 5, /* n tokens were made */
    MC_LIFE_RESUMED = 6,
    MC_LIFE_ENDED = 7,     /* n tokens were made */
};
enum { MC_LIFE_EVENTS = 24, MC_LIFE_REASONS = 32, MC_WHY_MAX = 48 };
struct mc_life_event {
    double t; /* CLOCK_MONOTONIC seconds */
    uint32_t generation;
    int32_t what, n;
};
struct mc_life_info {
    struct mc_handle h;
    char name[64], end[80]; /* end: how it ended; "" while it lives */
    double t_arrive;
    int32_t n_event, n_reason;
    struct mc_life_event event[MC_LIFE_EVENTS];
    struct {
        int32_t event, steps; /* index of the event that came before */
        char text[MC_WHY_MAX];
    } reason[MC_LIFE_REASONS];
};
/* Those of a request (by name) or a sequence ("3.1"), alive or among the last that ended.
 * Returns how many there are, writes at most cap. */
int mc_engine_lives(struct mc_engine *e, const char *id, struct mc_life_info *out,
                    int cap);

struct mc_lane_info {
    uint32_t id;
    float weight;
    int32_t n_wait, n_run; /* run: preempted ones too */
    double served; /* tokens, decayed over 60 s */
    double tok_in, tok_out; /* since the start */
};
/* Lanes in use or used; and what the last step took. */
int mc_engine_lanes(struct mc_engine *e, struct mc_lane_info *out, int cap);
struct mc_step_info {
    double steps, dev_us, host_us; /* on the device; planning and publishing */
    int32_t rows, tokens; /* of the step that runs now */
};
void mc_engine_step_info(struct mc_engine *e, struct mc_step_info *out);

/* Counters and histograms since start, for /metrics. Monotonic; read without a lock. */
#define MC_COUNTERS(X)                                                              \
    X(steps_total, "steps run")                                                     \
    X(prompt_tokens_total, "prompt tokens run through the model")                   \
    X(generation_tokens_total, "tokens generated")                                  \
    X(prompt_tokens_cached_total, "prompt tokens found in the prefix cache")        \
    X(weight_bytes_read_total, "weight bytes read by the steps' forward passes")    \
    X(num_preemptions_total, "sequences that gave up their pages")                  \
    X(swapped_total, "of those, their pages went to host memory")                   \
    X(dropped_total, "of those, their pages are computed again")                    \
    X(recomputed_tokens_total, "tokens run again after a preemption")               \
    X(requests_stop_total, "requests that ended at a stop")                         \
    X(requests_length_total, "requests that ended at their limit")                  \
    X(requests_cancel_total, "requests cancelled")                                  \
    X(requests_error_total, "requests that ended with an error")                    \
    X(idle_by_policy_total, "steps that a valid plan left empty while work waited") \
    X(starved_total, "sequences that a policy left waiting while others ran")       \
    X(plan_fallback_total, "plans made by the built-in policy after a failure")     \
    X(keep_fallback_total, "times that the cache hook failed and the oldest page went") \
    X(plan_trimmed_total, "plan items refused by the engine's check")               \
    X(bad_rows_total, "rows whose logits were not finite")                          \
    X(page_tag_mismatch_total, "sequences stopped because a page was not theirs")
enum mc_counter {
#define X(name, help) MC_C_##name,
    MC_COUNTERS(X)
#undef X
    MC_N_COUNTER
};
double mc_engine_counter(const struct mc_engine *e, enum mc_counter c);

/* Histogram buckets: upper bounds in seconds, the last is +Inf. */
enum { MC_N_BUCKET = 16 };
struct mc_histogram {
    double sum;
    double count[MC_N_BUCKET]; /* not cumulative */
};
extern const double mc_bucket_le[MC_N_BUCKET - 1];
#define MC_HISTOGRAMS(X)                                            \
    X(time_to_first_token_seconds, "from arrival to first token")  \
    X(inter_token_latency_seconds, "between tokens of a sequence") \
    X(e2e_request_latency_seconds, "from arrival to end")          \
    X(request_queue_time_seconds, "from arrival to first step")    \
    X(step_seconds, "one step on the device")                      \
    X(plan_seconds, "the plan hook")
enum mc_hist_id {
#define X(name, help) MC_H_##name,
    MC_HISTOGRAMS(X)
#undef X
    MC_N_HIST
};
void mc_engine_histogram(const struct mc_engine *e, enum mc_hist_id h,
                         struct mc_histogram *out);

#endif

/* mc_abi.h - plain structs shared by the engine and the step VM.
 *
 * The ffi.cdef is made from this file (cc -E -P -DMC_CDEF), so it holds only fixed-width
 * scalars and arrays of them: 64-bit integers are boxed in LuaJIT and stay out. Sizes are
 * compared at start (MC_ABI_SIZES). The engine copies one contiguous block for a hook:
 * a view, then rows, lanes, tenants and orders at the offsets that the view names, so that
 * recording a step is one write. Scripts reach it only through checked accessors; the
 * engine reads back nothing but checked plan items and the user[] numbers.
 *
 * THREAD: a block belongs to the engine thread; times are seconds on view.now's clock,
 * 0 = not yet. */
#ifndef MC_ABI_H
#define MC_ABI_H
#ifndef MC_CDEF
#include <stdint.h>
#endif

enum { MC_ABI = 2, MC_PLAN_CAP = 1024, MC_CAND_CAP = 64, MC_N_USER = 4, MC_N_STATE = 16,
       MC_KEEP_CAP = 256 };

enum mc_seq_state {
    MC_STATE_WAITING = 1,
    MC_STATE_PREFILL = 2,
    MC_STATE_DECODE = 3,
    MC_STATE_PAUSED = 4,
    MC_STATE_DONE = 5,
};

enum mc_order {
    MC_ORDER_ARRIVAL,
    MC_ORDER_DUE,
    MC_ORDER_PRIORITY,
    MC_ORDER_SHORTEST,
    MC_ORDER_YOUNGEST,
    MC_ORDER_VTIME,
    MC_ORDER_GROUP,
    MC_N_ORDER,
};

struct mc_row {
    uint32_t seq, gen; /* handle */
    uint32_t tenant, lane; /* indices */
    uint32_t group; /* rows of equal group share at least one page of prefix; 0: none */
    uint16_t state, pad0_;
    int16_t priority, n_preempt;
    int32_t p_shared; /* of the pages of n_hit, those that others hold: they cost nothing */
    double t_arrive, t_start, t_first, t_last, due_first, due_end;
    float slo_token, n_guess; /* seconds a token wanted; predicted tokens to come */
    int32_t n_prompt, n_gen, n_max, n_ctx;
    int32_t n_ahead; /* at most this many tokens are in flight */
    int32_t n_left, n_hit, n_hit_soon; /* prompt tokens to run, reusable ones not counted;
                                          reusable now; after rows now prefilling them */
    int32_t p_held, p_own, p_host, p_step; /* pages: held; freed by a preemption; in host
                                              memory; needed by the next decode step, or
                                              by a paused row to come back */
    int32_t n_draft, n_draft_max;
    float accept, us_swap, us_redo; /* us to come back: by host memory (there and back, what
                                       is queued before it too), by computing again; 0: not
                                       known yet */
    float pad2_;
    double user[MC_N_USER]; /* the policy's own; kept over reload, preemption, an abandoned VM */
};

struct mc_party { /* a lane or a tenant */
    uint32_t id;
    float weight;
    int32_t n_wait, n_run, p_held, pad_;
    double tok_in, tok_out;
    double served; /* tokens, decayed over 60 s */
    double vtime; /* tokens ever, over weight */
    double user[2];
};

/* Microseconds, least squares over the last 256 steps; 0 until there were enough. A step
 * takes what view.decode says of its decode rows, and with prompt rows what view.prefill
 * says of those on top. */
struct mc_cost {
    float us_base, us_row; /* a row of decode with its token */
    float us_tok;          /* a prompt token; 0 in decode */
    float us_ktok_kv;      /* 1,000 (token, token it attends to) pairs */
    float rel_err;         /* mean |estimate - measured| / measured, of both together */
};

struct mc_step_view {
    uint32_t abi, bytes, epoch, pad_;
    double step, now;
    int32_t n_row, n_wait_all, n_lane, n_tenant, n_order;
    int32_t tok_cap, row_cap, draft_cap;
    int32_t p_tokens; /* tokens a page */
    int32_t p_total, p_free, p_evict, p_pending;
    int32_t p_reserve; /* that running rows take until each has read its prompt or has a page of
                          tokens more: what a start and a come-back should leave */
    int32_t p_host_free;
    int32_t fly_rows, fly_tokens;
    float fly_us; /* that what is enqueued will run for, by the estimate */
    float swap_bytes_us, swap_queue_us; /* bytes that move in a us, as measured; us that
                                           moves take that are enqueued */
    float dev_us, host_us; /* of the last step: on the device; planning and publishing */
    struct mc_cost decode, prefill;
    uint32_t off_row, off_lane, off_tenant, off_order; /* bytes from the view's start;
                                    orders: [n_order][n_row] int32 indices of rows */
};

enum mc_item_what {
    MC_RUN = 1,
    MC_SWAP = 2,
    MC_DROP = 3,
    MC_BACK = 4,
    MC_HOLD = 5,
    MC_FAIL = 6,
};

struct mc_item {
    uint32_t seq, gen;
    uint16_t what, why; /* why: index into the policy's texts, 0 = none */
    int32_t n, draft;   /* RUN: tokens; FAIL: n is the error code */
};

struct mc_plan {
    uint32_t abi, epoch;
    int32_t n, cap;
    int32_t tok_left, row_left, page_left, page_soon;
    struct mc_item item[MC_PLAN_CAP];
};

/* Candidates of one sampled row, most likely first; p is after the chain. */
struct mc_cands {
    int32_t n;
    float rest, lse;
    int32_t drawn; /* the device's own token */
    int32_t id[MC_CAND_CAP];
    float p[MC_CAND_CAP], logit[MC_CAND_CAP];
};

/* Sampling as asked for by a client (want) and as decided by chain(). */
struct mc_params {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty;
    int32_t top_k, keep; /* keep: candidates for pick */
    int32_t ban[2];      /* handles of vocabulary sets (policy.h), -1 = none */
    int32_t min_tokens;
    uint32_t flags; /* MC_PARAM_... */
};

enum { MC_PARAM_PICK = 1 }; /* pick() is to be asked for each token */

/* What a sampler hook sees of a sequence; the engine keeps one for each, zeroed when the
 * sequence starts and copied by a fork. */
struct mc_pick_seq {
    uint32_t seq, gen;
    int32_t done; /* tokens generated */
    int32_t n_prompt;
    uint32_t seed_lo, seed_hi; /* of the sequence's own draws */
    uint32_t layout;           /* which declaration state[] follows; the policy's to set */
    int32_t n_tail;
    int32_t tail[32]; /* the last n_tail generated tokens, newest last */
    struct mc_params want; /* as the client asked; chain() notes it here */
    double state[MC_N_STATE]; /* declared slots, by position */
};

/* A full page of a prefix that nobody holds, as a cache hook sees it. */
struct mc_block {
    uint32_t tenant;
    int32_t depth; /* pages of its prefix before it */
    int32_t hits;  /* times that it was reused */
    int32_t pad_;
    double t_used; /* when it was last given back, on the view's clock */
    double score;  /* the hook's; what has the lowest goes first. At first t_used */
};

/* One hook call: what lua/host/step.c and lua/mc/step.lua say to each other. */
struct mc_hook_io {
    uint32_t epoch;   /* of the view that is shown, 0 = none: what is older is stale */
    uint32_t picking; /* nonzero while a sequence is shown (chain, pick) */
    uint32_t loading; /* nonzero while files and init run */
    int32_t n_random; /* numbers drawn by seq:random in this call */
    int32_t need;     /* evict: pages */
    int32_t tok_start, row_start, page_start; /* the plan's budget before the hook */
    int32_t host_left; /* pages of host memory not yet taken by swaps */
    int32_t answer;    /* pick: an id or -1; admit: 0 or a negative code */
    int32_t n_vocab, n_listed; /* length of the list just made */
    int32_t n_block; /* keep: blocks shown, 0 = none */
    double now;
    double state[MC_N_STATE]; /* the scheduler's declared slots */
};

enum mc_list { MC_LIST_RUNNING, MC_LIST_READY, MC_LIST_PAUSED };

/* A lane or a tenant as it changes while the plan grants. */
struct mc_hook_lane {
    double served;
    int32_t ready, running;
    int32_t head; /* place in the order of arrival before which nothing is ready */
    int32_t pad_;
};

#ifndef MC_CDEF
/* name, and its size as the C compiler sees it: compared with ffi.sizeof at start. */
#define MC_ABI_SIZES(X) \
    X(mc_row) X(mc_party) X(mc_cost) X(mc_step_view) X(mc_item) X(mc_plan) X(mc_cands) \
    X(mc_pick_seq) X(mc_params) X(mc_hook_io) X(mc_hook_lane) \
    X(mc_block)
#endif
#endif

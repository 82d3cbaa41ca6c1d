/* engine_int.h - the engine's insides, shared by the files of core/engine only.
 *
 *   open.c     opening and closing
 *   engine.c   the thread and its loop, its status
 *   submit.c   requests and cancels on their way in
 *   seq.c      a sequence's life: admission, ends, pages and slot given back
 *   prefix.c   what of a context is in pages already: the cache, a fork's parent
 *   pin.c      prefixes that stay
 *   resize.c   a pool made smaller while it serves
 *   pair.c     an engine that reads prompts for another
 *   swap.c     pages that move with a step: to host memory and back, copies for forks
 *   view.c     the block that a policy sees
 *   plan.c     a plan checked, trimmed and turned into rows
 *   step.c     device memory, staging, enqueueing a step
 *   publish.c  what came back: tokens, stops, prefix pages
 *   sets.c     vocabulary sets that samplers ban, on the device
 *   tap.c      what is taken from a sequence's rows, and added to them
 *   hold.c     contexts that are kept, saved and read back; kv_file.c  their form
 *   trace.c    how long steps take, and what a recorder is told
 *   cost.c     what a step takes, fitted; record.c, record_read.c  recordings;
 *   sim.c, sim_fit.c, sim_shipped.c  the scheduler on a recording, or on arrivals made up
 *              (these know no engine); policy.c  the built-in one
 *   kv.c       the pages: who holds which, the prefix table
 *   dump.c     a page as it lies in memory
 *   keep.c     which cached pages go first
 *   stats.c    counters, histograms, what lanes and tenants were served
 *   life.c     what came to each sequence and why it waited; look.c shows it
 *
 * Rules
 *  1. The engine thread owns everything here except `inbox` (its lock), counters
 *     (atomics) and what `look` guards for status and seqs.
 *  2. Lock order: look, then inbox; of a pair of engines the reader's first. Neither is held
 *     while waiting for the device; sinks are called with look held, never with inbox.
 *  3. A step's staging is reused only after that step was published.
 *  4. In state DECODE: n_ctx == n_ids + n_fly - 1. Pages cover n_ctx; while PAUSED there are
 *     none, and n_ctx tokens are in n_place pages of host memory (dropped: 0).
 *  5. Every way out of a sequence goes through mc_seq_end and mc_seq_release. */
#ifndef MC_ENGINE_INT_H
#define MC_ENGINE_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/engine/cost.h"
#include "core/engine/kv.h"
#include "core/engine/record.h"
#include "core/mc.h"
#include "core/model/crew.h"
#include "core/tensor/tensor.h"

enum { MC_STEP_TAPS = 256 }; /* entries of a step: those of 16 sequences at least */
enum { MC_N_LANE = 8, MC_N_TENANT = 64, MC_MAX_STOP_IDS = 64, MC_N_PAST = 256, MC_N_TEXT = 64 };

enum { MC_NOTE_DONE = UINT16_MAX }; /* a plan did something else with it than to run it */

/* What came to a sequence; after each event, for how many steps it could have run and did
 * not. A text is an index into life_text. */
struct mc_life {
    int32_t n_event, n_reason;
    struct mc_life_event event[MC_LIFE_EVENTS];
    struct {
        uint16_t event, text;
        int32_t steps;
    } reason[MC_LIFE_REASONS];
};

struct mc_past { /* one that ended */
    struct mc_handle h;
    char name[64], end[80];
    double t_arrive;
    struct mc_life life;
};

struct mc_seq {
    uint32_t id, gen;       /* handle; id is the index + 1 */
    enum mc_seq_state state;
    struct mc_seq *next;    /* inbox, away, free list */
    char name[64];
    struct mc_sink sink;

    /* asked for */
    int32_t n_prompt, limit, n_top, n_bias, n_stop, priority;
    uint32_t lane, tenant;
    bool ignore_eos, prompt_logprobs;
    uint64_t seed;
    double deadline, due_first, slo_token;
    struct mc_params want, params;
    struct mc_bias *bias;
    int32_t stop[MC_MAX_STOP_IDS];
    struct mc_pick_seq pick;
    struct mc_seq_taps *taps; /* capture and steer, or NULL */

    /* context: prompt, then tokens as they are published */
    int32_t *ids, n_ids, cap_ids;
    struct mc_hash *chain;  /* [n_chain] of the full pages of ids so far */
    int32_t n_chain, cap_chain;
    struct mc_hash root;
    struct mc_handle from;  /* forked from, and tokens at the front that are the same */
    int32_t n_from;

    /* run */
    int32_t slot;           /* -1: none */
    bool fresh;             /* the slot's device state is not set yet */
    int32_t *page, n_page;  /* [pitch] */
    int32_t shard; /* with no page: where its first must be, -1: anywhere */
    int32_t *place, n_place; /* [pitch] its pages in host memory */
    struct mc_parcel *sends, *lands; /* pages that go to, come from another engine */
    int32_t n_shared_seen;  /* pages already offered for sharing */
    int32_t n_ctx, n_pub;   /* tokens whose KV is enqueued; published */
    int32_t n_most;         /* the most that n_ctx was */
    uint64_t added_in;      /* plan whose step last ran it, and tokens of it there */
    int32_t n_added;
    int32_t n_fly, n_gen, n_cached, n_preempt;
    int32_t n_told; /* prompt tokens whose logprobs are enqueued or delivered */
    int32_t override_tok;   /* a pick to put into the slot, or -1 */
    double t_last;
    struct mc_usage usage;
    double user[MC_N_USER];
    uint64_t planned;       /* plan that last named it */
    double t_served;        /* when it ran last, or came */
    uint64_t served;        /* the step in which it did */
    int32_t n_passed;       /* started before it, though they came later */
    struct mc_life life;
    uint16_t note;          /* of the plan that last named it: why it holds it */
    bool starved;           /* told of */
};

/* A sequence's part of an enqueued step. */
struct mc_step_row {
    uint32_t seq, gen;
    int32_t n_ctx;      /* the sequence's context after the step */
    int32_t out, n_out; /* its rows among those with logits */
    bool sampled;       /* the last of them gave a token; the others are the prompt's */
};

/* Page moves of a step: staging, but for places. */
struct mc_moves {
    uint32_t (*init)[2];  /* [n_in] pages that come back, with their tags */
    int32_t *n_in, *in_page, *in_place;
    int32_t n_out, *out_page, *out_place;
    int32_t n_copy, *from, *to; /* within the pool */
};

/* Host memory for preempted pages. */
struct mc_swap {
    int32_t n;                   /* places */
    int32_t *free, n_free[MC_MAX_RANKS]; /* a stack of empty ones for each shard */
    uint8_t *pool[MC_MAX_RANKS]; /* [n / shards] pages */
    int64_t page_bytes;          /* of all ranks */
    float bytes_us;              /* measured */
};

struct mc_pin {
    struct mc_pin_info info;
    int32_t *page; /* [info.n_page] */
};

struct mc_step {
    uint64_t ticket, plan; /* plan: its number among plans */
    int32_t n_row, n_out, n_tok, n_decode;
    double t_enqueue;
    struct mc_cost_step cost;
    struct mc_step_row *row; /* [slots] */
    /* staging, host memory that the device reads */
    void *rows_base;
    struct mc_rows rows;
    struct mc_delta *delta;
    int32_t n_delta;
    struct mc_slot *slots_in;
    int32_t n_slots_in;
    uint32_t (*init)[2]; /* pages to clear */
    int32_t *n_init, max_init;
    struct mc_out *ring; /* rank 0's results */
    struct mc_moves moves;
    struct mc_taps *taps; /* n 0 in most steps */
    struct mc_parcel **sent, **landed; /* [n_slot] filled behind it, copied in before it */
    int32_t n_sent, n_landed;
};

struct mc_party_state { /* a lane or a tenant */
    float weight;
    double tok_in, tok_out, served, t_served;
    double t_ran; /* when a sequence of it ran last */
    double user[2];
};

struct mc_engine {
    struct mc_engine_opts o;
    struct mc_tok *tok;
    struct mc_ranks ranks;
    struct mc_crew crew;
    const struct mc_model *model; /* rank 0's: config, vocabulary */
    struct mc_mem mem;            /* staging */
    struct mc_pool_size pool;     /* of each rank */
    struct mc_pass_caps caps;
    double t_met;                 /* when the ranks last did a step */
    struct mc_tensors *tensors;   /* of scripts; NULL: the backend has none */
    struct mc_pages *kv;
    uint32_t keep_generation; /* whose scores kv has */
    struct mc_engine *reader;     /* of prompts, or NULL */
    struct mc_swap swap;
    struct mc_pin pin[MC_MAX_PINS]; /* the oldest first */
    int n_pin;
    uint32_t pin_id;
    int32_t n_kept; /* pages that contexts hold (hold.c); guarded by look */
    atomic_int p_goal; /* pages that the pool shall have */
    int32_t pitch, max_delta, max_init;
    struct mc_policy policy;

    struct mc_seq *seqs; /* [n_seqs] */
    int32_t n_seqs, n_slot;
    int32_t *live, n_live; /* indices of sequences in the engine, in arrival order */
    uint32_t *live_gen;    /* [n_seqs] generation of each that is live, else 0 */
    int32_t *slot_free, n_slot_free;
    struct mc_step step[MC_DEPTH];
    uint64_t n_plan, n_step, n_published; /* plans made; steps enqueued, published */
    bool planning;
    int depth;
    struct mc_party_state lane[MC_N_LANE], tenant[MC_N_TENANT];
    struct mc_step_view *view; /* the block */
    struct mc_plan plan;
    uint32_t epoch;
    struct mc_cost_window cost;
    double t_done, t_host; /* the last step was done; planning and publishing began */
    float dev_us, host_us; /* of the last step */
    struct mc_recorder *rec; /* or NULL; not the engine's */
    uint32_t *rec_tok;       /* [n_slot] who got a token, being gathered */
    double t_rec_view;       /* when a view was recorded last */
    double t_alarm;          /* when starvation was looked for last */
    struct mc_seq_taps *taps_gone; /* of sequences that ended */
    int32_t set_handle[MC_MAX_SETS]; /* vocabulary set in each place of dev.masks, -1 */
    char life_text[MC_N_TEXT][MC_WHY_MAX]; /* reasons, each once; [0, n_life_text) stay */
    int32_t n_life_text;
    uint32_t text_generation;       /* for which text_of holds */
    uint8_t text_of[256];           /* a policy's why index -> life_text; 0: not known */
    struct mc_past *past;           /* [MC_N_PAST], a ring */
    uint32_t n_past;

    pthread_mutex_t look;  /* live sequences, for status and seqs */
    pthread_mutex_t inbox;
    pthread_cond_t bell;
    struct mc_seq *inbox_first, *inbox_last, *seq_free;
    struct mc_seq *away;          /* whose prompts the reader has */
    struct mc_cancel *cancels;
    int32_t n_queued; /* submitted, not yet run: guarded by inbox */
    bool stopping, started, woken;
    pthread_t thread;
    atomic_int failed; /* error code */
    _Atomic uint64_t n_turn; /* of the loop: what a watchdog looks at */
    struct mc_err fail;

    _Atomic double counter[MC_N_COUNTER];
    struct mc_hist_atomic {
        _Atomic double sum, count[MC_N_BUCKET];
    } hist[MC_N_HIST];
};

struct mc_seq_taps {
    struct mc_seq_taps *next; /* of those that end */
    uint64_t ticket;          /* steps up to it may still name the tensors */
    int32_t n_steer, n_capture;
    bool hidden; /* prompt rows are wanted */
    struct mc_steer steer[MC_MAX_TAPS];
    struct mc_capture capture[MC_MAX_TAPS];
};

struct mc_cancel {
    struct mc_cancel *next;
    struct mc_handle h;
    char why[120];
};

/* stats.c: single writer, many readers */
void mc_party_decay(struct mc_party_state *s, double now);
void mc_party_serve(struct mc_party_state *s, double now, double in, double out);
void mc_count(struct mc_engine *e, enum mc_counter c, double n);
void mc_observe(struct mc_engine *e, enum mc_hist_id h, double seconds);

/* seq.c */
struct mc_seq *mc_seq_get(struct mc_engine *e, struct mc_handle h); /* NULL when stale */
/* Fills an unused record; everything is checked, copies are made. */
int mc_seq_fill(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                struct mc_err *err);
void mc_seq_unfill(struct mc_seq *q); /* a filled record that never got in */
int mc_seq_append(struct mc_seq *q, int32_t id); /* 0 or MC_ENOMEM */
void mc_seq_drop_pages(struct mc_engine *e, struct mc_seq *q);
/* Delivers the end and gives back pages, slot and record. */
void mc_seq_end(struct mc_engine *e, struct mc_seq *q, enum mc_finish how,
                int32_t stop_id, const struct mc_err *err);
/* May it be planned in this step? */
bool mc_seq_can_run(const struct mc_engine *e, const struct mc_seq *q);
int32_t mc_seq_room(const struct mc_engine *e, const struct mc_seq *q);
/* Tokens that a sequence may hold, as large as the pool is to be now. */
int32_t mc_seq_context(const struct mc_engine *e);
/* To be called before a page is taken out of the cache: scores what has no score yet. */
void mc_keep_scores(struct mc_engine *e);
/* Takes a page for q, as mc_kv_take; nothing is scored when one is free. */
int32_t mc_keep_take(struct mc_engine *e, int32_t shard, const struct mc_seq *q,
                     uint32_t *tag);

/* Where the hash chain of a tenant's prefixes begins; salt: at most 63 bytes count. */
struct mc_hash mc_seq_root(uint32_t tenant, const char *salt);

/* prefix.c */
struct mc_found {
    int32_t n;      /* tokens, */
    int32_t n_page; /* in so many whole pages; the rest in one that would be copied */
    int32_t n_held; /* of n_page: those that somebody holds, so that they cost nothing */
    int32_t held_on[MC_MAX_RANKS]; /* the same by shard */
};
/* What a sequence without pages would find now. */
struct mc_found mc_prefix_look(struct mc_engine *e, struct mc_seq *q);
/* The same taken: its context begins there. s NULL: whole pages only. */
void mc_prefix_take(struct mc_engine *e, struct mc_step *s, struct mc_seq *q);
/* Tokens that it would find once who prefills now is through; now: what it finds now. */
int32_t mc_prefix_soon(struct mc_engine *e, const struct mc_seq *q, int32_t now);
void mc_prefix_share(struct mc_engine *e, struct mc_seq *q);

/* open.c: bytes of weights, pages and what is kept of them. */
double mc_engine_bytes(const struct mc_engine *e);

/* engine.c: ends what comes to an engine that has failed. Any thread without its locks. */
void mc_engine_bury(struct mc_engine *e);

/* submit.c: with inbox held. */
void mc_inbox_add(struct mc_engine *e, struct mc_seq *q);

/* pair.c */
struct mc_parcel *mc_parcel_of(const struct mc_request *r); /* a reference, or NULL */
void mc_parcel_unref(struct mc_parcel *p);
int32_t mc_parcel_tokens(const struct mc_parcel *p);
bool mc_pair_takes(const struct mc_engine *e, const struct mc_request *r);
int mc_pair_send(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                 struct mc_err *err);
void mc_pair_cancel(struct mc_engine *e, const struct mc_cancel *c); /* one that is away */
/* Whether its prompt could not be read: then it has ended. */
bool mc_pair_failed(struct mc_engine *e, struct mc_seq *q);
void mc_pair_sends(struct mc_step *s, struct mc_seq *q); /* its prompt ends in this step */
/* Its pages arrive with this step; false when there is no room. */
bool mc_pair_land(struct mc_engine *e, struct mc_step *s, struct mc_seq *q);
int mc_pair_put(struct mc_engine *e, int32_t rank, const struct mc_step *s, bool out);
void mc_pair_passed(struct mc_step *s);

/* swap.c */
int32_t mc_swap_places(const struct mc_engine *e, int64_t page_bytes); /* of a rank's page */
int mc_swap_open(struct mc_engine *e, struct mc_err *err);
int32_t mc_swap_n_free(const struct mc_engine *e); /* empty places */
/* Of those, what the blocks of any sequence may take: whole rounds of the shards. */
int32_t mc_swap_ready(const struct mc_engine *e);
void mc_swap_close(struct mc_engine *e);
/* Moves its pages to host memory with step s, or back. False when there is no room. */
bool mc_swap_out(struct mc_engine *e, struct mc_step *s, struct mc_seq *q);
bool mc_swap_in(struct mc_engine *e, struct mc_step *s, struct mc_seq *q);
void mc_swap_forget(struct mc_engine *e, struct mc_seq *q);
/* Its next page: a fresh one with the contents of `page`. */
bool mc_moves_copy(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t page);
bool mc_moves_any(const struct mc_moves *m);
double mc_moves_bytes(const struct mc_engine *e, const struct mc_moves *m);
void mc_moves_reset(struct mc_moves *m);
int mc_moves_put(struct mc_engine *e, int32_t rank, const struct mc_moves *m);

/* pin.c, with look held */
void mc_pins_turn(struct mc_engine *e); /* those whose time is over go */
bool mc_pins_yield(struct mc_engine *e); /* the oldest goes, if there is one */
void mc_pins_close(struct mc_engine *e);

/* resize.c */
int32_t mc_resize_over(const struct mc_engine *e); /* pages still to go */
void mc_resize_turn(struct mc_engine *e);

/* view.c */
size_t mc_view_cap(const struct mc_engine *e);
void mc_view_build(struct mc_engine *e);
void mc_view_read_back(struct mc_engine *e); /* user[] numbers */

/* plan.c: asks the policy, checks, fills the next step; 1: there is something to run */
int mc_plan_next(struct mc_engine *e);

/* step.c */
int mc_step_open(struct mc_engine *e, struct mc_err *err);
void mc_step_begin(struct mc_engine *e, struct mc_step *s);
/* One sequence's rows: n tokens from n_ctx on; pages and slot are there already. */
void mc_step_add(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t n);
bool mc_step_room(const struct mc_engine *e, const struct mc_step *s,
                  const struct mc_seq *q);
int mc_step_grow(struct mc_engine *e, struct mc_step *s, struct mc_seq *q, int32_t n_ctx);
int mc_step_enqueue(struct mc_engine *e, struct mc_step *s);

/* sets.c: the place of a policy's vocabulary set in device memory, or -1 */
int32_t mc_set_place(struct mc_engine *e, int32_t handle);

/* tap.c */
/* Checks and copies; q->taps is NULL when r has none. */
int mc_tap_fill(struct mc_engine *e, struct mc_seq *q, const struct mc_request *r,
                struct mc_err *err);
bool mc_tap_room(const struct mc_engine *e, const struct mc_step *s);
/* The entries of a sequence with taps, whose n rows were just added from `at` on. */
void mc_tap_add(struct mc_step *s, const struct mc_seq *q, int32_t at, int32_t n);
void mc_tap_end(struct mc_engine *e, struct mc_seq *q);
void mc_tap_drop(struct mc_seq_taps *t); /* NULL is fine */
void mc_tap_settle(struct mc_engine *e, uint64_t done); /* tickets up to done have passed */
/* KV of what is steered is no one else's; and a prefix that is reused has no rows to take. */
static inline bool mc_tap_alone(const struct mc_seq *q)
{
    return q->taps && q->taps->n_steer > 0;
}
static inline bool mc_tap_reruns(const struct mc_seq *q)
{
    return q->taps && (q->taps->n_steer > 0 || q->taps->hidden);
}

/* trace.c: how long steps take; what is recorded (only with rec) */
void mc_trace_time(struct mc_engine *e, struct mc_step *s, double t_wait);
float mc_trace_fly(const struct mc_engine *e, double now); /* us that enqueued steps run on */
float mc_trace_queue(const struct mc_engine *e); /* of those, moving pages */
void mc_trace_arrive(struct mc_engine *e, struct mc_seq *q);
void mc_trace_start(struct mc_engine *e, const struct mc_seq *q);
void mc_trace_view(struct mc_engine *e);
void mc_trace_step(struct mc_engine *e, const struct mc_step *s);
void mc_trace_end(struct mc_engine *e, const struct mc_seq *q, const struct mc_end *end);

/* life.c: with look held */
int mc_life_open(struct mc_engine *e, struct mc_err *err);
void mc_life_note(struct mc_engine *e, struct mc_seq *q, enum mc_life_what what, int32_t n);
/* After a plan was applied: why each row that could run did not. */
void mc_life_step(struct mc_engine *e, const struct mc_step *s);
void mc_life_end(struct mc_engine *e, const struct mc_seq *q, const struct mc_end *end);

/* look.c: the engine's part of a crash report */
void mc_look_crash(void *engine);

/* publish.c */
void mc_publish(struct mc_engine *e, struct mc_step *s);

#endif

/* gen.h - one generating sequence as text: engine tokens in, UTF-8 pieces out.
 *
 * Sits between the engine's sink and whoever reads: the pump (HTTP streams), a Lua
 * coroutine (seq:next, seq:wait), chat and the REPL. It keeps bytes until they are whole
 * UTF-8, holds back what might begin a stop string, cuts at the earliest stop string and
 * cancels the sequence there.
 * OWNS its queue of pieces; created and closed by its reader; the engine thread only
 * appends. A reader that closes early cancels the sequence; memory goes when both sides
 * are done. */
#ifndef MC_SERVE_GEN_H
#define MC_SERVE_GEN_H

#include "core/mc.h"

struct mc_gen;

struct mc_gen_opts {
    struct mc_request req;   /* sink is filled in by mc_gen_open */
    const char *const *stop; /* stop strings */
    const size_t *stop_len;
    int32_t n_stop;          /* at most 16, of 1..256 bytes: MC_EARG otherwise */
    bool keep_special;       /* control tokens appear in the text */
};

/* A piece is one token's contribution; text may be empty (held back) or hold what earlier
 * tokens held back. Valid UTF-8, not NUL-terminated; borrowed until the next take or
 * close. Text and tokens do not depend on when they are taken. */
struct mc_piece {
    struct mc_token token;
    bool prompt; /* with prompt_logprobs: of the prompt, before any other; no text */
    const char *text;
    size_t n;
};

/* What is wanted when a client asks for nothing: the model's own sampling
 * (generation_config.json, a GGUF's general.sampling.*), else OpenAI's defaults. */
void mc_params_default(const struct mc_config *c, struct mc_params *p);
/* How long a chat answer may be when nobody says: `set` (--max-tokens-default; 0: -1, as
 * room allows) unless negative; else the model's max_new_tokens; else an eighth of the
 * context. What is left of it, as large models are served, a small one may fill with
 * babble. */
int32_t mc_limit_default(struct mc_engine *e, int64_t set);

/* Submits. on_ready (may be NULL) is called from the engine thread, before this returns
 * at the earliest, whenever the queue goes from empty to not empty, and at the end: it
 * must only ring a bell. mc_gen_close waits for one that runs, so nobody closes a gen
 * while holding a lock that the bell takes. */
int mc_gen_open(struct mc_engine *e, const struct mc_gen_opts *o,
                void (*on_ready)(void *), void *ctx, struct mc_gen **out,
                struct mc_err *err);
struct mc_handle mc_gen_handle(const struct mc_gen *g);

/* 1: *out is the next piece. 0: nothing yet. 2: ended, all taken; *end tells how,
 * borrowed until close. After a stop string (the first to be complete) the finish is
 * MC_FINISH_STOP, n_gen counts up to the token that completed it, and nothing after the
 * cut is delivered. Held text that turns out to be no stop arrives with the last piece;
 * bytes that never became UTF-8 become U+FFFD, a character cut off at the end one. */
int mc_gen_take(struct mc_gen *g, struct mc_piece *out, const struct mc_end **end);
/* The same, waiting up to timeout_s (negative: forever). */
int mc_gen_wait(struct mc_gen *g, double timeout_s, struct mc_piece *out,
                const struct mc_end **end);
void mc_gen_cancel(struct mc_gen *g, const char *why);
void mc_gen_close(struct mc_gen *g);

#endif

/* pump.h - C streams: a generation's pieces as a dialect's HTTP stream or whole answer.
 *
 * Ordinary streams never wake Lua: the pump takes pieces, formats the dialect's chunks
 * (OpenAI completions and chat) and writes them to the response. It survives the loss of
 * the edge VM that started it. OWNS the gens and the response that it was given, until
 * both are finished; calls `done` once at the end. One pump thread. */
#ifndef MC_SERVE_PUMP_H
#define MC_SERVE_PUMP_H

#include "core/serve/gen.h"
#include "core/serve/http.h"

struct mc_pump;
struct mc_pump_job;

enum mc_dialect { MC_DIALECT_COMPLETION, MC_DIALECT_CHAT };

enum { MC_PUMP_MAX_CHOICES = 128 };

struct mc_pump_prompt {
    const int32_t
        *ids; /* shown when token_ids; the count is needed for continuous usage */
    int32_t n_ids;
    const char *echo; /* completions: text put before the first piece, or NULL */
    size_t n_echo;
};

struct mc_pump_opts {
    enum mc_dialect dialect;
    bool stream; /* SSE, else one JSON object at the end; the status line waits for the
                    first token, so that what fails before it has its own status */
    bool include_usage;    /* stream_options.include_usage */
    bool continuous_usage; /* usage in every chunk */
    bool token_ids;        /* return_token_ids */
    int32_t n_logprobs;    /* top logprobs a token; -1: no logprobs at all */
    bool prompt_logprobs; /* completions with echo: the prompts' too; their ids are needed
                           */
    double ping_s;         /* silence in a stream before a comment line, 0: 15 */
    const char *model;     /* echoed */
    const char *id;        /* "cmpl-..." */
    /* Choices are dealt evenly: with 2 prompts and 6 gens, 0..2 are the first prompt's.
     */
    const struct mc_pump_prompt *prompts;
    int32_t n_prompts; /* at least 1 */
};

int mc_pump_open(const struct mc_tok *tok, struct mc_pump **out, struct mc_err *err);
/* Jobs that still run end with MC_EDRAIN. Before the engine and the HTTP server close. */
void mc_pump_close(struct mc_pump *p);

/* The bell for mc_gen_open's on_ready: make a job, pass mc_pump_ring and the job as ctx,
 * then start it with its gens. A job that never starts is dropped, after its gens were
 * closed. Everything in opts is copied; NULL: out of memory. */
struct mc_pump_job *mc_pump_job(struct mc_pump *p, struct mc_req *r,
                                const struct mc_pump_opts *o);
void mc_pump_ring(void *job);
/* Takes the n gens (1..MC_PUMP_MAX_CHOICES, a multiple of n_prompts) and answers r.
 * done(ctx) is called on the pump thread when the response is complete or the client is
 * gone; the pump does not touch r afterwards, and its owner calls mc_req_done. */
void mc_pump_start(struct mc_pump_job *job, struct mc_gen **gens, int n,
                   void (*done)(void *ctx), void *ctx);
void mc_pump_drop(struct mc_pump_job *job);
/* The client of this request is gone (mc_req_is_gone says so): the pump thread cancels
 * its gens at once, done follows. Any thread; does nothing when no job answers r. */
void mc_pump_gone(struct mc_pump *p, struct mc_req *r);

#endif

/* pump.h - C streams: a generation's pieces as a dialect's HTTP stream or whole answer.
 *
 * Ordinary streams never wake Lua: the pump takes pieces, formats the dialect's chunks
 * (OpenAI completions and chat) and writes them to the response. It survives the loss of
 * the edge VM that started it. OWNS the gens and the response that it was given, until both
 * are finished; calls `done` once at the end. One pump thread. */
#ifndef MC_SERVE_PUMP_H
#define MC_SERVE_PUMP_H

#include "core/serve/gen.h"
#include "core/serve/http.h"

struct mc_pump;
struct mc_pump_job;

enum mc_dialect { MC_DIALECT_COMPLETION, MC_DIALECT_CHAT };

enum { MC_PUMP_MAX_CHOICES = 16 };

struct mc_pump_opts {
    enum mc_dialect dialect;
    bool stream;               /* SSE, else one JSON object at the end */
    bool include_usage;        /* stream_options.include_usage */
    bool continuous_usage;     /* usage in every chunk */
    bool token_ids;            /* return_token_ids */
    int32_t n_logprobs;        /* -1: none */
    const char *model;         /* echoed */
    const char *id;            /* "cmpl-..." */
    const char *echo;          /* completions: text put before the first piece, or NULL */
    const int32_t *prompt_ids; /* for token_ids */
    int32_t n_prompt_ids;
};

int mc_pump_open(const struct mc_tok *tok, struct mc_pump **out, struct mc_err *err);
void mc_pump_close(struct mc_pump *p);

/* The bell for mc_gen_open's on_ready: make a job, pass mc_pump_ring and the job as ctx,
 * then start it with its gens. A job that never starts is dropped. */
struct mc_pump_job *mc_pump_job(struct mc_pump *p, struct mc_req *r,
                                const struct mc_pump_opts *o);
void mc_pump_ring(void *job);
/* Takes the gens (n choices) and the request; done(ctx) is called when the response is
 * complete or the client is gone. */
void mc_pump_start(struct mc_pump_job *job, struct mc_gen **gens, int n,
                   void (*done)(void *ctx), void *ctx);
void mc_pump_drop(struct mc_pump_job *job);
/* The client of this request is gone: cancel its gens. */
void mc_pump_gone(struct mc_pump *p, struct mc_req *r);

#endif

/* dialect.h - a generation's pieces as OpenAI's JSON: completions and chat, both streamed
 * and whole.
 *
 * Pure formatting: gathers pieces a choice at a time and appends events or one object to
 * a buffer. OWNS what it gathered and a copy of the options. THREAD: one at a time (the
 * pump's). */
#ifndef MC_SERVE_DIALECT_H
#define MC_SERVE_DIALECT_H

#include "core/serve/json_out.h"
#include "core/serve/pump.h"

struct mc_choice {
    bool begun;         /* its first chunk was written */
    bool ended;
    int32_t n_gen;
    uint64_t n_chars;   /* code points up to here, for text_offset */
    struct mc_usage usage; /* once ended */
    const char *reason;
    /* Gathered and not yet written; all but text are JSON, elements with their commas. */
    struct mc_buf text, ids;
    struct mc_buf token, logprob, top, offset; /* chat: whole entries in `token` alone */
};

struct mc_answer {
    const struct mc_tok *tok;
    struct mc_pump_opts o; /* its pointers are ours */
    long long created;
    struct mc_buf head;    /* {"id":...,"model":..., */
    struct mc_choice *choice;
    int n;
};

/* n choices, a multiple of o->n_prompts. MC_ENOMEM or 0; mc_answer_fini is legal after
 * both. */
int mc_answer_init(struct mc_answer *a, const struct mc_tok *tok,
                   const struct mc_pump_opts *o);
int mc_answer_choices(struct mc_answer *a, int n);
void mc_answer_fini(struct mc_answer *a);

/* Choice i goes on; appends a chunk when streaming and there is something to show. */
void mc_answer_piece(struct mc_answer *a, int i, const struct mc_piece *p,
                     struct mc_buf *out);
/* It ended as STOP or LENGTH. */
void mc_answer_end(struct mc_answer *a, int i, const struct mc_end *e,
                   struct mc_buf *out);
/* All ended: the last events, or the whole object. */
void mc_answer_tail(struct mc_answer *a, struct mc_buf *out);
/* An error after the stream began: its event and the stream's end. */
void mc_answer_error(const struct mc_err *e, struct mc_buf *out);

#endif

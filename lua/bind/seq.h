/* seq.h - a generating sequence as Lua holds it.
 *
 * OWNS its mc_gen, until a stream takes that over. THREAD: the loop's; the engine thread
 * only rings. See lua/host/task.h for who frees a handle. */
#ifndef MC_BIND_SEQ_H
#define MC_BIND_SEQ_H

#include <stdatomic.h>

#include <lua.h>

#include "core/serve/gen.h"
#include "core/serve/server.h"
#include "lua/host/task.h"

struct mc_lseq {
    struct mc_owned own;
    struct mc_gen *gen;                /* NULL: closed, or a stream's */
    _Atomic(struct mc_pump_job *) job; /* set: the gen's bell rings this job */
    struct mc_bell bell;
    const struct mc_served *model;
    struct mc_handle handle;
    int32_t n_prompt, n_ids, cap_ids;
    int32_t *ids;                      /* prompt, then the tokens taken */
    char *text;                        /* all text taken */
    size_t n_text, cap_text;
    double sum_logprob;
    bool ended, streams, freed;        /* freed: when the stream ends */
    struct mc_end end;                 /* when ended */
};

/* Functions open take result cancel detach state; for lua/mc/seq.lua. */
void mc_bind_seq(lua_State *L);
/* The sequence at idx; raises for anything else. */
struct mc_lseq *mc_seq_check(lua_State *L, int idx);
/* The stream that took its gen is over. */
void mc_seq_streamed(struct mc_lseq *q);

#endif

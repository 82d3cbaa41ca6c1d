/* tokpool.h - a few threads that turn text into token ids.
 *
 * A prompt of a megabyte takes tens of milliseconds: too long for a thread that serves
 * others. OWNS its threads and the jobs in its queue. THREAD: any. */
#ifndef MC_SERVE_TOKPOOL_H
#define MC_SERVE_TOKPOOL_H

#include "core/model/tokenizer.h"

struct mc_tokpool;
struct mc_tokjob;

enum { MC_TOKPOOL_QUEUE = 4096 }; /* jobs waiting; more is MC_EAGAIN */

/* A stretch of the text: chat templates mix text that may hold control tokens with text
 * from users that may not. */
struct mc_tokpart {
    const char *text;
    size_t n;
    bool special;
};

int mc_tokpool_open(const struct mc_tok *tok, int threads, struct mc_tokpool **out,
                    struct mc_err *err);
/* From here on a text that must have more than `tokens` of them, by its bytes alone, is
 * refused unread: it would keep the threads from prompts that can be served. Called
 * before the first encode. */
void mc_tokpool_limit(struct mc_tokpool *p, int32_t tokens);
/* Jobs in the queue end with MC_EDRAIN. */
void mc_tokpool_close(struct mc_tokpool *p);

/* Copies the parts; together they are one text (MC_ECTX: over the limit). flags:
 * MC_TOK_BOS, for a single part only. done(ctx) is called on a pool thread, once, unless
 * the job was dropped before: it must only ring a bell. */
int mc_tokpool_encode(struct mc_tokpool *p, const struct mc_tokpart *parts, int n,
                      unsigned flags, void (*done)(void *ctx), void *ctx,
                      struct mc_tokjob **out, struct mc_err *err);
/* 0: not yet; 1: *ids are the job's, borrowed until it is dropped; negative: it failed.
 */
int mc_tokjob_take(struct mc_tokjob *j, const struct mc_ids **ids, struct mc_err *err);
/* Waits for a done() that runs; none is called afterwards. */
void mc_tokjob_drop(struct mc_tokjob *j);

#endif

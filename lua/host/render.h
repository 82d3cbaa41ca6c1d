/* render.h - a chat template in a VM of its own, for the command line (chat, render).
 * OWNS the VM. THREAD: one at a time. */
#ifndef MC_LUA_RENDER_H
#define MC_LUA_RENDER_H

#include <stdbool.h>

#include <jansson.h>

#include "core/base/err.h"

struct mc_render;

/* bos, eos: the texts of the model's tokens. now: Unix seconds that the template's clock
 * shows; negative: the time of each rendering. */
int mc_render_open(const char *text, size_t n, const char *bos, const char *eos,
                   double now, struct mc_render **out, struct mc_err *err);
/* input: {messages, tools, ...}: the template's variables; messages are brought to one
 * spelling unless asis. *pieces: a new reference, [{text, from_user}, ...]. */
int mc_render_run(struct mc_render *r, const json_t *input, bool asis, json_t **pieces,
                  struct mc_err *err);
void mc_render_close(struct mc_render *r);

#endif

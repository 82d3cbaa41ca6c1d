/* chat.h - conversations as prompts, for the command line. THREAD: main. */
#ifndef MC_CLI_CHAT_H
#define MC_CLI_CHAT_H

#include "core/cli/lua_half.h"
#include "core/model/tokenizer.h"

/* The model's chat template, ready to render; now as in lua_half.h. */
int mc_chat_template(const struct mc_lua_half *lua, const struct mc_tok *tok, double now,
                     struct mc_render **out, struct mc_err *err);
/* The ids of rendered pieces: control tokens out of the template's own text only. */
int mc_chat_encode(const struct mc_tok *tok, const json_t *pieces, struct mc_ids *ids,
                   struct mc_err *err);

#endif

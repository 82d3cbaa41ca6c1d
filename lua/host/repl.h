/* repl.h - REPL sessions (struct mc_repl_ops of core/serve/server.h; self is the server).
 * Each has a VM, a loop and so a thread of its own. THREAD: see there. */
#ifndef MC_LUA_REPL_H
#define MC_LUA_REPL_H

#include "core/serve/server.h"

extern const struct mc_repl_ops mc_repl_ops;

#endif

/* stream.h - res:stream: sequences handed to the pump. THREAD: the loop's. */
#ifndef MC_BIND_STREAM_H
#define MC_BIND_STREAM_H

#include <lua.h>

#include "lua/host/edge.h"

/* stream(res, seqs, opts) -> true; nil, error. The running task waits with streamed. */
int mc_http_stream(lua_State *L);
/* streamed(res) -> true, or false: not yet, and the running task will be woken. */
int mc_http_streamed(lua_State *L);
/* The client of a stream is gone. */
void mc_http_stream_gone(struct mc_http_stream *s, struct mc_req *r);

#endif

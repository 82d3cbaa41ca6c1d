/* http.h - requests and responses as Lua sees them. THREAD: the loop's. */
#ifndef MC_BIND_HTTP_H
#define MC_BIND_HTTP_H

#include <lua.h>

#include "lua/host/edge.h"

/* Functions of lua/mc/http.lua. */
void mc_bind_http(lua_State *L);
/* The request whose response handle is at idx; raises when it is over. */
struct mc_edge_req *mc_http_check(lua_State *L, int idx);
/* Pushes the request's table and the handle of its response. */
void mc_http_push(lua_State *L, struct mc_edge_req *r);
/* An error as the answer: a status and body, an event when a stream has begun, nothing when
 * nobody listens or the answer is complete. */
void mc_http_fail(struct mc_edge_req *r, const struct mc_err *err);

#endif

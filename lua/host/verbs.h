/* verbs.h - policy generations as verbs: list, check, diff, reload, rollback.
 * THREAD: any; the answers need no VM but those that the builder makes. */
#ifndef MC_LUA_VERBS_H
#define MC_LUA_VERBS_H

#include "core/serve/server.h"

extern const struct mc_policy_admin mc_policy_verbs; /* self: the struct mc_policies */

#endif

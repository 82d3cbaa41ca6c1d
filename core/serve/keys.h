/* keys.h - API keys and their tenants, read from a file.
 *
 * A line is a key, then maybe the name of its tenant; # begins a comment. Keys are kept as
 * hashes and compared in constant time. OWNS its table, constant after open. THREAD: any. */
#ifndef MC_SERVE_KEYS_H
#define MC_SERVE_KEYS_H

#include <stdint.h>

#include "core/base/err.h"

struct mc_keys;

int mc_keys_open(const char *path, struct mc_keys **out, struct mc_err *err);
void mc_keys_close(struct mc_keys *k);

/* The tenant's number (0 is who has no tenant's key) for the values of the headers
 * authorization ("Bearer KEY") and x-api-key, either may be NULL; or MC_EAUTH. */
int mc_keys_check(const struct mc_keys *k, const char *authorization, const char *x_api_key,
                  uint32_t *tenant, struct mc_err *err);
const char *mc_keys_tenant(const struct mc_keys *k, uint32_t tenant); /* its name, or "" */

#endif

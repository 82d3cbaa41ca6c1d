/* keys.h - API keys and their tenants, read from a file.
 *
 * A line is a key as `mascon key new` writes it (sha256:HEX) or the key itself, then
 * maybe the name of its tenant; # begins a comment. Only hashes are kept, and compared in
 * constant time. OWNS its table. THREAD: any. */
#ifndef MC_SERVE_KEYS_H
#define MC_SERVE_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_keys;

enum { MC_TENANTS_MAX = 64, MC_TENANT_NAME = 64 }; /* the engine has as many */

int mc_keys_open(const char *path, struct mc_keys **out, struct mc_err *err);
/* Reads the file again; when that fails the keys stay as they were. A tenant keeps its
 * number. */
int mc_keys_reload(struct mc_keys *k, struct mc_err *err);
void mc_keys_close(struct mc_keys *k);

/* The tenant's number (0 is who has no tenant's key) for the values of the headers
 * authorization ("Bearer KEY") and x-api-key, either may be NULL; or MC_EAUTH. */
int mc_keys_check(struct mc_keys *k, const char *authorization, const char *x_api_key,
                  uint32_t *tenant, struct mc_err *err);
const char *mc_keys_tenant(const struct mc_keys *k,
                           uint32_t tenant); /* its name, or "" */
/* How many requests a second a tenant may make; 0: any number. MC_EARG for no such
 * number. */
int mc_keys_set_rate(struct mc_keys *k, uint32_t tenant, double rate, struct mc_err *err);
double mc_keys_rate(const struct mc_keys *k, uint32_t tenant);
bool mc_is_tenant(const char *name); /* letters, digits, dots, dashes; 1..63 of them */

#endif

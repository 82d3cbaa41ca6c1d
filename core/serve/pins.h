/* pins.h - the verbs pin, unpin, pins and cached; rows of the table in admin.c. THREAD:
 * any. */
#ifndef MC_SERVE_PINS_H
#define MC_SERVE_PINS_H

#include <jansson.h>

#include "core/serve/server.h"

int mc_pins_pin(struct mc_server *s, const json_t *args, json_t **out,
                struct mc_err *err);
int mc_pins_unpin(struct mc_server *s, const json_t *args, json_t **out,
                  struct mc_err *err);
int mc_pins_list(struct mc_server *s, const json_t *args, json_t **out,
                 struct mc_err *err);
int mc_pins_cached(struct mc_server *s, const json_t *args, json_t **out,
                   struct mc_err *err);

#endif

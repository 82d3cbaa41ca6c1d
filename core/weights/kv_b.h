/* kv_b.h - a latent's up-projection that a GGUF stores in two parts.
 *
 * OWNS nothing. THREAD: any. */
#ifndef MC_WEIGHTS_KV_B_H
#define MC_WEIGHTS_KV_B_H

#include "core/weights/weights.h"

struct mc_kv_b {
    const char *module;
    const struct mc_stored *keys, *values; /* [h,c,nope], turned, and [h,v,c]; or NULL */
};

/* Checks that the parts agree and fills d as kv_b [h*(nope+v), c], a head's keys before its
 * values. own: *own gets a malloced copy in f32, which d points into; NULL: d has no
 * pointers, and the format of the values. */
int mc_kv_b_read(const struct mc_kv_b *b, struct mc_disk *d, void **own,
                 struct mc_err *err);

#endif

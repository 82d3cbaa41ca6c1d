/* auto4.h - 4-bit matrices in the orders of AutoGPTQ and AutoAWQ.
 *
 * OWNS nothing. THREAD: any. */
#ifndef MC_WEIGHTS_AUTO4_H
#define MC_WEIGHTS_AUTO4_H

#include "core/weights/weights.h"

struct mc_auto4 {
    const char *module;
    const struct mc_stored *qweight, *qzeros, *scales, *g_idx; /* g_idx may be NULL */
    const json_t *config; /* quantization_config */
};

/* Checks that the parts agree with each other and with the config, and fills d as MC_D_INT4.
 * own: *own gets a malloced copy in that order, which d points into; NULL: d has no
 * pointers. */
int mc_auto4_read(const struct mc_auto4 *a, struct mc_disk *d, void **own,
                  struct mc_err *err);

#endif

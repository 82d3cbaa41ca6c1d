/* memory.h - a list of device allocations with one lifetime.
 *
 * OWNS what was taken from it; fini gives all back. Takes are for boot, never for a step.
 * THREAD: its owner's. */
#ifndef MC_MODEL_MEMORY_H
#define MC_MODEL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

struct mc_block;

struct mc_mem {
    struct mc_backend *be;
    struct mc_block *list;
    size_t bytes;
};

/* Whether a backend computes in the host's own memory. */
bool mc_mem_is_host(const struct mc_backend *be);
void mc_mem_init(struct mc_mem *m, struct mc_backend *be);
void mc_mem_fini(struct mc_mem *m);
/* Zeroed device memory, or NULL (also for 0 bytes). */
void *mc_mem_take(struct mc_mem *m, size_t bytes);
/* Zeroed host memory that the device can read (staging). */
void *mc_mem_take_host(struct mc_mem *m, size_t bytes);
/* Device memory holding a copy of n host bytes. */
void *mc_mem_put(struct mc_mem *m, const void *src, size_t n);

#endif

/* ops.h - between emu_dev.h and ops.c: the arguments that lanes bring to a warp
 * operation. */
#ifndef MC_EMU_OPS_H
#define MC_EMU_OPS_H

#include "kernels/emu/emu.h"

#ifdef __cplusplus
extern "C" {
#endif

struct emu_shfl {
    uint64_t in, out;
    uint32_t from; /* lane */
};

struct emu_vote {
    uint32_t in, out;
};

struct emu_ldsm {
    const void *row; /* of matrix lane/8 */
    uint32_t *out;
    bool trans;
};

struct emu_mma {
    const uint32_t *a, *b;
    float *d; /* d += a b */
};

void emu_shfl_fn(void **arg, uint32_t mask);
void emu_ballot_fn(void **arg, uint32_t mask);
void emu_ldsm_fn(void **arg, uint32_t mask);
void emu_mma_bf16_fn(void **arg, uint32_t mask);
void emu_mma_f16_fn(void **arg, uint32_t mask);
void emu_mma_e4m3_fn(void **arg, uint32_t mask);

/* Who asks: read here, since hooks would take these reads for the kernel's. */
struct emu_dim emu_thread_idx(void);
struct emu_dim emu_block_idx(void);
struct emu_dim emu_grid_dim(void);
uint32_t emu_lane(void);
uint32_t emu_rank(void); /* in the cluster */
unsigned char *emu_shared(void);
unsigned char *emu_cluster_shared(uint32_t rank);

void emu_raw_copy(void *to, const void *from, size_t n);
uint32_t emu_load_acquire(const uint32_t *p);
void emu_store_release(uint32_t *p, uint32_t v);
/* 16 aligned bytes as two pairs of words, each whole; not in one piece nor in any order. */
void emu_load_pairs(void *to, const void *p, bool acquire);
void emu_store_pairs(void *p, const void *from, bool release);
uint32_t emu_load_word(const uint32_t *p);
void emu_store_word(uint32_t *p, uint32_t v);
uint32_t emu_add32(uint32_t *p, uint32_t v);
uint64_t emu_add64(uint64_t *p, uint64_t v);
uint32_t emu_or32(uint32_t *p, uint32_t v);

#ifdef __cplusplus
}
#endif

#endif

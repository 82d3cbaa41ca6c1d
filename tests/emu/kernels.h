/* kernels.h - the kernels that only test_emu runs; params for wrappers.cu and planted.cu.
 */
#ifndef MC_TEST_EMU_KERNELS_H
#define MC_TEST_EMU_KERNELS_H

#include <stdint.h>

enum { /* threads of what a card runs too */
    MC_T_w_mma_bf16 = 32,
    MC_T_w_mma_f16 = 32,
    MC_T_w_mma_e4m3 = 32,
    MC_T_w_ldsm = 32,
    MC_T_w_ldsm_t = 32,
    MC_T_w_convert = 32,
    MC_T_w_warp = 32
};

struct wrap_p {
    uint32_t *a, *b;
    float *d;
};

enum fault {
    FAULT_NONE,
    FAULT_NO_BARRIER,
    FAULT_OFF_BY_ONE,
    FAULT_NO_WAIT,
    FAULT_STAGE,
    FAULT_DIVERGE,
    FAULT_EXIT,
    FAULT_LANES,
    FAULT_MISALIGNED,
    FAULT_UNCOALESCED,
    FAULT_BANKS,
};

struct fault_p {
    const float *in;
    float *out;
    int32_t fault;
};

#ifndef __CUDACC__
#ifdef __cplusplus
extern "C" {
#endif
void w_mma_bf16(const void *p);
void w_mma_f16(const void *p);
void w_mma_e4m3(const void *p);
void w_ldsm(const void *p);
void w_ldsm_t(const void *p);
void w_convert(const void *p);
void w_warp(const void *p);
void w_cluster(const void *p);
void w_ranks(const void *p);
void f_sum(const void *p);
void f_loop(const void *p);
void f_warp(const void *p);
void f_pipe(const void *p);
void f_diverge(const void *p);
void f_vector(const void *p);
void f_coalesce(const void *p);
#ifdef __cplusplus
}
#endif
#endif

#endif

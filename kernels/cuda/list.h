/* list.h - every kernel and the threads of its blocks: one list for the compilers of the
 * device, the launchers and the emulator. */
#ifndef MC_CUDA_LIST_H
#define MC_CUDA_LIST_H

#define MC_KERNELS(K)                                                                      \
    K(k_page_init, 256)                                                                    \
    K(k_page_copy, 256)                                                                    \
    K(k_page_check, 32)                                                                    \
    K(k_table_apply, 1024)                                                                 \
    K(k_embed, 256)                                                                        \
    K(k_join, 256)                                                                         \
    K(k_quant, 256)                                                                        \
    K(k_gather_rows, 128)                                                                  \
    K(k_linear_bf16, 256)                                                                  \
    K(k_linear_e4m3, 256)                                                                  \
    K(k_linear_i4, 256)                                                                    \
    K(k_linear_nvfp4, 256)                                                                 \
    K(k_linear_w8a8, 256)                                                                  \
    K(k_gqa_prep, 256)                                                                     \
    K(k_gqa_attn_bf16, 128)                                                                \
    K(k_gqa_attn_fp8, 128)                                                                 \
    K(k_attn_merge, 128)                                                                   \
    K(k_chain, 512)                                                                        \
    K(k_sample, 512)                                                                       \
    K(k_commit, 128)                                                                       \
    K(k_nll, 512)

enum { /* threads: MC_T_k_join ... */
#define K(name, threads) MC_T_##name = threads,
    MC_KERNELS(K)
#undef K
};

enum mc_kernel_id { /* MC_CU_k_join ... */
#define K(name, threads) MC_CU_##name,
    MC_KERNELS(K)
#undef K
    MC_N_KERNEL
};

#endif

/* list.h - every kernel, the threads of its blocks and its params (params.h): one list
 * for the device's compilers, the launchers and the emulator. */
#ifndef MC_CUDA_LIST_H
#define MC_CUDA_LIST_H

#define MC_LINEAR_KERNELS(K, f)                                                        \
    K(k_linear_##f, 256, mc_linear_p)                                                  \
    K(k_linear2_##f, 256, mc_linear_p)                                                 \
    K(k_glu_##f, 256, mc_glu_p)                                                        \
    K(k_glu2_##f, 256, mc_glu_p)
#define MC_MOE_KERNELS(K, f)                                                           \
    K(k_moe_glu_##f, 256, mc_moe_p)                                                    \
    K(k_moe_glu2_##f, 256, mc_moe_p)                                                   \
    K(k_moe_down_##f, 256, mc_moe_p)                                                   \
    K(k_moe_down2_##f, 256, mc_moe_p)
#define MC_ATTN_KERNELS(K, kv)                                                         \
    K(k_gqa_attn_##kv##_32, 128, mc_cu_gqa_attn)                                       \
    K(k_gqa_attn_##kv##_48, 128, mc_cu_gqa_attn)                                       \
    K(k_gqa_attn_##kv##_64, 128, mc_cu_gqa_attn)                                       \
    K(k_gqa_attn_##kv##_128, 128, mc_cu_gqa_attn)
#define MC_MLA_KERNELS(K, kv)                                                          \
    K(k_mla_attn_##kv##_128_32, 256, mc_cu_mla_attn)                                   \
    K(k_mla_attn_##kv##_512_64, 256, mc_cu_mla_attn)                                   \
    K(k_mla_attn64_##kv##_128_32, 256, mc_cu_mla_attn)                                 \
    K(k_mla_attn64_##kv##_512_64, 256, mc_cu_mla_attn)

#define MC_KERNELS(K)                                                                  \
    K(k_page_init, 256, mc_cu_page_init)                                               \
    K(k_page_copy, 256, mc_cu_page_copy)                                               \
    K(k_page_check, 32, mc_page_check_p)                                               \
    K(k_table_apply, 256, mc_cu_table_apply)                                           \
    K(k_verify, 128, mc_verify_p)                                                      \
    K(k_commit, 128, mc_commit_p)                                                      \
    K(k_embed, 256, mc_embed_p)                                                        \
    K(k_join, 256, mc_join_p)                                                          \
    K(k_join_ranks, 512, mc_cu_join)                                                   \
    K(k_join_sum, 256, mc_cu_join)                                                     \
    K(k_join_take, 256, mc_cu_join)                                                    \
    K(k_agree, 256, mc_cu_agree)                                                       \
    K(k_all_gather, 256, mc_cu_all_gather)                                             \
    K(k_all_to_all, 256, mc_cu_all_to_all)                                             \
    K(k_quant, 256, mc_quant_p)                                                        \
    K(k_glu_quant, 256, mc_glu_p)                                                      \
    K(k_gather_rows, 128, mc_gather_rows_p)                                            \
    K(k_gqa_prep, 256, mc_gqa_prep_p)                                                  \
    K(k_attn_merge, 128, mc_attn_merge_p)                                              \
    K(k_chain, 512, mc_chain_p)                                                        \
    K(k_sample, 512, mc_sample_p)                                                      \
    K(k_nll, 512, mc_nll_p)                                                            \
    MC_LINEAR_KERNELS(K, bf16)                                                         \
    MC_LINEAR_KERNELS(K, e4m3)                                                         \
    MC_LINEAR_KERNELS(K, i4)                                                           \
    MC_LINEAR_KERNELS(K, nvfp4)                                                        \
    MC_LINEAR_KERNELS(K, w8a8)                                                         \
    K(k_route, 256, mc_route_p)                                                        \
    K(k_route_lists, 256, mc_route_p)                                                  \
    K(k_moe_sum, 256, mc_moe_p)                                                        \
    MC_MOE_KERNELS(K, bf16)                                                            \
    MC_MOE_KERNELS(K, e4m3)                                                            \
    MC_MOE_KERNELS(K, i4)                                                              \
    MC_MOE_KERNELS(K, nvfp4)                                                           \
    MC_ATTN_KERNELS(K, bf16)                                                           \
    MC_ATTN_KERNELS(K, fp8)                                                            \
    K(k_mla_prep, 256, mc_mla_prep_p)                                                  \
    K(k_mla_q, 256, mc_mla_q_p)                                                        \
    K(k_mla_out, 256, mc_mla_out_p)                                                    \
    MC_MLA_KERNELS(K, bf16)                                                            \
    MC_MLA_KERNELS(K, plain)                                                           \
    MC_MLA_KERNELS(K, 656)                                                             \
    K(k_ragged_latents, 256, mc_cu_attn_ragged)                                        \
    K(k_ragged_attn_64_32, 128, mc_cu_attn_ragged)                                     \
    K(k_ragged_attn_192_128, 128, mc_cu_attn_ragged)                                   \
    K(k_dsa_prep, 256, mc_dsa_prep_p)                                                  \
    K(k_dsa_topk, 512, mc_cu_dsa_topk)                                                 \
    K(k_dsa_merge, 512, mc_cu_dsa_topk)                                                \
    K(k_mtp_in, 256, mc_mtp_in_p)                                                      \
    K(k_tap, 256, mc_tap_p)                                                            \
    K(k_tensor_map, 256, mc_tensor_p)                                                  \
    K(k_tensor_matmul, 256, mc_tensor_p)                                               \
    K(k_tensor_rows, 256, mc_tensor_p)                                                 \
    K(k_tensor_topk, 256, mc_tensor_p)

enum { /* threads: MC_T_k_join ... */
#define K(name, threads, params) MC_T_##name = threads,
    MC_KERNELS(K)
#undef K
};

enum mc_kernel_id { /* MC_CU_k_join ... */
#define K(name, threads, params) MC_CU_##name,
    MC_KERNELS(K)
#undef K
    MC_N_KERNEL
};

#endif

/* mla_attn_bf16.cu - mla_attn over pages of bf16: of small models, of DeepSeek's family.
 */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN(bf16, 128, 32, MC_KV_BF16)
MC_MLA_ATTN(bf16, 512, 64, MC_KV_BF16)

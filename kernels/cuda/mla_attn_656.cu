/* mla_attn_656.cu - mla_attn over pages of fp8-656: of small models, of DeepSeek's
 * family. */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN(656, 128, 32, MC_KV_FP8_656)
MC_MLA_ATTN(656, 512, 64, MC_KV_FP8_656)

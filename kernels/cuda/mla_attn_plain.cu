/* mla_attn_plain.cu - mla_attn over pages of fp8-plain: of small models, of DeepSeek's
 * family. */
#include "kernels/cuda/mla_attn.cuh"

MC_MLA_ATTN(plain, 128, 32, MC_KV_FP8_PLAIN)
MC_MLA_ATTN(plain, 512, 64, MC_KV_FP8_PLAIN)

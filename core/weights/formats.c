/* formats.c - the one table of disk formats: names, block sizes, GGUF type numbers.
 *
 * Owns nothing. THREAD: any.
 * A matrix is rows of whole blocks, so it slices anywhere between rows and, along k, at
 * multiples of `cols`. Scales that lie beside the codes (e4m3, int4, nvfp4) are tensors of
 * their own: struct mc_disk says how they slice, and they are not counted here. */
#include <string.h>

#include "core/weights/ckpt_int.h"

#define NO_GGUF UINT32_MAX

static const struct format {
    const char *name;
    const char *stored; /* dtype in the file, where that alone tells the format */
    uint32_t gguf;      /* enum ggml_type */
    int32_t cols;       /* a block: columns of one row that cannot be cut ... */
    int32_t bytes;      /* ... and the bytes they take */
} formats[MC_N_DISK] = {
    [MC_D_F32] = {"f32", "F32", 0, 1, 4},
    [MC_D_F16] = {"f16", "F16", 1, 1, 2},
    [MC_D_BF16] = {"bf16", "BF16", 30, 1, 2},
    [MC_D_E4M3] = {"e4m3", "F8_E4M3", NO_GGUF, 1, 1},
    [MC_D_INT4] = {"int4", "", NO_GGUF, 8, 4},
    [MC_D_NVFP4] = {"nvfp4", "", NO_GGUF, 16, 8},
    [MC_D_Q4_0] = {"q4_0", "Q4_0", 2, 32, 18},
    [MC_D_Q4_1] = {"q4_1", "Q4_1", 3, 32, 20},
    [MC_D_Q5_0] = {"q5_0", "Q5_0", 6, 32, 22},
    [MC_D_Q5_1] = {"q5_1", "Q5_1", 7, 32, 24},
    [MC_D_Q8_0] = {"q8_0", "Q8_0", 8, 32, 34},
    [MC_D_Q4_K] = {"q4_K", "Q4_K", 12, 256, 144},
    [MC_D_Q5_K] = {"q5_K", "Q5_K", 13, 256, 176},
    [MC_D_Q6_K] = {"q6_K", "Q6_K", 14, 256, 210},
};

uint64_t mc_disk_bytes(uint16_t fmt, int64_t n, int64_t k)
{
    const struct format *f;
    uint64_t row, all;

    if (fmt >= MC_N_DISK || n < 0 || k < 0)
        return 0;
    f = &formats[fmt];
    if (k % f->cols != 0 ||
        __builtin_mul_overflow((uint64_t)(k / f->cols), (uint64_t)f->bytes, &row) ||
        __builtin_mul_overflow(row, (uint64_t)n, &all))
        return 0;
    return all;
}

const char *mc_disk_name(uint16_t fmt)
{
    return fmt < MC_N_DISK ? formats[fmt].name : "?";
}

int mc_format_of_dtype(const char *dtype)
{
    for (int i = 0; i < MC_N_DISK; i++)
        if (formats[i].stored[0] && strcmp(formats[i].stored, dtype) == 0)
            return i;
    return -1;
}

int mc_format_of_gguf(uint32_t type)
{
    for (int i = 0; i < MC_N_DISK; i++)
        if (formats[i].gguf == type && type != NO_GGUF)
            return i;
    return -1;
}

const char *mc_format_dtype(int fmt)
{
    return formats[fmt].stored;
}

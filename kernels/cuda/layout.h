/* layout.h - the packed form of a matrix on CUDA, as pack.c writes and kernels read it.
 *
 * Rows are cut in panels of 16, the rows of an mma's A operand; columns in tiles of 32,
 * two k16 steps. Which of a tile's columns a lane multiplies is ours to choose, as a sum
 * does not care, so lane (g = lane/4, t = lane%4) takes columns 8t..8t+7 of rows g and
 * g+8: an activation's eight are one 16-byte load, and an 8-bit code's order serves the
 * m16n8k32 instruction too. w.q begins with a struct mc_cu_head; panels follow, each a
 * run of tiles:
 *
 *   BF16   [2 steps][32 lanes] of 16 bytes: columns 8t+4s, +1 of row g, the same of row
 *          g+8, then columns 8t+4s+2, +3 of both
 *   E4M3   [32 lanes] of 16 bytes: 8t..8t+3 of row g, of row g+8, 8t+4..8t+7 of both
 *   I4     two tiles at once, [32 lanes] of 16 bytes: a word of eight codes for row g,
 * then NVFP4  g+8, of the first tile, then of the second. Column 8t+2i is nibble i of the
 *          word's low half, 8t+2i+1 of the high half: shift and mask give bf16 pairs
 *
 * Scales, [panel][group of columns][8]: pairs for rows g and g+8, f32 (E4M3, I4) or bf16
 * (I4, when the disk's are); zeros likewise, pairs of bytes. NVFP4: [panel][two tiles][8]
 * [2] words: the four e4m3 scales of rows g, g+8 for 16 columns of the first tile, then
 * of the second; the lower t/2 first. Rows past n are zeros. */
#ifndef MC_CUDA_LAYOUT_H
#define MC_CUDA_LAYOUT_H

#include "kernels/kernels.h"

enum {
    MC_CU_PANEL = 16,
    MC_CU_TILE = 32,
    MC_CU_HEAD = 64,
    MC_CU_CHUNK = 64, /* rows a pass */
    MC_CU_FEW = 16 /* of an expert, when the step has no more than MC_CU_CHUNK */
};

struct mc_cu_head {
    int32_t group;     /* columns a scale; a multiple of MC_CU_TILE (NVFP4: 16) */
    int32_t n_group;   /* of a row */
    uint16_t scale_dt; /* enum mc_dtype */
    uint16_t zeros;    /* I4: w.zero holds zero points; else it is 8 */
    float global;      /* NVFP4: of all scales */
};

/* Tiles of a row; the last one's columns past k (bf16 alone has such) are zeros. */
#define MC_CU_TILES(k) (((k) + MC_CU_TILE - 1) / MC_CU_TILE)

/* Bytes of a tile of 32 columns of a panel. */
#define MC_CU_TILE_BYTES(layout) \
    ((layout) == MC_W_BF16 ? 1024 : (layout) == MC_W_E4M3 ? 512 : 256)

#endif

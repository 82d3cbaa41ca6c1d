/* cpu.h - between the files of the CPU backend; its packed matrix form.
 *
 * A packed matrix is cut in panels of PANEL rows; lane j of every vector belongs to row
 * 16*panel + j, so that one broadcast activation feeds 16 outputs, and rows past n are
 * zeros. w.q begins with a struct head; then come the panels, each a run of k:
 *
 *   floats   [k][16] f32, f16, bf16 or e4m3 (whose scales are times 256, see tile.inl)
 *   I8       [k/2][16][2] int8: a pair of columns a lane, widened to int16 pairs
 *   I4       [k/8][16] dwords: nibble i of the low half is column i*2 of the eight, nibble i
 *            of the high half column i*2+1, so that shift and mask give int16 pairs
 *   NVFP4    as I4, of e2m1 codes
 *
 * w.scale holds the scales, panel by panel, group by group of columns (pack.c writes and
 * scale_expand in scale.inl reads): see enum scales. All forms are exact: a disk format
 * loses nothing on its way here. */
#ifndef MC_CPU_H
#define MC_CPU_H

#include "kernels/host/host.h"

enum { PANEL = 16, BLOCK = 32 /* columns of an activation's scale */ };

/* Scales of 16 rows and a group of columns; w = q*scale + min. */
enum scales {
    S_NONE,  /* floats */
    S_E4M3,  /* scale [16] e4m3, times head.global; min 0 */
    S_F32,   /* scale [16] f32; min 0 */
    S_F16,   /* scale [16] f16; min 0 */
    S_F16_8, /* the same; min is -8 scale; from here to S_K_MIN: has_min() */
    S_BF16_8,
    S_F32_8,
    S_F32_MIN, /* scale [16], min [16] f32 */
    S_F16_MIN,
    S_K_MIN, /* a group is 256: d, dmin [16] f16, then eight times sc, m [16] u8:
                scale d*sc, min -dmin*m for each 32 columns (Q4_K, Q5_K) */
    S_K16,   /* a group is 256: d [16] f16, then sixteen times sc [16] i8: scale d*sc for
                each 16 columns (Q6_K) */
};

static inline bool has_min(uint16_t scales)
{
    return scales >= S_F16_8 && scales <= S_K_MIN;
}

struct head {
    uint16_t scales; /* enum scales */
    uint16_t step;   /* columns that share a scale when multiplied: 32, or 16 */
    int32_t group;   /* columns a record of scales */
    int32_t scale_bytes; /* of such a record */
    int32_t panel_bytes; /* of a panel's q */
    float global;        /* S_E4M3 */
};
enum { HEAD = 64 }; /* bytes that the head takes */

/* Whether a layout reads int16 activations. */
static inline bool is_int(uint16_t run_layout)
{
    return run_layout == MC_W_I4 || run_layout == MC_W_I8 || run_layout == MC_W_NVFP4;
}

/* An e2m1 code's value times 512: tiles keep it in the high byte of an int16, doubled. */
static inline int e2m1_512(int code)
{
    int x = code & 6 ? (2 + (code & 1)) << (code >> 1 & 3) >> 1 : code & 1;

    return code & 8 ? -256 * x : 256 * x;
}

static inline int32_t panels(int32_t n)
{
    return (n + PANEL - 1) / PANEL;
}

/* What a disk format becomes (formats.c). */
extern const struct mc_cpu_form {
    uint16_t layout, scales, step, group;
    uint16_t block, block_bytes; /* ggml: columns and bytes of a block, else 0 */
} mc_cpu_forms[MC_N_DISK];

/* 32 codes of a row from column k on. */
void mc_cpu_codes(const struct mc_disk *d, int32_t row, int32_t k, int8_t *out);
/* A row's scales of the group that begins at column k, to lane j of a record. */
void mc_cpu_scales(const struct mc_disk *d, uint16_t scales, int32_t row, int32_t k,
                   int j, uint8_t *rec);

uint16_t mc_cpu_run_of(uint16_t disk_fmt);

/* The operations whose bodies are the same for every instruction set. */
extern const struct mc_op mc_cpu_pack;

/* The others, one set a width: body.inl and pages.inl make them. */
#define MC_CPU_OPS(F, isa)                                                                 \
    F(embed, isa) F(join, isa) F(linear, isa) F(glu, isa) F(quant, isa) F(gqa_prep, isa)   \
    F(gqa_attn, isa) F(attn_merge, isa) F(route, isa) F(moe, isa)         \
    F(mla_prep, isa) F(mla_q, isa) F(mla_attn, isa) F(mla_out, isa) F(dsa_prep, isa)       \
    F(dsa_topk, isa) F(mtp_in, isa) F(attn_ragged, isa) F(tensor, isa)
#define MC_CPU_OP(op, isa) extern const struct mc_op mc_cpu_##op##_##isa;
MC_CPU_OPS(MC_CPU_OP, portable)
MC_CPU_OPS(MC_CPU_OP, avx2)
MC_CPU_OPS(MC_CPU_OP, avx512)
#undef MC_CPU_OP

#endif

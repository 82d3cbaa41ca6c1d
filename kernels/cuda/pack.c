/* pack.c - disk formats into the panels of layout.h; on the host, panel by panel, through
 * a buffer that is uploaded: it runs once, at load, on the caller's thread.
 *
 * Nothing is rounded where a format has a layout of its own: BF16, E4M3, INT4, NVFP4, and
 * Q4_0, which is INT4 of group 32. All others become bf16, rounded to nearest even: F32
 * loses 16 bits, F16 three, and of the quants Q8_0 and up lose what passes 8 bits.
 * Owns its buffer. THREAD: any. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/host/cast.h"

enum { EIGHT = 8, BUF_BYTES = 4 << 20 };

uint16_t mc_cu_run_of(const struct mc_backend *b, uint16_t disk_fmt)
{
    (void)b;
    switch (disk_fmt) {
    case MC_D_E4M3:
        return MC_W_E4M3;
    case MC_D_INT4:
    case MC_D_Q4_0:
        return MC_W_I4;
    case MC_D_NVFP4:
        return MC_W_NVFP4;
    default:
        return MC_W_BF16;
    }
}

/* ---- what a slice becomes ---------------------------------------------------------- */

/* Sizes of a packed slice, and its head. */
struct form {
    struct mc_cu_head head;
    size_t q_panel, scale_panel, zero_panel; /* bytes of 16 rows */
};

/* Columns of a disk block: a slice begins and ends at one. */
static int32_t disk_block(uint16_t fmt)
{
    return fmt >= MC_D_Q4_K ? 256 : fmt >= MC_D_Q4_0 ? 32 : 1;
}

/* The largest group not above `group` that cuts [k0, k0+k) where the disk's scales
 * change; scales are repeated when it is smaller. */
static int32_t fit_group(int32_t group, int32_t k0, int32_t k)
{
    while (group > 1 && (k0 % group != 0 || (k % group != 0 && k > group)))
        group = group % 2 == 0 ? group / 2 : 1;
    return group;
}

static const char *scales_of(const struct mc_pack_p *p, struct form *f)
{
    const struct mc_disk *d = &p->disk;
    struct mc_cu_head *h = &f->head;
    int32_t k = p->w.k;

    switch (p->w.layout) {
    case MC_W_E4M3:
        h->scale_dt = MC_F32;
        h->group = d->block_k >= p->k0 + k ? k : fit_group(d->block_k, p->k0, k);
        break;
    case MC_W_I4:
        h->scale_dt = d->fmt == MC_D_INT4 && d->scale_dt == MC_BF16 ? MC_BF16 : MC_F32;
        h->zeros = d->fmt == MC_D_INT4 && d->zero != NULL;
        h->group = d->fmt == MC_D_INT4 ? fit_group(d->group, p->k0, k) : 32;
        break;
    case MC_W_NVFP4:
        h->scale_dt = MC_E4M3;
        h->group = 16;
        h->global = d->global;
        if (p->k0 % 16 != 0)
            return "pack: a cut inside a group of 16 columns";
        break;
    default:
        h->group = k;
        return NULL;
    }
    if (p->w.layout != MC_W_NVFP4 && h->group % MC_CU_TILE != 0)
        return "pack: a group or cut of scales that is no multiple of 32 columns";
    h->n_group = (k + h->group - 1) / h->group;
    f->scale_panel = (size_t)h->n_group * 16 *
                     (h->scale_dt == MC_F32 ? 4 : h->scale_dt == MC_BF16 ? 2 : 1);
    f->zero_panel = h->zeros ? (size_t)h->n_group * 16 : 0;
    return NULL;
}

static const char *form_of(const struct mc_pack_p *p, struct form *f)
{
    int32_t unit = p->w.layout == MC_W_BF16 ? 16 : p->w.layout == MC_W_E4M3 ? 32 : 64;
    int32_t block;

    memset(f, 0, sizeof *f);
    if (p->disk.fmt >= MC_N_DISK)
        return "pack: unknown disk format";
    if (p->w.n < 1 || p->w.k < 1 || p->row0 < 0 || p->k0 < 0 ||
        p->row0 > p->disk.n - p->w.n || p->k0 > p->disk.k - p->w.k)
        return "pack: the slice is outside the matrix";
    if (p->w.layout != MC_W_BF16 && p->w.layout != mc_cu_run_of(NULL, p->disk.fmt))
        return "pack: another run layout than the format's";
    if (p->w.k % unit != 0)
        return unit == 64   ? "cuda: 4-bit weights need columns in multiples of 64"
               : unit == 32 ? "cuda: e4m3 weights need columns in multiples of 32"
                            : "cuda: weights need columns in multiples of 16";
    block = disk_block(p->disk.fmt);
    if (p->k0 % block != 0 || p->w.k % block != 0)
        return "pack: a cut inside a quantised block";
    f->q_panel = (size_t)MC_CU_TILES(p->w.k) * MC_CU_TILE_BYTES(p->w.layout);
    return scales_of(p, f);
}

static int pack_need(const struct mc_pack_p *p, struct mc_need *need, const char **why)
{
    struct form f;
    const char *no = form_of(p, &f);
    size_t panels = ((size_t)p->w.n + MC_CU_PANEL - 1) / MC_CU_PANEL;

    if (no)
        return mc_cu_refuse(why, no);
    need->q = MC_CU_HEAD + panels * f.q_panel;
    need->scale = panels * f.scale_panel;
    need->zero = panels * f.zero_panel;
    return 0;
}

/* ---- codes ------------------------------------------------------------------------- */

/* Eight 4-bit codes from column k on. */
static void codes4(const struct mc_disk *d, int64_t row, int32_t k, uint8_t *c)
{
    const uint8_t *q = d->q;
    int i;

    if (d->fmt == MC_D_Q4_0) { /* a scale, 16 low nibbles, then the high ones */
        q += (row * (d->k / 32) + k / 32) * 18 + 2 + k % 16;
        for (i = 0; i < EIGHT; i++)
            c[i] = q[i] >> (k % 32 >= 16 ? 4 : 0) & 15;
        return;
    }
    q += (row * d->k + k) / 2;
    for (i = 0; i < EIGHT; i++)
        c[i] = q[i / 2] >> i % 2 * 4 & 15;
}

/* Columns k..k+7 of the slice's row r, to their place in the panel. */
static void put_codes(const struct mc_pack_p *p, int32_t r, int32_t k, const float *row,
                      uint8_t *panel)
{
    const struct mc_disk *d = &p->disk;
    int32_t lane = r % 8 * 4 + k % MC_CU_TILE / EIGHT, i;
    uint8_t *at = panel + k / MC_CU_TILE * (int64_t)MC_CU_TILE_BYTES(p->w.layout) +
                  r % 16 / 8 * 4;
    uint8_t c[EIGHT];
    uint32_t word = 0;

    switch (p->w.layout) {
    case MC_W_BF16:
        for (i = 0; i < EIGHT; i += 2) {
            word = mc_bf16_of_f32(row[k + i]) | (uint32_t)mc_bf16_of_f32(row[k + i + 1])
                                                    << 16;
            memcpy(at + lane * 16 + i / 4 * 512 + i % 4 / 2 * 8, &word, 4);
        }
        break;
    case MC_W_E4M3:
        for (i = 0; i < 2; i++)
            memcpy(at + lane * 16 + i * 8, (const uint8_t *)d->q +
                   (int64_t)(p->row0 + r) * d->k + p->k0 + k + 4 * i, 4);
        break;
    default:
        codes4(d, p->row0 + r, p->k0 + k, c);
        for (i = 0; i < EIGHT; i++)
            word |= (uint32_t)c[i] << (i / 2 * 4 + i % 2 * 16);
        at -= k % 64 / 32 * 256; /* two tiles share 512 bytes */
        memcpy(at + lane * 16 + k % 64 / 32 * 8, &word, 4);
        break;
    }
}

/* ---- scales ------------------------------------------------------------------------ */

static float float_at(uint16_t dt, const void *x, int64_t i)
{
    switch (dt) {
    case MC_F16:
        return mc_f32_of_f16(((const uint16_t *)x)[i]);
    case MC_BF16:
        return mc_f32_of_bf16(((const uint16_t *)x)[i]);
    default:
        return ((const float *)x)[i];
    }
}

static float scale_at(const struct mc_disk *d, int64_t row, int32_t k)
{
    int32_t bn = d->fmt == MC_D_E4M3 ? d->block_n : 1;
    int32_t bk = d->fmt == MC_D_E4M3 ? d->block_k : d->group;
    uint16_t half;

    if (d->fmt == MC_D_Q4_0) {
        memcpy(&half, (const uint8_t *)d->q + (row * (d->k / 32) + k / 32) * 18, 2);
        return mc_f32_of_f16(half);
    }
    return float_at(d->scale_dt, d->scale, row / bn * ((d->k + bk - 1) / bk) + k / bk);
}

static void put_scales(const struct mc_pack_p *p, const struct form *f, int32_t r,
                       uint8_t *scale, uint8_t *zero)
{
    const struct mc_disk *d = &p->disk;
    int64_t row = p->row0 + r, n = d->group ? (d->k + d->group - 1) / d->group : 0;

    for (int32_t g = 0; g < f->head.n_group; g++) {
        int32_t k = p->k0 + g * f->head.group, at = g * 16 + r % 8 * 2 + r % 16 / 8;

        if (p->w.layout == MC_W_NVFP4) {
            at = g / 4 * 64 + (r % 8 * 2 + g % 2) * 4 + g % 4 / 2 * 2 + r % 16 / 8;
            scale[at] = ((const uint8_t *)d->scale)[row * n + k / 16];
        } else if (f->head.scale_dt == MC_BF16) {
            memcpy(scale + 2 * at, (const uint16_t *)d->scale + row * n + k / d->group,
                   2);
        } else {
            float s = scale_at(d, row, k);

            memcpy(scale + 4 * at, &s, 4);
        }
        if (f->head.zeros) {
            uint32_t z = ((const uint32_t *)d->zero)[row / 8 * n + k / d->group];

            zero[at] = z >> row % 8 * 4 & 15;
        }
    }
}

/* ---- packing ----------------------------------------------------------------------- */

/* The mma's way of reading e4m3 has no NaN, and a weight that is one is of no use. */
static bool has_nan(const struct mc_pack_p *p)
{
    const uint8_t *q = (const uint8_t *)p->disk.q + (int64_t)p->row0 * p->disk.k + p->k0;

    for (int32_t r = 0; r < p->w.n; r++, q += p->disk.k)
        for (int32_t k = 0; k < p->w.k; k++)
            if ((q[k] & 0x7f) == 0x7f)
                return true;
    return false;
}

static void pack_panel(const struct mc_pack_p *p, const struct form *f, int32_t i,
                       float *row, uint8_t *q, uint8_t *scale, uint8_t *zero)
{
    int32_t r1 = (i + 1) * MC_CU_PANEL < p->w.n ? (i + 1) * MC_CU_PANEL : p->w.n;

    memset(q, 0, f->q_panel);
    memset(scale, 0, f->scale_panel);
    memset(zero, 0, f->zero_panel);
    for (int32_t r = i * MC_CU_PANEL; r < r1; r++) {
        if (p->w.layout == MC_W_BF16)
            mc_disk_row(&p->disk, p->row0 + r, p->k0, p->k0 + p->w.k, row);
        for (int32_t k = 0; k < p->w.k; k += EIGHT)
            put_codes(p, r, k, row, q);
        if (f->scale_panel)
            put_scales(p, f, r, scale, zero);
    }
}

/* As many panels as fit the buffer at a time: packed, then uploaded. */
static int pack_all(struct mc_backend *b, const struct mc_pack_p *p, const struct form *f,
                    float *row, uint8_t *buf, int32_t per)
{
    int32_t panels = (p->w.n + MC_CU_PANEL - 1) / MC_CU_PANEL, n;
    uint8_t *scale = buf + (size_t)per * f->q_panel;
    uint8_t *zero = scale + (size_t)per * f->scale_panel;
    int rc = 0;

    for (int32_t i = 0; i < panels && rc == 0; i += n) {
        n = panels - i < per ? panels - i : per;
        for (int32_t j = 0; j < n; j++)
            pack_panel(p, f, i + j, row, buf + (size_t)j * f->q_panel,
                       scale + (size_t)j * f->scale_panel,
                       zero + (size_t)j * f->zero_panel);
        rc = b->upload(b, (uint8_t *)p->w.q + MC_CU_HEAD + (size_t)i * f->q_panel, buf,
                       (size_t)n * f->q_panel);
        if (rc == 0 && f->scale_panel)
            rc = b->upload(b, (uint8_t *)p->w.scale + (size_t)i * f->scale_panel, scale,
                           (size_t)n * f->scale_panel);
        if (rc == 0 && f->zero_panel)
            rc = b->upload(b, (uint8_t *)p->w.zero + (size_t)i * f->zero_panel, zero,
                           (size_t)n * f->zero_panel);
    }
    return rc;
}

static int pack_run(struct mc_stream *s, const struct mc_pack_p *p)
{
    struct mc_backend *b = mc_cu_backend(s);
    uint8_t head[MC_CU_HEAD] = {0}, *buf;
    struct form f;
    size_t each;
    float *row;
    int32_t per;
    int rc = MC_K_ENOMEM;

    if (form_of(p, &f))
        return MC_K_EINTERNAL;
    if (p->w.layout == MC_W_E4M3 && has_nan(p))
        return MC_K_EARG;
    each = f.q_panel + f.scale_panel + f.zero_panel;
    per = each >= BUF_BYTES ? 1 : (int32_t)(BUF_BYTES / each);
    buf = malloc((size_t)per * each);
    row = malloc((size_t)p->w.k * sizeof *row);
    memcpy(head, &f.head, sizeof f.head);
    if (buf && row)
        rc = b->upload(b, p->w.q, head, sizeof head);
    if (rc == 0)
        rc = pack_all(b, p, &f, row, buf, per);
    free(buf);
    free(row);
    return rc;
}
MC_CU_OP(pack);

/* pack.c - disk formats into the panels of cpu.h. Plain C: it runs once, at load.
 *
 * Nothing is rounded: 4-bit formats stay 4 bits with the scales they came with (k-quants
 * too: 6-bit scales as bytes under one f16), 5-, 6- and 8-bit ones become int8. The
 * layout MC_W_F32 takes any format, decoded by mc_disk_row. Owns nothing; pack runs on a
 * stream's threads. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host/cast.h"

/* ---- what a slice becomes ---------------------------------------------------------- */

uint16_t mc_cpu_run_of(uint16_t disk_fmt)
{
    return disk_fmt < MC_N_DISK ? mc_cpu_forms[disk_fmt].layout : MC_W_F32;
}

static int32_t scale_bytes(uint16_t scales)
{
    switch (scales) {
    case S_NONE:
        return 0;
    case S_E4M3:
        return PANEL;
    case S_F16:
    case S_F16_8:
    case S_BF16_8:
        return 2 * PANEL;
    case S_F32:
    case S_F32_8:
    case S_F16_MIN:
        return 4 * PANEL;
    case S_F32_MIN:
        return 8 * PANEL;
    case S_K_MIN:
        return (4 + 16) * PANEL;
    default: /* S_K16 */
        return (2 + 16) * PANEL;
    }
}

/* The largest group not above `group` that cuts [k0, k0+k) where the disk's scales
 * change; scales are repeated when it is smaller. */
static int32_t fit_group(int32_t group, int32_t k0, int32_t k)
{
    while (group > 1 && (k0 % group != 0 || (k % group != 0 && k > group)))
        group = group % 2 == 0 ? group / 2 : 1;
    return group;
}

static const char *int_head(const struct mc_pack_p *p, const struct mc_cpu_form *f,
                            struct head *h)
{
    const struct mc_disk *d = &p->disk;

    h->scales = f->scales;
    h->step = f->step;
    h->group = f->group;
    if (d->fmt == MC_D_INT4) {
        h->group = fit_group(d->group, p->k0, p->w.k);
        if (h->group % BLOCK != 0)
            return "pack: an int4 group or cut that is no multiple of 32 columns";
        if (d->zero)
            h->scales = S_F32_MIN;
        else
            h->scales = d->scale_dt == MC_F16    ? S_F16_8
                        : d->scale_dt == MC_BF16 ? S_BF16_8
                                                 : S_F32_8;
    }
    if (p->w.k % BLOCK != 0)
        return "pack: quantised columns that are no multiple of 32";
    if (p->k0 % h->group != 0 || p->w.k % h->group != 0)
        return "pack: a cut inside a quantised block";
    h->panel_bytes = p->w.k * PANEL / (p->w.layout == MC_W_I8 ? 1 : 2);
    h->global = d->global * 0x1p-9f; /* tiles read e2m1 times 512 */
    return NULL;
}

static const char *float_head(const struct mc_pack_p *p, struct head *h)
{
    static const uint8_t bytes[MC_N_RUN] = {
        [MC_W_F32] = 4, [MC_W_F16] = 2, [MC_W_BF16] = 2, [MC_W_E4M3] = 1};

    h->scales = p->w.layout == MC_W_E4M3 ? S_F32 : S_NONE;
    h->group = p->w.k;
    if (p->w.layout == MC_W_E4M3 && p->disk.block_k < p->k0 + p->w.k)
        h->group = fit_group(p->disk.block_k, p->k0, p->w.k);
    h->panel_bytes = p->w.k * PANEL * bytes[p->w.layout];
    return NULL;
}

static const char *head_of(const struct mc_pack_p *p, struct head *h)
{
    const struct mc_cpu_form *f;
    const char *no = NULL;

    if (p->disk.fmt >= MC_N_DISK)
        return "pack: unknown disk format";
    if (p->w.n < 1 || p->w.k < 1 || p->row0 < 0 || p->k0 < 0 ||
        p->row0 > p->disk.n - p->w.n || p->k0 > p->disk.k - p->w.k)
        return "pack: the slice is outside the matrix";
    if (p->w.k > INT32_MAX / (PANEL * 4))
        return "pack: too many columns";
    f = &mc_cpu_forms[p->disk.fmt];
    *h = (struct head){0};
    if (p->w.layout != MC_W_F32 && p->w.layout != f->layout)
        return "pack: another run layout than the format's";
    if (is_int(p->w.layout))
        no = int_head(p, f, h);
    else
        no = float_head(p, h);
    h->scale_bytes = scale_bytes(h->scales);
    return no;
}

static int32_t groups(const struct mc_w *w, const struct head *h)
{
    return (w->k + h->group - 1) / h->group;
}

static int pack_need(const struct mc_pack_p *p, struct mc_need *need, const char **why)
{
    struct head h;
    const char *no = head_of(p, &h);

    if (no)
        return mc_refuse(why, no);
    need->q = HEAD + (size_t)panels(p->w.n) * (size_t)h.panel_bytes;
    need->scale = (size_t)panels(p->w.n) * (size_t)groups(&p->w, &h) *
                  (size_t)h.scale_bytes;
    return 0;
}

/* ---- pack -------------------------------------------------------------------------- */

/* 32 codes of lane j into a panel's block b. */
static void put_codes(uint16_t layout, uint8_t *panel, int32_t b, int j, const int8_t *c)
{
    int i, v;

    if (layout == MC_W_I8) {
        for (i = 0; i < BLOCK / 2; i++)
            memcpy(panel + ((int64_t)b * (BLOCK / 2) + i) * 2 * PANEL + 2 * j, c + 2 * i,
                   2);
        return;
    }
    for (v = 0; v < 4; v++) {
        uint32_t x = 0;

        for (i = 0; i < 4; i++)
            x |= (uint32_t)c[8 * v + 2 * i] << (4 * i) |
                 (uint32_t)c[8 * v + 2 * i + 1] << (16 + 4 * i);
        memcpy(panel + (((int64_t)b * 4 + v) * PANEL + j) * 4, &x, 4);
    }
}

static void pack_ints(const struct mc_pack_p *p, int32_t row, int j, uint8_t *panel)
{
    int8_t c[BLOCK];
    int32_t b;

    for (b = 0; b < p->w.k / BLOCK; b++) {
        mc_cpu_codes(&p->disk, row, p->k0 + b * BLOCK, c);
        put_codes(p->w.layout, panel, b, j, c);
    }
}

/* Floats keep their bits; MC_W_F32 takes any format through mc_disk_row. */
static void pack_floats(const struct mc_pack_p *p, int32_t row, int j, uint8_t *panel)
{
    const struct mc_disk *d = &p->disk;
    int64_t at = (int64_t)row * d->k + p->k0;
    float x[256];
    int32_t i, k, n;

    if (p->w.layout == MC_W_E4M3) {
        for (i = 0; i < p->w.k; i++)
            panel[i * PANEL + j] = ((const uint8_t *)d->q)[at + i];
    } else if (p->w.layout != MC_W_F32) {
        for (i = 0; i < p->w.k; i++)
            ((uint16_t *)panel)[i * PANEL + j] = ((const uint16_t *)d->q)[at + i];
    } else {
        for (k = 0; k < p->w.k; k += n) {
            n = p->w.k - k < 256 ? p->w.k - k : 256;
            mc_disk_row(d, row, p->k0 + k, p->k0 + k + n, x);
            for (i = 0; i < n; i++)
                ((float *)panel)[(k + i) * PANEL + j] = x[i];
        }
    }
}

static void pack_panels(void *ctx, int64_t i0, int64_t i1, int lane)
{
    const struct mc_pack_p *p = ctx;
    const struct head *h = p->w.q;
    int32_t n_group = groups(&p->w, h), r, g;
    bool ints = is_int(p->w.layout);
    int64_t i;

    (void)lane;
    for (i = i0; i < i1; i++) {
        uint8_t *panel = (uint8_t *)p->w.q + HEAD + i * h->panel_bytes;
        uint8_t *rec = (uint8_t *)p->w.scale + i * n_group * h->scale_bytes;

        memset(panel, 0, (size_t)h->panel_bytes);
        if (h->scale_bytes)
            memset(rec, 0, (size_t)n_group * (size_t)h->scale_bytes);
        for (r = (int32_t)i * PANEL; r < (i + 1) * PANEL && r < p->w.n; r++) {
            if (ints)
                pack_ints(p, p->row0 + r, r % PANEL, panel);
            else
                pack_floats(p, p->row0 + r, r % PANEL, panel);
            for (g = 0; g < n_group && h->scale_bytes; g++)
                mc_cpu_scales(&p->disk, h->scales, p->row0 + r, p->k0 + g * h->group,
                              r % PANEL, rec + (int64_t)g * h->scale_bytes);
        }
    }
}

/* The tiles' way of reading e4m3 has no NaN, and a weight that is one is of no use. */
static bool has_nan(const struct mc_pack_p *p)
{
    const uint8_t *q = (const uint8_t *)p->disk.q + (int64_t)p->row0 * p->disk.k + p->k0;
    int32_t r, k;

    for (r = 0; r < p->w.n; r++, q += p->disk.k)
        for (k = 0; k < p->w.k; k++)
            if ((q[k] & 0x7f) == 0x7f)
                return true;
    return false;
}

static int pack(struct mc_par *par, const struct mc_pack_p *p)
{
    struct head h;

    if (head_of(p, &h))
        return MC_K_EINTERNAL;
    if (p->w.layout == MC_W_E4M3 && has_nan(p))
        return MC_K_EARG;
    memset(p->w.q, 0, HEAD);
    memcpy(p->w.q, &h, sizeof h);
    mc_par_for(par, panels(p->w.n), 1, pack_panels, (void *)p);
    return 0;
}

MC_HOST_OP(mc_cpu_pack, pack, pack_need, pack);

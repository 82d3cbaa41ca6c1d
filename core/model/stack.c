/* stack.c - loading matrices that lie in one arena: experts, and MLA's absorbed heads.
 *
 * Owns nothing: the arenas are the model's. THREAD: loading.
 *
 * Experts are packed one by one, each straight from its own bytes, so that no second copy
 * of a layer is ever in memory. A latent's up-projection kv_b [h*(nope+v), c] is read
 * whole, since a head's rows straddle the scale blocks of its file, and becomes two
 * stacks: W_UK [c,nope] of each head, transposed, goes to the query, W_UV [v,c] to the
 * output. */
#include <stdlib.h>
#include <string.h>

#include "core/model/model_int.h"

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Takes the arena of n matrices that need `need` each; w points to the first. */
static int take_stack(struct mc_loader *l, const char *name, const struct mc_need *need,
                      int32_t n, struct mc_ws *out)
{
    struct mc_mem *mem = &l->m->mem;

    out->n = n;
    out->q_step = (int64_t)up64(need->q);
    out->scale_step = (int64_t)up64(need->scale);
    out->zero_step = (int64_t)up64(need->zero);
    out->w.q = mc_mem_take(mem, (size_t)n * (size_t)out->q_step);
    out->w.scale = mc_mem_take(mem, (size_t)n * (size_t)out->scale_step);
    out->w.zero = mc_mem_take(mem, (size_t)n * (size_t)out->zero_step);
    if ((need->q && !out->w.q) || (need->scale && !out->w.scale) ||
        (need->zero && !out->w.zero))
        return mc_fail(l->err, MC_ENOMEM, "no memory for %s: %d times %zu bytes", name, n,
                       need->q + need->scale + need->zero);
    return 0;
}

static void *step(void *base, int64_t by, int32_t i)
{
    return base ? (uint8_t *)base + by * i : NULL;
}

/* Matrix i of a stack. */
static struct mc_w member(const struct mc_ws *s, int32_t i)
{
    struct mc_w w = s->w;

    w.q = step(w.q, s->q_step, i);
    w.scale = step(w.scale, s->scale_step, i);
    w.zero = step(w.zero, s->zero_step, i);
    return w;
}

/* ---- experts ----------------------------------------------------------------------- */

static bool same_form(const struct mc_disk *a, const struct mc_disk *b)
{
    return a->fmt == b->fmt && a->scale_dt == b->scale_dt && a->group == b->group &&
           a->block_n == b->block_n && a->block_k == b->block_k && !a->zero == !b->zero;
}

/* One layout for all: that of the first, or f32 where they are stored unlike each other.
 */
static int stack_layout(struct mc_loader *l, const struct mc_tensor_spec *t,
                        uint16_t *out)
{
    struct mc_disk first, d;
    int rc = mc_load_find(l, t, 0, &first, NULL);

    if (rc < 0)
        return rc;
    *out = mc_load_layout(l, t, 0, &first);
    for (int32_t e = 1; e < t->count; e++) {
        rc = mc_load_find(l, t, e, &d, NULL);
        if (rc < 0)
            return rc;
        if (!same_form(&first, &d) || mc_load_layout(l, t, e, &d) != *out)
            *out = MC_W_F32;
    }
    return 0;
}

/* Packs expert e to its place; the first takes the arena for all. */
static int pack_expert(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                       const struct mc_disk *d, uint16_t layout, struct mc_ws *out)
{
    struct mc_need need = {0};
    struct mc_pack_p p;
    int rc = mc_load_cut(l, t, d, &p);

    if (rc < 0)
        return rc;
    p.w.layout = layout;
    rc = mc_load_need(l, t->name, &p, &need);
    if (rc == 0 && e == 0) {
        out->w = p.w;
        rc = take_stack(l, t->name, &need, t->count, out);
    }
    if (rc < 0)
        return rc;
    p.w = member(out, e);
    return mc_load_pack(l, t->name, &p);
}

int mc_load_experts(struct mc_loader *l, const struct mc_tensor_spec *t,
                    struct mc_ws *out)
{
    uint16_t layout;
    int rc = stack_layout(l, t, &layout);

    for (int32_t e = 0; e < t->count && rc == 0; e++) {
        struct mc_disk d;
        void *own = NULL;

        rc = mc_load_find(l, t, e, &d, &own);
        if (rc == 0)
            rc = pack_expert(l, t, e, &d, layout, out);
        free(own);
    }
    return rc;
}

/* ---- kv_b -------------------------------------------------------------------------- */

static uint16_t bf16_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* The run layout of both stacks. Floats that are more than bf16 stay f32 where the backend
 * has that; what a file quantises becomes bf16, and on the oracle, whose form of bf16 is
 * f32, loses nothing. */
static uint16_t latent_layout(const struct mc_backend *be, const struct mc_disk *d)
{
    int64_t n = (int64_t)d->n * d->k;
    bool wide = d->fmt == MC_D_F16;

    for (int64_t i = 0; d->fmt == MC_D_F32 && i < n && !wide; i++) {
        uint32_t u;

        memcpy(&u, (const float *)d->q + i, sizeof u);
        wide = u & 0xFFFF;
    }
    return be->run_of(be, wide ? MC_D_F32 : MC_D_BF16);
}

/* Packs head i of a stack from f32 values [n,k]. */
static int pack_head(struct mc_loader *l, const char *name, uint16_t layout, float *x,
                     int32_t n, int32_t k, int32_t i, struct mc_ws *out)
{
    struct mc_backend *be = l->m->be;
    bool exact = layout == MC_W_F32;
    struct mc_pack_p p = {
        .disk = {.fmt = exact ? MC_D_F32 : MC_D_BF16, .n = n, .k = k, .q = x},
        .w = {.layout = layout, .dt = be->row_dt, .n = n, .k = k}};
    struct mc_need need = {0};
    int rc = mc_load_need(l, name, &p, &need);

    for (int64_t j = 0; j < (int64_t)n * k && !exact; j++)
        ((uint16_t *)x)[j] = bf16_of(
            x[j]); /* in place: behind what is still to be read */
    if (rc == 0 && i == 0) {
        out->w = p.w;
        rc = take_stack(l, name, &need, l->m->heads.n, out);
    }
    if (rc < 0)
        return rc;
    p.w = member(out, i);
    return mc_load_pack(l, name, &p);
}

int mc_load_latent(struct mc_loader *l, const struct mc_tensor_spec *t,
                   struct mc_layer *y)
{
    const struct mc_config *c = &l->m->cfg;
    int32_t nope = c->nope, v = c->v_dim, k = c->kv_lora;
    size_t widest = (size_t)(nope > v ? nope : v) * (size_t)k;
    float *x = malloc(widest * sizeof *x), *row = malloc((size_t)k * sizeof *row);
    struct mc_disk d;
    void *own = NULL;
    int rc = mc_load_find(l, t, 0, &d, &own);
    uint16_t layout = rc == 0 ? latent_layout(l->m->be, &d) : 0;

    if (rc == 0 && (!x || !row))
        rc = mc_fail(l->err, MC_ENOMEM, "no memory for %s", t->name);
    for (int32_t i = 0; i < l->m->heads.n && rc == 0; i++) {
        int32_t at = (l->m->heads.at + i) * (nope + v);

        for (int32_t r = 0; r < nope; r++) {
            mc_disk_row(&d, at + r, 0, k, row);
            for (int32_t j = 0; j < k; j++)
                x[(int64_t)j * nope + r] = row[j];
        }
        rc = pack_head(l, t->name, layout, x, k, nope, i, &y->w_uk);
        for (int32_t r = 0; r < v && rc == 0; r++)
            mc_disk_row(&d, at + nope + r, 0, k, x + (int64_t)r * k);
        if (rc == 0)
            rc = pack_head(l, t->name, layout, x, v, k, i, &y->w_uv);
    }
    if (rc == 0)
        mc_ckpt_drop(l->c, d.q, mc_disk_bytes(d.fmt, d.n, d.k));
    free(own);
    free(x);
    free(row);
    return rc;
}

/* ckpt_fuzz.h - a checkpoint made of bytes in memory, and everything asked of it. */
#ifndef MC_FUZZ_CKPT_FUZZ_H
#define MC_FUZZ_CKPT_FUZZ_H

#include <stdlib.h>
#include <string.h>

#include "core/model/config.h"
#include "core/weights/ckpt_int.h"

static inline struct mc_ckpt *ckpt_of(enum mc_ckpt_kind kind, const uint8_t *p, size_t n)
{
    struct mc_ckpt *c = calloc(1, sizeof *c);

    if (!c)
        abort();
    c->map = calloc(1, sizeof *c->map);
    if (!c->map)
        abort();
    c->kind = kind;
    c->dir = -1;
    c->n_map = 1;
    c->map[0].name = strdup("fuzz");
    c->map[0].p = p;
    c->map[0].n = n;
    c->map[0].fd = -1;
    return c;
}

static inline void ckpt_free(struct mc_ckpt *c)
{
    c->map[0].p = NULL; /* no map to undo */
    mc_ckpt_close(c);
}

/* The first and last row of a matrix. */
static inline void decode(const struct mc_disk *d)
{
    float *row = malloc((size_t)d->k * sizeof *row);

    if (!row)
        abort();
    mc_disk_row(d, 0, 0, d->k, row);
    mc_disk_row(d, d->n - 1, 0, d->k, row);
    free(row);
}

/* Each tensor as a matrix's part, as a vector, and byte by byte. */
static inline void ask_tensors(const struct mc_ckpt *c)
{
    struct mc_err err = {0};

    for (int32_t i = 0; i < mc_ckpt_n(c); i++) {
        const struct mc_stored *t = mc_ckpt_at(c, i);
        char module[300];
        struct mc_disk d;
        void *own = NULL;
        float v[8];
        volatile uint8_t sum = 0; /* so that the reads are made */

        for (uint64_t b = 0; b < t->bytes; b++)
            sum = (uint8_t)(sum + ((const uint8_t *)t->data)[b]);
        snprintf(module, sizeof module, "%s", c->tensor[i].hf);
        if (mc_ckpt_find(c, module) != t)
            abort();
        mc_ckpt_vector(c, module,
                       t->n_dim == 1 && t->dim[0] <= 8 ? (int32_t)t->dim[0] : 1, v, &err);
        if (strrchr(module, '.'))
            *strrchr(module, '.') = 0;
        if (mc_ckpt_matrix_own(c, module, &d, NULL, &err) < 0)
            continue;
        if (mc_ckpt_matrix_own(c, module, &d, &own, &err) == 0)
            decode(&d);
        free(own);
    }
}

#endif

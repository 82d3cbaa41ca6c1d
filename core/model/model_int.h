/* model_int.h - between the files that load a model.
 *
 * OWNS nothing. THREAD: loading. */
#ifndef MC_MODEL_MODEL_INT_H
#define MC_MODEL_MODEL_INT_H

#include "core/model/model.h"
#include "core/weights/weights.h"

struct mc_loader {
    struct mc_model *m;
    const struct mc_ckpt *c;
    struct mc_stream *s;
    void *stage; /* of MC_STAGE bytes, once anything was read: see model.c */
    struct mc_err *err;
};
enum { MC_STAGE = 64 << 20 }; /* longer matrices get memory of their own */

/* Finds the matrix and checks that its shape is that of the spec. *own is to be freed when
 * d was packed; own NULL: only the form is wanted. */
int mc_load_find(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                 struct mc_disk *d, void **own);
/* The rows and columns that this rank has of the spec's matrix. */
int mc_load_cut(struct mc_loader *l, const struct mc_tensor_spec *t,
                const struct mc_disk *d, struct mc_pack_p *p);
/* What the packed slice needs, or why the backend refuses it. */
int mc_load_need(struct mc_loader *l, const char *name, struct mc_pack_p *p,
                 struct mc_need *need);
/* Packs the slice to where p->w points, and lets go of its bytes in the file. */
int mc_load_pack(struct mc_loader *l, const char *name, const struct mc_pack_p *p);
/* The run layout that spec t takes, whose disk form is d. */
uint16_t mc_load_layout(struct mc_loader *l, const struct mc_tensor_spec *t, int32_t e,
                        const struct mc_disk *d);

/* stack.c: matrices that lie in one arena. */
int mc_load_experts(struct mc_loader *l, const struct mc_tensor_spec *t,
                    struct mc_ws *out);
int mc_load_latent(struct mc_loader *l, const struct mc_tensor_spec *t,
                   struct mc_layer *y);

/* scales.c */
int mc_load_scales(struct mc_loader *l);

#endif

/* ref.c - the reference backend: scalar bodies that are obviously right.
 *
 * It is the oracle for every other backend: with activations in f32 it is compared with
 * other programs, with ref_act it rounds activations where another backend does, so that
 * the two are compared at equal rounding. Owns the backend. THREAD: any. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ref/ref.h"

struct ref {
    struct mc_host host; /* first */
    uint16_t act;
};

static uint16_t run_of(const struct mc_backend *b, uint16_t disk_fmt)
{
    (void)b;
    (void)disk_fmt;
    return MC_W_F32;
}

static uint16_t act_of(const struct mc_backend *b, uint16_t run_layout)
{
    (void)run_layout;
    return ((const struct ref *)b)->act;
}

static void ref_close(struct mc_backend *b)
{
    free(b);
}

struct mc_backend *mc_ref_open(const struct mc_backend_opts *o, const char **why)
{
    struct ref *r;
    struct mc_backend *b;

    if (o->ref_act >= MC_N_ACT) {
        *why = "ref: unknown activation layout";
        return NULL;
    }
    r = calloc(1, sizeof *r);
    if (!r) {
        *why = "ref: out of memory";
        return NULL;
    }
    mc_host_init(&r->host, "ref", o);
    r->act = o->ref_act < 0 ? MC_A_F32 : (uint16_t)o->ref_act;
    b = &r->host.b;
    snprintf(b->what, sizeof b->what, "scalar, %d threads", r->host.threads);
    b->run_of = run_of;
    b->act_of = act_of;
    b->close = ref_close;
    b->op[MC_OP_pack] = &mc_ref_pack;
    b->op[MC_OP_embed] = &mc_ref_embed;
    b->op[MC_OP_join] = &mc_ref_join;
    b->op[MC_OP_linear] = &mc_ref_linear;
    b->op[MC_OP_glu] = &mc_ref_glu;
    b->op[MC_OP_quant] = &mc_ref_quant;
    b->op[MC_OP_gqa_prep] = &mc_ref_gqa_prep;
    b->op[MC_OP_gqa_attn] = &mc_ref_gqa_attn;
    b->op[MC_OP_attn_merge] = &mc_ref_attn_merge;
    b->op[MC_OP_mla_prep] = &mc_ref_mla_prep;
    b->op[MC_OP_mla_q] = &mc_ref_mla_q;
    b->op[MC_OP_mla_attn] = &mc_ref_mla_attn;
    b->op[MC_OP_mla_out] = &mc_ref_mla_out;
    b->op[MC_OP_attn_ragged] = &mc_ref_attn_ragged;
    b->op[MC_OP_dsa_prep] = &mc_ref_dsa_prep;
    b->op[MC_OP_dsa_topk] = &mc_ref_dsa_topk;
    b->op[MC_OP_route] = &mc_ref_route;
    b->op[MC_OP_moe] = &mc_ref_moe;
    b->op[MC_OP_mtp_in] = &mc_ref_mtp_in;
    b->op[MC_OP_tensor] = &mc_ref_tensor;
    return b;
}

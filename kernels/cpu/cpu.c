/* cpu.c - the CPU backend: picks the instruction set, says which layouts there are.
 *
 * One binary holds the bodies of every width (body_*.c, pages_*.c); the processor, or opts.cpu,
 * chooses at open. Owns the backend struct; THREAD: any. */
#include "kernels/cpu/cpu.h"

#include "kernels/ref/ref.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct set {
    const char *name, *what;
    bool (*runs)(void);
    const struct mc_op *op[MC_N_OP];
};

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

static bool always(void)
{
    return true;
}

#define OP(op, isa) [MC_OP_##op] = &mc_cpu_##op##_##isa,
#define OPS(isa) {MC_CPU_OPS(OP, isa)}

static const struct set sets[] = { /* best first */
#if defined(__x86_64__)
    {"avx512", "avx512-vnni", has_avx512, OPS(avx512)},
    {"avx2", "avx2", has_avx2, OPS(avx2)},
#endif
    {"portable", "portable", always, OPS(portable)},
};

static const struct set *pick(const char *name, const char **why)
{
    size_t i;

    for (i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (name && strcmp(name, sets[i].name) != 0)
            continue;
        if (sets[i].runs())
            return &sets[i];
        if (name) {
            *why = "cpu: this processor lacks the instruction set asked for";
            return NULL;
        }
    }
    *why = "cpu: the instruction set is none of portable, avx2, avx512";
    return NULL;
}

/* What reads no packed weights the oracle can do in their place: sizes that are no whole
 * vectors, or that no table of theirs has room for. */
static const struct mc_op *const any_size[MC_N_OP] = {
    [MC_OP_join] = &mc_ref_join,           [MC_OP_gqa_prep] = &mc_ref_gqa_prep,
    [MC_OP_gqa_attn] = &mc_ref_gqa_attn,   [MC_OP_attn_merge] = &mc_ref_attn_merge,
    [MC_OP_mla_prep] = &mc_ref_mla_prep,   [MC_OP_mla_attn] = &mc_ref_mla_attn,
    [MC_OP_dsa_prep] = &mc_ref_dsa_prep,   [MC_OP_dsa_topk] = &mc_ref_dsa_topk,
    [MC_OP_mtp_in] = &mc_ref_mtp_in,
};

static uint16_t run_of(const struct mc_backend *b, uint16_t disk_fmt)
{
    (void)b;
    return mc_cpu_run_of(disk_fmt);
}

static uint16_t act_of(const struct mc_backend *b, uint16_t run_layout)
{
    (void)b;
    return is_int(run_layout) ? MC_A_I16 : MC_A_F32;
}

static void cpu_close(struct mc_backend *b)
{
    free(b);
}

struct mc_backend *mc_cpu_open(const struct mc_backend_opts *o, const char **why)
{
    const struct set *set = pick(o->cpu, why);
    struct mc_host *h;
    struct mc_backend *b;
    int i;

    if (!set)
        return NULL;
    h = calloc(1, sizeof *h);
    if (!h) {
        *why = "cpu: out of memory";
        return NULL;
    }
    mc_host_init(h, "cpu", o);
    b = &h->b;
    snprintf(b->what, sizeof b->what, "%s, %d threads", set->what, h->threads);
    b->run_of = run_of;
    b->act_of = act_of;
    b->close = cpu_close;
    b->op[MC_OP_pack] = &mc_cpu_pack;
    for (i = 0; i < MC_N_OP; i++)
        if (set->op[i])
            b->op[i] = set->op[i];
    memcpy(b->any, any_size, sizeof any_size);
    return b;
}

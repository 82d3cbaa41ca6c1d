/* bench_experts.c - how fast are the CPU backend's experts and its attention over latents?
 *
 *   build/bench_experts [--cpu NAME] [--threads N] [--only WORD] [--clock wall|cpu]
 *
 * Sections: moe (Kimi's shape, 7168 by 2048, 8 of 8 experts: bytes of weights read and share
 * of the roof; with more rows FLOP/s), latent (decode over c 512 + r 64 at 4,096 tokens),
 * long (prefill of 8 heads of 128 + 64: the absorbed form against the expanded one, by rows
 * of the chunk and tokens before it: where attn_ragged begins to pay). See bench.h. */
#include "tests/bench/bench.h"

/* Best of a few rounds of `calls` enqueued by go. */
static double best_of(void (*go)(void *p), void *p, int rounds)
{
    double best = 1e9, t;
    int r;

    for (r = 0; r < rounds; r++) {
        t = now();
        go(p);
        finish();
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

static struct mc_act act_memory(uint16_t layout, size_t rows, int32_t k)
{
    size_t n = rows * (size_t)k;

    return (struct mc_act){.x = memory(n * 4),
                           .s = memory(n / 8),
                           .bf = memory(n / 8),
                           .k = k,
                           .layout = layout};
}

/* ---- moe --------------------------------------------------------------------------- */

enum { E = 8, H = 7168, INNER = 2048, MOST = 64 };

static void go_moe(void *p)
{
    mc_k_moe(be, stream, p);
}

/* E copies of one matrix, each in memory of its own. */
static struct mc_ws copies_of(const struct fmt *f, int32_t n, int32_t k)
{
    struct mc_w one = packed(f, n, k);
    struct mc_pack_p p = {.disk = {.fmt = f->fmt, .n = n, .k = k, .group = f->group,
                                   .block_n = 128, .block_k = 128,
                                   .scale_dt = f->fmt == MC_D_INT4 ? MC_BF16 : MC_F32},
                          .w = one};
    struct mc_ws s = {.w = one, .n = E};
    struct mc_need need;
    const char *why = "";
    int i;

    if (be->op[MC_OP_pack]->need(&p, &need, &why) != 0)
        die(f->name, why);
    s.q_step = (int64_t)(need.q + 63) / 64 * 64;
    s.scale_step = (int64_t)(need.scale + 63) / 64 * 64;
    s.w.q = memory((size_t)s.q_step * E);
    s.w.scale = memory((size_t)s.scale_step * E);
    for (i = 0; i < E; i++) {
        memcpy((uint8_t *)s.w.q + i * s.q_step, one.q, need.q);
        memcpy((uint8_t *)s.w.scale + i * s.scale_step, one.scale, need.scale);
    }
    return s;
}

static void bench_experts(const struct fmt *f)
{
    static int32_t ids[MOST * E], order[MOST * E], offset[E + 1];
    static const int32_t rows_of[] = {1, 4, 16, 64};
    static float weights[MOST * E];
    int32_t rows, t, i, r;
    struct mc_moe_p p = {.n_live = &rows, .cap = MOST, .top_k = E, .ids = ids,
                         .offset = offset, .order = order, .weights = weights,
                         .gate = copies_of(f, INNER, H), .up = copies_of(f, INNER, H),
                         .down = copies_of(f, H, INNER), .y = memory((size_t)MOST * H * 4)};
    double bytes = (double)(p.gate.w.bytes + p.up.w.bytes + p.down.w.bytes) * E, best;
    uint16_t layout = be->act_of(be, p.gate.w.layout);

    p.act = act_memory(layout, MOST, H);
    p.mid = act_memory(layout, (size_t)MOST * E, INNER);
    p.scratch = memory((size_t)MOST * E * H * 4);
    printf("moe         %-9s", f->name);
    for (r = 0; r < 4; r++) {
        rows = rows_of[r];
        for (t = 0; t < rows; t++)
            for (i = 0; i < E; i++) {
                ids[t * E + i] = i;
                order[i * rows + t] = t * E + i;
            }
        for (i = 0; i <= E; i++)
            offset[i] = i * rows;
        best = best_of(go_moe, &p, r < 2 ? ROUNDS : 3);
        printf("  %2d rows: %6.1f GB/s = %3.0f%% %5.0f GFLOP/s", rows,
               bytes / best * 1e-9, bytes / best * 1e-7 / roof,
               6.0 * rows * E * H * INNER / best * 1e-9);
    }
    printf("\n");
}

static void bench_moe(void)
{
    size_t i;

    for (i = 0; i < sizeof fmts / sizeof fmts[0]; i++)
        if (fmts[i].fmt == MC_D_INT4 || fmts[i].fmt == MC_D_NVFP4 ||
            fmts[i].fmt == MC_D_E4M3 || fmts[i].fmt == MC_D_Q4_K)
            bench_experts(&fmts[i]);
}

/* ---- latents ----------------------------------------------------------------------- */

enum {
    C = 512,
    R = 64,
    SEQS = 16,
    LAYERS = 4,
    CAP = 1024,
    BLOCKS = 128,
    NOPE = 128,
    V = 128
};

static struct mc_slot slots[SEQS];
static int32_t table[SEQS * BLOCKS], live[4], pos[CAP], row_seq[CAP], q0[SEQS + 1],
    slot[SEQS];

static struct mc_rows rows_view(void)
{
    return (struct mc_rows){.cap = CAP, .cap_seq = SEQS, .live = live, .pos = pos,
                            .row_seq = row_seq, .q0 = q0, .kv_len = pos, .slot = slot};
}

/* Pages for SEQS sequences of n_block pages, each value a plain small number. */
static struct mc_kv latent_pool(uint16_t layout, int32_t n_block)
{
    struct mc_kv kv = {.table = table, .pitch = BLOCKS, .n_page = SEQS * n_block,
                       .n_slot = SEQS, .c = C, .r = R, .n_layer = LAYERS, .n_shard = 1,
                       .layout = layout};
    int32_t s, i;

    kv.layer_stride = MC_PAGE * mc_mla_token_bytes(layout, C, R);
    kv.page_stride = kv.layer_stride * LAYERS;
    kv.base = memory((size_t)(kv.page_stride * kv.n_page));
    memset(kv.base, 0x11, (size_t)(kv.page_stride * kv.n_page));
    for (s = 0; s < SEQS; s++)
        for (i = 0; i < n_block; i++)
            table[s * BLOCKS + i] = s * n_block + i;
    return kv;
}

static void go_latent(void *ctx)
{
    struct mc_mla_attn_p *p = ctx;

    for (p->layer = 0; p->layer < LAYERS; p->layer++)
        mc_k_mla_attn(be, stream, p);
}

static void bench_decode(uint16_t layout, const char *name, int32_t n_seq, int32_t h)
{
    enum { CTX = 4096 };
    struct mc_mla_attn_p p = {.kv = latent_pool(layout, CTX / MC_PAGE), .slots = slots, .h = h,
                              .n_part = CTX / MC_SPLIT, .cap_decode = SEQS, .scale = 0.1f};
    size_t pool = (size_t)(p.kv.page_stride * p.kv.n_page);
    size_t parts = (size_t)SEQS * (CTX / MC_SPLIT) * (size_t)h;
    double best, bytes = (double)mc_mla_token_bytes(layout, C, R) * CTX * n_seq;
    double flops = 2.0 * (2 * C + R) * h * CTX * n_seq;
    int32_t i;

    for (i = 0; i < 4; i++)
        live[i] = n_seq;
    for (i = 0; i < n_seq; i++) {
        pos[i] = CTX - 1;
        row_seq[i] = slot[i] = q0[i] = i;
    }
    p.rows = rows_view();
    p.q = memory((size_t)SEQS * (size_t)h * (C + R) * 4);
    p.o = memory(parts * C * 4);
    p.ml = memory(parts * 8);
    best = best_of(go_latent, &p, 5) / LAYERS;
    printf("latent      %-9s %2d rows of %3d heads at %d: %8.0f us a layer %6.1f GB/s = "
           "%3.0f%% "
           "%5.0f GFLOP/s\n",
           name, n_seq, h, CTX, best * 1e6, bytes / best * 1e-9,
           bytes / best * 1e-7 / roof, flops / best * 1e-9);
    be->release(be, p.kv.base, pool);
    be->release(be, (void *)p.q, (size_t)SEQS * (size_t)h * (C + R) * 4);
    be->release(be, p.o, parts * C * 4);
    be->release(be, p.ml, parts * 8);
}

static void bench_latent(void)
{
    int32_t n, h;

    for (h = 8; h <= 64; h *= 8)
        for (n = 1; n <= 8; n *= 8) {
            bench_decode(MC_KV_F32, "f32", n, h);
            bench_decode(MC_KV_BF16, "bf16", n, h);
            bench_decode(MC_KV_FP8_656, "fp8-656", n, h);
        }
}

/* ---- long chunks ------------------------------------------------------------------- */

struct forms {
    struct mc_mla_q_p q;
    struct mc_mla_attn_p attn;
    struct mc_attn_merge_p merge;
    struct mc_mla_out_p out;
    struct mc_attn_ragged_p ragged;
};

static void go_forms(void *ctx)
{
    struct forms *f = ctx;

    mc_k_mla_q(be, stream, &f->q);
    mc_k_mla_attn(be, stream, &f->attn);
    mc_k_attn_merge(be, stream, &f->merge);
    mc_k_mla_out(be, stream, &f->out);
    if (f->ragged.long_rows)
        mc_k_attn_ragged(be, stream, &f->ragged);
}

static void forms_long(struct forms *f, int32_t long_rows)
{
    f->q.long_rows = f->attn.long_rows = f->out.long_rows = f->ragged.long_rows =
        long_rows;
}

static void bench_long(void)
{
    enum { HEADS = 8 };
    static const int32_t chunks[] = {8, 16, 32, 64, 128, 256, 512}, before[] = {0, 1024, 4096};
    static float inv[R / 2];
    struct mc_ws uk = copies_of(&fmts[9], C, NOPE), uv = copies_of(&fmts[9], V, C);
    struct mc_kv kv = latent_pool(MC_KV_BF16, BLOCKS);
    void *lat = memory((size_t)CAP * HEADS * (C + R) * 4);
    struct mc_rope rope = {inv, 1, R, NOPE, MC_ROPE_NEIGHBOURS};
    struct forms f = {
        .q = {.h = HEADS, .nope = NOPE, .c = C, .q = memory((size_t)CAP * HEADS * 192 * 4),
              .w_uk = uk, .rope = rope, .out = lat},
        .attn = {.kv = kv, .slots = slots, .h = HEADS, .n_part = 1, .cap_decode = 0,
                 .scale = 0.1f, .q = lat, .o = memory((size_t)CAP * HEADS * C * 4),
                 .ml = memory((size_t)CAP * HEADS * 8)},
        .merge = {.h = HEADS, .d = C, .n_part = 1, .out = lat},
        .out = {.h = HEADS, .c = C, .v = V, .o_lat = lat, .w_uv = uv,
                .act = act_memory(MC_A_F32, CAP, HEADS * V)},
        .ragged = {.kv = kv, .slots = slots, .h = HEADS, .nope = NOPE, .v = V, .scale = 0.1f,
                   .kv_b = packed(&fmts[9], HEADS * (NOPE + V), C)}};
    size_t i, j;
    int32_t t;

    f.ragged.q = f.q.q;
    f.ragged.act = f.out.act;
    f.merge.o = f.attn.o;
    f.merge.ml = f.attn.ml;
    for (j = 0; j < 3; j++)
        for (i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            double absorbed, expanded;
            int32_t n = chunks[i];

            for (t = 0; t < n; t++) {
                pos[t] = before[j] + t;
                row_seq[t] = 0;
            }
            live[0] = n, live[1] = 0, live[2] = 1;
            q0[1] = n;
            f.q.rows = f.attn.rows = f.merge.rows = f.out.rows = f.ragged.rows =
                rows_view();
            forms_long(&f, 0);
            absorbed = best_of(go_forms, &f, 5);
            forms_long(&f, 1);
            expanded = best_of(go_forms, &f, 5);
            printf("long        %3d rows behind %4d: absorbed %8.0f us, expanded %8.0f "
                   "us, %.2f\n",
                   n, before[j], absorbed * 1e6, expanded * 1e6, absorbed / expanded);
        }
}

int main(int argc, char **argv)
{
    const char *only = bench_open(argc, argv);

    if (strstr("moe", only))
        bench_moe();
    if (strstr("latent", only))
        bench_latent();
    if (strstr("long", only))
        bench_long();
    bench_close();
    return 0;
}

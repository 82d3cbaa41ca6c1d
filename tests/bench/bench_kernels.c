/* bench_kernels.c - how fast are the CPU backend's operations, and what share of the roof?
 *
 *   build/bench_kernels [--cpu NAME] [--threads N] [--only WORD] [--clock wall|cpu]
 *
 * Sections (--only picks by name): roof (read bandwidth of the two working sets used below),
 * linear (every disk format, 1 to 512 rows), attention (decode at 2,048 tokens), vocab (chain
 * and sample). Matrices are as many copies as make 96 MiB, walked in turn, as the layers of a
 * model are: nothing that the next layer evicts is found in a cache. Every figure is the best
 * of several rounds, since the machine is shared; compare only figures of one run. --clock cpu
 * takes the threads' own time, which a crowded machine spoils less. */
#include "tests/bench/bench.h"

enum { MAX_COPIES = 512 };

/* ---- roof -------------------------------------------------------------------------- */

static void bench_roof(void)
{
    int t;

    for (t = 1; t <= n_threads && t <= 64; t *= 2)
        printf("roof        %2d threads   96 MiB %6.1f GB/s   1 GiB %6.1f GB/s\n", t,
               read_speed(WALK, t), read_speed((size_t)1 << 30, t));
}

/* ---- linear ------------------------------------------------------------------------ */

static void bench_matrix(const struct fmt *f, int32_t n, int32_t k)
{
    static const int32_t rows_of[] = {1, 4, 16, 64, 512};
    static struct mc_w w[MAX_COPIES];
    int32_t rows, copies = 0, i, j, r;
    struct mc_linear_p p = {.n_live = &rows, .cap = 512, .n_w = 1, .y_dt = MC_F32,
                            .pitch = {n}};

    do
        w[copies] = packed(f, n, k);
    while (++copies < MAX_COPIES && w[0].bytes * (size_t)copies < WALK);
    p.act = (struct mc_act){.x = memory(512 * (size_t)k * 4),
                            .s = memory(512 * (size_t)k / 8),
                            .bf = memory(512 * (size_t)k / 8),
                            .k = k,
                            .layout = be->act_of(be, w[0].layout)};
    p.y[0] = memory(512 * (size_t)n * 4);
    printf("%-9s %5d x %-5d", f->name, n, k);
    for (i = 0; i < 5; i++) {
        int32_t use = copies;
        double best = 1e9, t, macs;

        rows = rows_of[i];
        macs = (double)rows * n * k;
        while (use > 1 && macs * use > 2e10)
            use /= 2;
        for (r = 0; r < ROUNDS; r++) {
            t = now();
            for (j = 0; j < use; j++) {
                p.w[0] = w[j];
                mc_k_linear(be, stream, &p);
            }
            finish();
            t = (now() - t) / use;
            best = t < best ? t : best;
        }
        if (i == 0)
            printf("  %6.1f GB/s = %3.0f%%", (double)w[0].bytes / best * 1e-9,
                   (double)w[0].bytes / best * 1e-7 / roof);
        else
            printf("  %3d: %6.0f", rows, 2 * macs / best * 1e-9);
    }
    printf(" GFLOP/s\n");
    for (i = 0; i < copies; i++) {
        struct mc_w *x = &w[i];

        /* sizes as given to memory() */
        struct mc_pack_p q = {.disk = {.fmt = f->fmt, .n = n, .k = k, .group = f->group,
                                       .block_n = 128, .block_k = 128},
                              .w = *x};
        struct mc_need need;
        const char *why;

        be->op[MC_OP_pack]->need(&q, &need, &why);
        be->release(be, x->q, need.q);
        be->release(be, x->scale, need.scale ? need.scale : 1);
    }
    be->release(be, p.act.x, 512 * (size_t)k * 4);
    be->release(be, p.act.s, 512 * (size_t)k / 8);
    be->release(be, p.act.bf, 512 * (size_t)k / 8);
    be->release(be, p.y[0], 512 * (size_t)n * 4);
}

static void bench_linear(void)
{
    static const int32_t shape[][2] = {{1536, 576}, {576, 1536}, {49152, 576}, {4096, 4096}};
    size_t i, j;

    for (i = 0; i < sizeof fmts / sizeof fmts[0]; i++)
        for (j = 0; j < 4; j++)
            if (shape[j][1] % fmts[i].unit == 0)
                bench_matrix(&fmts[i], shape[j][0], shape[j][1]);
}

/* ---- attention --------------------------------------------------------------------- */

static void bench_layout(uint16_t layout, const char *name, int32_t n_seq)
{
    enum { CTX = 2048, H = 9, HK = 3, D = 64, LAYERS = 30, PITCH = CTX / MC_PAGE };
    static int32_t tok[16], pos[16], row_seq[16], q0[17], kv_len[16], slot[16];
    static int32_t table[16 * PITCH];
    static struct mc_slot slots[16];
    int32_t live[4] = {n_seq, n_seq, n_seq, n_seq}, i, r;
    int64_t bytes = mc_kv_layer_bytes(layout, HK, D);
    struct mc_kv kv = {.table = table, .pitch = PITCH, .n_page = n_seq * PITCH,
                       .n_slot = n_seq, .hk = HK, .d = D, .n_layer = LAYERS, .n_shard = 1,
                       .layout = layout, .layer_stride = bytes, .page_stride = bytes * LAYERS};
    size_t pool = (size_t)(kv.page_stride * kv.n_page);
    struct mc_gqa_attn_p p = {.rows = {.cap = 16, .cap_seq = 16, .live = live, .tok = tok,
                                       .pos = pos, .row_seq = row_seq, .q0 = q0,
                                       .kv_len = kv_len, .slot = slot},
                              .slots = slots, .h = H, .n_part = CTX / MC_SPLIT,
                              .cap_decode = 16, .scale = 0.125f};
    size_t o_bytes = (size_t)16 * (CTX / MC_SPLIT) * H * D * 4, q_bytes = 16 * H * D * 4;
    double best = 1e9, t;

    kv.base = memory(pool);
    memset(kv.base, 0x11, pool);
    for (i = 0; i < n_seq; i++) {
        pos[i] = CTX - 1;
        row_seq[i] = slot[i] = q0[i] = i;
        kv_len[i] = CTX;
    }
    for (i = 0; i < n_seq * PITCH; i++)
        table[i] = i;
    p.kv = kv;
    p.q = memory(q_bytes);
    p.o = memory(o_bytes);
    p.ml = memory(o_bytes);
    for (r = 0; r < ROUNDS; r++) {
        t = now();
        for (p.layer = 0; p.layer < LAYERS; p.layer++)
            mc_k_gqa_attn(be, stream, &p);
        finish();
        t = (now() - t) / LAYERS;
        best = t < best ? t : best;
    }
    bytes = bytes * CTX / MC_PAGE * n_seq;
    printf("attention   %-5s %2d rows at %d   %7.1f us a layer   %6.1f GB/s = %3.0f%%\n",
           name, n_seq, CTX, best * 1e6, (double)bytes / best * 1e-9,
           (double)bytes / best * 1e-7 / roof);
    be->release(be, kv.base, pool);
    be->release(be, (void *)p.q, q_bytes);
    be->release(be, p.o, o_bytes);
    be->release(be, p.ml, o_bytes);
}

static void bench_attention(void)
{
    int32_t n;

    for (n = 1; n <= 16; n *= 16) {
        bench_layout(MC_KV_F32, "f32", n);
        bench_layout(MC_KV_BF16, "bf16", n);
        bench_layout(MC_KV_FP8, "fp8", n);
    }
}

/* ---- chain and sample -------------------------------------------------------------- */

static void bench_rows(int32_t vocab, int32_t n, const char *how, struct mc_samp samp)
{
    static int32_t row_seq[64], q0[65], slot[64], out_row[64], pos[64];
    static struct mc_slot slots[64];
    int32_t live[4] = {n, n, n, n}, i, r;
    size_t bytes = (size_t)n * (size_t)vocab * 4;
    struct mc_rows rows = {.cap = 64, .cap_seq = 64, .cap_out = 64, .live = live, .pos = pos,
                           .row_seq = row_seq, .q0 = q0, .slot = slot, .out_row = out_row};
    float *logits = memory(bytes), *raw = memory(bytes), *fresh = memory(bytes);
    float *stat = memory(64 * 16);
    uint16_t *counts = memory((size_t)64 * (size_t)vocab * 2);
    struct mc_bias *bias = memory(64 * MC_MAX_BIAS * sizeof *bias);
    struct mc_out *out = memory(64 * sizeof *out);
    struct mc_chain_p c = {.rows = rows, .logits = logits, .raw = raw, .vocab = vocab,
                           .n_real = vocab, .pitch = vocab, .slots = slots, .counts = counts,
                           .bias = bias, .stat = stat};
    struct mc_sample_p s = {.rows = rows, .logits = logits, .raw = raw, .vocab = vocab,
                            .n_real = vocab, .pitch = vocab, .slots = slots, .stat = stat,
                            .out = out};
    double best[2] = {1e9, 1e9}, t;
    struct mc_need need = {0};
    const char *why = "";
    uint32_t seed = 1;

    for (i = 0; i < n; i++) {
        row_seq[i] = slot[i] = q0[i] = out_row[i] = i;
        slots[i] = (struct mc_slot){.samp = samp};
    }
    for (i = 0; i < n * vocab; i++) {
        seed = seed * 1664525 + 1013904223;
        fresh[i] = (float)(seed >> 8) * 0x1p-20f - 4;
    }
    if (be->op[MC_OP_sample]->need(&s, &need, &why) != 0)
        die("sample", why);
    s.scratch = memory(need.scratch);
    for (r = 0; r < ROUNDS; r++) {
        memcpy(logits, fresh, bytes);
        t = now();
        mc_k_chain(be, stream, &c);
        finish();
        t = now() - t;
        best[0] = t < best[0] ? t : best[0];
        t = now();
        mc_k_sample(be, stream, &s);
        finish();
        t = now() - t;
        best[1] = t < best[1] ? t : best[1];
    }
    printf("vocab       %6d x %-2d %-9s chain %7.0f us   sample %7.0f us\n", vocab, n,
           how, best[0] * 1e6, best[1] * 1e6);
    be->release(be, logits, bytes), be->release(be, raw, bytes),
        be->release(be, fresh, bytes);
    be->release(be, s.scratch, need.scratch ? need.scratch : 1);
    be->release(be, counts, (size_t)64 * (size_t)vocab * 2);
    be->release(be, bias, 64 * MC_MAX_BIAS * sizeof *bias);
    be->release(be, out, 64 * sizeof *out), be->release(be, stat, 64 * 16);
}

static void bench_vocab(void)
{
    const struct mc_samp greedy = {.temperature = 0, .top_p = 1, .rep = 1};
    const struct mc_samp plain = {.temperature = 1, .top_p = 1, .rep = 1};
    const struct mc_samp top = {.temperature = 0.8f, .top_p = 0.95f, .rep = 1};
    const struct mc_samp all = {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f,
                                .top_k = 40, .rep = 1.1f, .presence = 0.1f,
                                .flags = MC_SAMP_PENALTY | MC_SAMP_TOP | MC_SAMP_CANDS};
    int32_t i;

    for (i = 0; i < 4; i++) {
        int32_t vocab = i % 2 ? 163840 : 49152, n = i / 2 ? 64 : 1;

        bench_rows(vocab, n, "greedy", greedy);
        bench_rows(vocab, n, "plain", plain);
        bench_rows(vocab, n, "top_p", top);
        bench_rows(vocab, n, "all", all);
    }
}

int main(int argc, char **argv)
{
    const char *only = bench_open(argc, argv);

    if (strstr("roof", only))
        bench_roof();
    if (strstr("linear", only))
        bench_linear();
    if (strstr("attention", only))
        bench_attention();
    if (strstr("vocab", only))
        bench_vocab();
    bench_close();
    return 0;
}

/* test_cuda_traffic.c - what the decode kernels move, counted by the emulator, against
 * the least that they must: weights, pages and rows once each, and results.
 *
 * Two figures a kernel: the sectors touched at all are what HBM moves, as everything that
 * is read twice in a launch (activations, queries) fits L2; the sectors that warps ask
 * for are what L2 serves. The mark is on the first: 1.1 of the least. Widths are those of
 * real models where that costs little; `make cuda-report` prints the lines. */
#include "tests/c/test.h"

#include "kernels/emu/emu.h"
#include "tests/c/cuda_help.h"

static struct kern cu;
static uint64_t seed = 5;

/* Device memory: begins at a sector, out of the host's reach. */
static void *dev(const void *from, size_t bytes)
{
    void *p = cu.b->alloc(cu.b, bytes);

    assert_non_null(p);
    if (from)
        assert_int_equal(cu.b->upload(cu.b, p, from, bytes), 0);
    return p;
}

static void *dev_i32(int32_t v)
{
    return dev(&v, sizeof v);
}

static void *dev_rows(int32_t rows, int32_t k)
{
    float *f;
    uint16_t *x = randoms((int64_t)rows * k, &f, &seed);
    void *p = dev(x, (size_t)(rows * k) * 2);

    free(x), free(f);
    return p;
}

static struct mc_act dev_act(int32_t rows, int32_t k)
{
    return (struct mc_act){.x = dev_rows(rows, k), .k = k, .layout = MC_A_BF16};
}

static struct mc_ws dev_stack(const struct kind *q, int32_t n, int32_t k, int32_t count)
{
    struct mc_disk d = disk_of(q, n, k, &seed);
    struct mc_pack_p p = {.disk = d,
                          .w = {.layout = cu.b->run_of(cu.b, d.fmt), .n = n, .k = k}};
    struct mc_need need;
    const char *why = "";
    struct mc_ws s = {.n = count};

    assert_int_equal(cu.b->op[MC_OP_pack]->need(&p, &need, &why), 0);
    s.w = p.w;
    s.w.bytes = need.q + need.scale + need.zero;
    s.q_step = (int64_t)(need.q + 255) / 256 * 256;
    s.scale_step = (int64_t)(need.scale + 255) / 256 * 256;
    s.zero_step = (int64_t)(need.zero + 255) / 256 * 256;
    s.w.q = dev(NULL, (size_t)(s.q_step * count));
    s.w.scale = dev(NULL, (size_t)(s.scale_step * count) + 1);
    s.w.zero = dev(NULL, (size_t)(s.zero_step * count) + 1);
    for (int32_t i = 0; i < count; i++) {
        p.w = mc_ws_at(&s, i);
        kern_run(&cu, pack, p);
    }
    ops_disk_free(&d);
    return s;
}

static void judge(const char *name, double least)
{
    struct emu_traffic t;

    emu_count(false);
    t = emu_counted();
    print_message("%-28s least %8.0f B, HBM %5.3f of it, L2 %5.3f, shared waves %5.2f\n",
                  name, least, (double)t.touched * 32 / least,
                  (double)t.sectors * 32 / least,
                  t.waves_min ? (double)t.waves / (double)t.waves_min : 1);
    if (!((double)t.touched * 32 <= 1.1 * least))
        fail_msg("%s: %llu sectors, %.0f bytes would do", name,
                 (unsigned long long)t.touched, least);
}

/* ---- weights ----------------------------------------------------------------------- */

static void linears(void)
{
    static const int of[] = {0, 1, 3, 4, 6};
    static const char *const name[] = {"bf16", "e4m3 128x128", "int4 g128",
                                       "int4 g32 zeros", "nvfp4"};
    enum { N = 128, K = 2048 };
    char text[60];

    for (int i = 0; i < 5; i++) {
        struct mc_w w = dev_stack(&kinds[of[i]], N, K, 1).w;
        struct mc_act a = dev_act(1, K);
        void *n = dev_i32(1), *y = dev(NULL, N * 4);

        emu_count(true);
        kern_run(&cu, linear,
                 {.n_live = n,
                  .cap = 1,
                  .n_w = 1,
                  .act = a,
                  .w = {w},
                  .y = {y},
                  .pitch = {N},
                  .y_dt = MC_F32});
        snprintf(text, sizeof text, "linear %s", name[i]);
        judge(text, (double)w.bytes + 2 * K + 4 * N);
    }
}

/* One row, two of four experts. */
static void experts(void)
{
    enum { H = 1024, I = 256 };
    static const int of[] = {1, 4};
    int32_t ids[] = {1, 3}, offset[] = {0, 0, 1, 1, 2}, order[] = {0, 1};
    float weights[] = {0.5f, 0.5f};

    for (int i = 0; i < 2; i++) {
        struct mc_ws gate = dev_stack(&kinds[of[i]], I, H, 4),
                     up = dev_stack(&kinds[of[i]], I, H, 4),
                     down = dev_stack(&kinds[of[i]], H, I, 4);
        struct mc_moe_p p = {.n_live = dev_i32(1),
                             .cap = 1,
                             .top_k = 2,
                             .act = dev_act(1, H),
                             .ids = dev(ids, sizeof ids),
                             .offset = dev(offset, sizeof offset),
                             .order = dev(order, sizeof order),
                             .weights = dev(weights, sizeof weights),
                             .gate = gate,
                             .up = up,
                             .down = down,
                             .mid = dev_act(2, I),
                             .add = dev_rows(1, H),
                             .y = dev(NULL, H * 2),
                             .scratch = dev(NULL, 2 * H * 4)};

        emu_count(true);
        kern_run(&cu, moe, p);
        judge(i ? "moe int4 g32 zeros" : "moe e4m3",
              2.0 * (double)(gate.w.bytes + up.w.bytes + down.w.bytes) + 3 * 2 * H +
                  2 * 2 * I + 2 * 4 * H);
    }
}

/* ---- pages ------------------------------------------------------------------------- */

enum { CTX = 512, PAGES = CTX / MC_PAGE, C = 512, R = 64, H8 = 8 };

static struct mc_rows dev_step(void)
{
    int32_t live[4] = {1, 1, 1, 1}, q0[2] = {0, 1};

    return (struct mc_rows){.cap = 1,
                            .cap_seq = 1,
                            .cap_out = 1,
                            .live = dev(live, sizeof live),
                            .tok = dev_i32(0),
                            .pos = dev_i32(CTX - 1),
                            .row_seq = dev_i32(0),
                            .q0 = dev(q0, sizeof q0),
                            .kv_len = dev_i32(CTX),
                            .slot = dev_i32(0),
                            .out_row = dev_i32(0)};
}

static struct mc_kv dev_pool(uint16_t layout, int32_t index_d)
{
    int32_t table[PAGES];
    struct mc_kv kv = {.pitch = PAGES, .n_page = PAGES, .n_slot = 1, .n_layer = 1, .c = C,
                       .r = R, .n_shard = 1, .layout = layout};

    for (int32_t i = 0; i < PAGES; i++)
        table[i] = (i * 3 + 1) % PAGES;
    kv.table = dev(table, sizeof table);
    kv.layer_stride = kv.page_stride = MC_PAGE * mc_mla_token_bytes(layout, C, R);
    kv.index_off = kv.layer_stride;
    if (index_d > 0) {
        kv.index_d = index_d;
        kv.n_index = 1;
        kv.index_stride = mc_index_bytes(layout, index_d);
        kv.page_stride += kv.index_stride;
    }
    kv.base = dev(NULL, (size_t)(kv.page_stride * PAGES));
    return kv;
}

static void attention(void)
{
    static const uint16_t layouts[] = {MC_KV_BF16, MC_KV_FP8_PLAIN, MC_KV_FP8_656};
    static const char *const name[] = {"mla_attn bf16", "mla_attn fp8-plain",
                                       "mla_attn fp8-656"};
    enum { PARTS = CTX / MC_SPLIT };
    struct mc_slot slot = {0};

    for (int i = 0; i < 3; i++) {
        struct mc_mla_attn_p p = {.rows = dev_step(),
                                  .kv = dev_pool(layouts[i], 0),
                                  .slots = dev(&slot, sizeof slot),
                                  .h = H8,
                                  .n_part = PARTS,
                                  .cap_decode = 1,
                                  .scale = 0.07f,
                                  .q = dev_rows(1, H8 * (C + R)),
                                  .o = dev(NULL, PARTS * H8 * C * 4),
                                  .ml = dev(NULL, PARTS * H8 * 8)};
        struct mc_attn_merge_p m = {.rows = p.rows, .h = H8, .d = C, .n_part = PARTS,
                                    .cap_decode = 1, .o = p.o, .ml = p.ml,
                                    .out = dev(NULL, H8 * C * 2)};

        emu_count(true);
        kern_run(&cu, mla_attn, p);
        judge(name[i], (double)CTX * (double)mc_mla_token_bytes(layouts[i], C, R) +
                           2 * H8 * (C + R) + 4.0 * PARTS * H8 * (C + 2));
        emu_count(true);
        kern_run(&cu, attn_merge, m);
        judge("attn_merge", 4.0 * PARTS * H8 * (C + 2) + 2 * H8 * C);
    }
}

/* All heads of a group of ranks, of which one block reads a split once. */
static void attention_of_64(void)
{
    enum { PARTS = CTX / MC_SPLIT, H64 = 64 };
    struct mc_slot slot = {0};
    struct mc_mla_attn_p p = {.rows = dev_step(), .kv = dev_pool(MC_KV_FP8_656, 0),
                              .slots = dev(&slot, sizeof slot), .h = H64, .n_part = PARTS,
                              .cap_decode = 1, .scale = 0.07f,
                              .q = dev_rows(1, H64 * (C + R)),
                              .o = dev(NULL, PARTS * H64 * C * 4),
                              .ml = dev(NULL, PARTS * H64 * 8)};

    emu_count(true);
    kern_run(&cu, mla_attn, p);
    judge("mla_attn fp8-656, 64 heads", CTX * 656.0 + 2 * H64 * (C + R) +
                                            4.0 * PARTS * H64 * (C + 2));
}

/* A chunk of 64 rows that begins its context, one head: pages to rows, rows times kv_b to
 * keys and values, and those once for its only tile. */
static void long_chunk(void)
{
    enum { N = 64, NOPE = 128, V = 128 };
    int32_t live[4] = {N, 0, 1, 1}, q0[2] = {0, N}, pos[N], zero[N] = {0};
    struct mc_slot slot = {0};
    struct mc_w kv_b = dev_stack(&kinds[0], NOPE + V, C, 1).w;
    struct mc_attn_ragged_p p = {.rows = dev_step(), .kv = dev_pool(MC_KV_FP8_656, 0),
                                 .slots = dev(&slot, sizeof slot), .h = 1, .nope = NOPE,
                                 .v = V, .long_rows = N, .scale = 0.07f,
                                 .q = dev_rows(N, NOPE + R), .kv_b = kv_b,
                                 .act = dev_act(N, V)};
    struct mc_need need;
    const char *why;

    for (int32_t i = 0; i < N; i++)
        pos[i] = i;
    p.rows.cap = N;
    p.rows.live = dev(live, sizeof live);
    p.rows.pos = dev(pos, sizeof pos);
    p.rows.row_seq = dev(zero, sizeof zero);
    p.rows.q0 = dev(q0, sizeof q0);
    p.rows.kv_len = dev_i32(N);
    assert_int_equal(cu.b->op[MC_OP_attn_ragged]->need(&p, &need, &why), 0);
    p.scratch = dev(NULL, need.scratch);
    emu_count(true);
    kern_run(&cu, attn_ragged, p);
    judge("attn_ragged, 64 rows", N * (656.0 + 2 * (C + R) + 2 * (NOPE + V) +
                                       2 * (NOPE + R) + 2 * V) + (double)kv_b.bytes);
}

static void index_keys(void)
{
    enum { HI = 32, D = 128, TOPK = 64 };
    struct mc_slot slot = {0};
    struct mc_dsa_topk_p p = {.rows = dev_step(), .kv = dev_pool(MC_KV_FP8_656, D),
                              .slots = dev(&slot, sizeof slot), .hi = HI, .topk = TOPK,
                              .context = CTX, .qi = dev_rows(1, HI * D / 2),
                              .gates = dev(NULL, HI * 4), .idx = dev(NULL, TOPK * 4)};

    p.scratch = dev(NULL, 2 * TOPK * 8);
    emu_count(true);
    kern_run(&cu, dsa_topk, p);
    judge("dsa_topk", (D + 4.0) * CTX + HI * (D + 4) + TOPK * 4 + 2 * TOPK * 8);
}

static void heads(void)
{
    enum { NOPE = 128, V = 128 };
    struct mc_ws uk = dev_stack(&kinds[0], C, NOPE, H8),
                 uv = dev_stack(&kinds[0], V, C, H8);
    float inv[R / 2] = {1};
    struct mc_mla_q_p q = {.rows = dev_step(), .h = H8, .nope = NOPE, .c = C,
                           .q = dev_rows(1, H8 * (NOPE + R)), .w_uk = uk,
                           .rope = {dev(inv, sizeof inv), 1, R, NOPE, 1},
                           .out = dev(NULL, H8 * (C + R) * 2)};
    struct mc_mla_out_p o = {.rows = q.rows,
                             .h = H8,
                             .c = C,
                             .v = V,
                             .o_lat = dev_rows(1, H8 * C),
                             .w_uv = uv,
                             .act = dev_act(1, H8 * V)};

    emu_count(true);
    kern_run(&cu, mla_q, q);
    judge("mla_q", H8 * ((double)uk.w.bytes + 2 * (NOPE + R) + 2 * (C + R)));
    emu_count(true);
    kern_run(&cu, mla_out, o);
    judge("mla_out", H8 * ((double)uv.w.bytes + 2 * C + 2 * V));
}

/* ---- what scripts and preemption ask for ------------------------------------------- */

static struct mc_strided dev_view(int32_t rows, int32_t cols)
{
    return (struct mc_strided){dev(NULL, (size_t)(rows * cols) * 4), MC_F32,
                               {1, 1, rows, cols}, {0, 0, cols, 1}};
}

static void scripts(void)
{
    enum { ROWS = 32, COLS = 1024 };
    struct {
        struct mc_taps head;
        struct mc_tap v;
    } list = {{.n = 1}, {.layer = 1, .n = 4, .scale = 2, .add = dev_rows(1, COLS)}};
    struct mc_tensor_p t = {.what = MC_T_MUL, .scale = 3, .a = dev_view(ROWS, COLS),
                            .out = dev_view(ROWS, COLS)};
    void *x = dev_rows(ROWS, COLS), *taps = dev(&list, sizeof list);

    emu_count(true);
    kern_run(&cu, tap, {.taps = taps, .layer = 1, .cols = COLS, .x = x});
    judge("tap, 4 rows steered", 5 * 2 * COLS + sizeof list);
    emu_count(true);
    kern_run(&cu, tensor, t);
    judge("tensor x scale", 2.0 * 4 * ROWS * COLS);
    t = (struct mc_tensor_p){.what = MC_T_SOFTMAX, .a = t.a, .out = t.out};
    emu_count(true);
    kern_run(&cu, tensor, t);
    judge("tensor softmax", 2.0 * 4 * ROWS * COLS);
}

static void moves(void)
{
    struct mc_kv kv = dev_pool(MC_KV_FP8_656, 0);
    int32_t *pages = cu.b->host_alloc(cu.b, 8);
    struct mc_page_copy_p p = {.kv = kv, .pages = pages, .n = 2, .to_buf = true};

    pages[0] = 5, pages[1] = 2;
    p.buf = cu.b->host_alloc(cu.b, 2 * (size_t)kv.page_stride);
    emu_count(true);
    kern_run(&cu, page_copy, p);
    judge("page_copy to host memory", 4.0 * (double)kv.page_stride);
    p.to_buf = false;
    emu_count(true);
    kern_run(&cu, page_copy, p);
    judge("page_copy from host memory", 4.0 * (double)kv.page_stride);
}

static void cuda_decode_kernels_move_what_they_must(void **state)
{
    (void)state;
    if (!emu_watches()) {
        print_message("a sanitizer build counts nothing\n");
        skip();
    }
    cu = cuda_open();
    emu_strict(emu_reaches);
    linears();
    experts();
    attention();
    attention_of_64();
    long_chunk();
    index_keys();
    heads();
    scripts();
    moves();
    kern_close(&cu);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(cuda_decode_kernels_move_what_they_must),
};

MC_TEST_MAIN(tests)

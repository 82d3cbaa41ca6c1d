/* test_gguf.c - GGUF files: good ones, and every broken one we know. */
#include "tests/c/test.h"

#include <sys/resource.h>
#include <time.h>

#include "core/weights/weights.h"
#include "tests/c/gguf_write.h"
#include "tests/c/tmpdir.h"

static char *dir;

static int setup(void **state)
{
    (void)state;
    dir = tmp_new();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tmp_free(dir);
    return 0;
}

static struct mc_ckpt *opened(const struct buf *b)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};

    tmp_write(dir, "x.gguf", b->p, b->n);
    assert_ok(mc_ckpt_open(tmp_path(dir, "x.gguf"), &c, &err), err);
    return c;
}

/* Refused within 100 ms and 64 MiB, with a text that holds `says`. */
static void refused(const struct buf *b, const char *says)
{
    struct rusage before, after;
    struct timespec t0, t1;
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};
    int rc;

    tmp_write(dir, "x.gguf", b->p, b->n);
    getrusage(RUSAGE_SELF, &before);
    clock_gettime(CLOCK_MONOTONIC, &t0);
    rc = mc_ckpt_open(tmp_path(dir, "x.gguf"), &c, &err);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    getrusage(RUSAGE_SELF, &after);
    assert_null(c);
    if (rc == 0 || !strstr(err.text, says))
        fail_msg("want '%s' in: %d %s", says, rc, err.text);
    assert_true(
        (double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec) < 0.1);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 << 10);
    assert_int_equal(mc_ckpt_open(tmp_path(dir, "x.gguf"), &c, NULL), rc);
}

/* ---- good files -------------------------------------------------------------------- */

static void gguf_metadata_of_each_type_is_read(void **state)
{
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c;
    const struct mc_gguf *g;
    const char *s;
    uint64_t u;
    int64_t i64 = -5;
    int32_t i;
    int16_t i16 = -2;
    double d;
    float f = 1.5f;
    size_t n;
    bool yes;

    (void)state;
    head(b, 0, 14);
    key(b, "u8", 0), u8(b, 200);
    key(b, "i8", 1), u8(b, 0xFF);
    key(b, "u16", 2), raw(b, &(uint16_t){60000}, 2);
    key(b, "i16", 3), raw(b, &i16, 2);
    key(b, "u32", 4), u32(b, 4000000000u);
    key(b, "i32", 5), u32(b, 7);
    key(b, "f32", 6), raw(b, &f, 4);
    key(b, "bool", 7), u8(b, 1);
    key(b, "str", 8), str(b, "hello");
    key(b, "u64", 10), u64(b, UINT64_MAX);
    key(b, "i64", 11), raw(b, &i64, 8);
    key(b, "f64", 12), raw(b, &(double){2.5}, 8);
    key(b, "words", 9), u32(b, 8), u64(b, 3), str(b, "a"), str(b, ""), str(b, "ccc");
    key(b, "ids", 9), u32(b, 5), u64(b, 2), u32(b, 9), u32(b, (uint32_t)-9);
    c = opened(b);
    assert_int_equal(mc_ckpt_kind(c), MC_CKPT_GGUF);
    assert_int_equal(mc_ckpt_n(c), 0);
    assert_null(mc_ckpt_config(c));
    g = mc_ckpt_gguf(c);
    assert_true(mc_gguf_has(g, "words") && !mc_gguf_has(g, "word") &&
                !mc_gguf_has(g, "wordss"));
    assert_true(mc_gguf_u64(g, "u8", &u) && u == 200);
    assert_true(mc_gguf_u64(g, "u16", &u) && u == 60000);
    assert_true(mc_gguf_u64(g, "u32", &u) && u == 4000000000u);
    assert_true(mc_gguf_u64(g, "i32", &u) && u == 7);
    assert_true(mc_gguf_u64(g, "u64", &u) && u == UINT64_MAX);
    assert_false(mc_gguf_u64(g, "i8", &u) || mc_gguf_u64(g, "i64", &u)); /* negative */
    assert_false(mc_gguf_u64(g, "f32", &u) || mc_gguf_u64(g, "bool", &u));
    assert_false(mc_gguf_u64(g, "words", &u) || mc_gguf_u64(g, "none", &u));
    assert_true(mc_gguf_f64(g, "i8", &d) && d == -1);
    assert_true(mc_gguf_f64(g, "i16", &d) && d == -2);
    assert_true(mc_gguf_f64(g, "i64", &d) && d == -5);
    assert_true(mc_gguf_f64(g, "f32", &d) && d == 1.5);
    assert_true(mc_gguf_f64(g, "f64", &d) && d == 2.5);
    assert_false(mc_gguf_f64(g, "str", &d) || mc_gguf_f64(g, "ids", &d));
    assert_true(mc_gguf_bool(g, "bool", &yes) && yes);
    assert_false(mc_gguf_bool(g, "u8", &yes));
    assert_true(mc_gguf_str(g, "str", &s, &n) && n == 5 && memcmp(s, "hello", 5) == 0);
    assert_false(mc_gguf_str(g, "words", &s, &n));
    assert_true(mc_gguf_arr_n(g, "words", &u) && u == 3);
    assert_false(mc_gguf_arr_n(g, "str", &u));
    assert_true(mc_gguf_arr_str(g, "words", 0, &s, &n) && n == 1 && *s == 'a');
    assert_true(mc_gguf_arr_str(g, "words", 1, &s, &n) && n == 0);
    assert_true(mc_gguf_arr_str(g, "words", 2, &s, &n) && n == 3 &&
                memcmp(s, "ccc", 3) == 0);
    assert_false(mc_gguf_arr_str(g, "words", 3, &s, &n) ||
                 mc_gguf_arr_str(g, "ids", 0, &s, &n));
    assert_true(mc_gguf_arr_i32(g, "ids", 0, &i) && i == 9);
    assert_true(mc_gguf_arr_i32(g, "ids", 1, &i) && i == -9);
    assert_false(mc_gguf_arr_i32(g, "ids", 2, &i) || mc_gguf_arr_i32(g, "words", 0, &i));
    assert_false(mc_gguf_arr_f32(g, "ids", 0, &f));
    mc_ckpt_close(c);
    free(b);
}

static void gguf_tensors_have_hugging_face_names(void **state)
{
    static const char *const names[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"output.weight", "lm_head.weight"},
        {"rope_freqs.weight", "rope_freqs.weight"},
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
        {"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"},
        {"blk.12.attn_k.weight", "model.layers.12.self_attn.k_proj.weight"},
        {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"},
        {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"},
        {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
        {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"},
        {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
        {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
        {"blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
        {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"},
        {"blk.01.attn_q.weight", "blk.01.attn_q.weight"},
        {"blk..attn_q.weight", "blk..attn_q.weight"},
        {"blk.0.weight", "blk.0.weight"},
        {"blk.0", "blk.0"},
        {"blk.0.other.weight", "blk.0.other.weight"},
        {"weight", "weight"},
    };
    struct buf *b = calloc(1, sizeof *b);
    size_t n = sizeof names / sizeof *names;
    struct mc_ckpt *c;

    (void)state;
    head(b, n, 0);
    for (size_t i = 0; i < n; i++)
        info(b, names[i][0], 8, 1, 0, 32 * i);
    pad(b, 32);
    for (size_t i = 0; i < n; i++)
        u8(b, (uint8_t)i), pad(b, 32);
    c = opened(b);
    assert_int_equal(mc_ckpt_n(c), n);
    for (size_t i = 0; i < n; i++) {
        const struct mc_stored *t = mc_ckpt_find(c, names[i][1]);

        assert_non_null(t);
        assert_string_equal(t->name, names[i][0]);
        assert_int_equal(*(const uint8_t *)t->data, i);
        assert_int_equal(t->n_dim, 2);
        assert_int_equal(t->dim[0], 1);
        assert_int_equal(t->dim[1], 8);
    }
    mc_ckpt_close(c);
    free(b);
}

#define KV_B "model.layers.3.self_attn.kv_b_proj"

/* Keys [2 heads][c 2][nope 3], counting from 0, and values [2][v 1][width], from 100. */
static struct mc_ckpt *latent_parts(struct buf *b, const char *arch, uint64_t width)
{
    float x;

    head(b, 3, 1);
    key(b, "general.architecture", 8), str(b, arch);
    info3(b, "blk.3.attn_k_b.weight", 3, 2, 2, 0);
    info3(b, "blk.3.attn_v_b.weight", width, 1, 2, 64);
    info3(b, "blk.3.ffn_up_shexp.weight", 1, 1, 1, 96);
    pad(b, 32);
    for (int i = 0; i < 12; i++)
        x = (float)i, raw(b, &x, sizeof x);
    pad(b, 32);
    for (int i = 0; i < 2 * (int)width; i++)
        x = (float)(100 + i), raw(b, &x, sizeof x);
    pad(b, 32);
    u32(b, 0);
    return opened(b);
}

static void gguf_two_parts_of_kv_b_are_one_matrix(void **state)
{
    static const float want[8][2] = {{0, 3}, {1, 4}, {2, 5},   {100, 101},
                                     {6, 9}, {7, 10}, {8, 11}, {102, 103}};
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c = latent_parts(b, "glm-dsa", 2);
    struct mc_err err = {0};
    struct mc_disk d;
    void *own = NULL;
    float row[2];

    (void)state;
    assert_non_null(mc_ckpt_find(c, "model.layers.3.mlp.shared_experts.up_proj.weight"));
    assert_ok(mc_ckpt_matrix_own(c, KV_B, &d, NULL, &err), err);
    assert_true(d.n == 8 && d.k == 2 && d.fmt == MC_D_F32);
    assert_int_equal(mc_ckpt_matrix(c, KV_B, &d, &err), MC_EUNSUP);
    assert_ok(mc_ckpt_matrix_own(c, KV_B, &d, &own, &err), err);
    assert_true(own && d.q == own && d.n == 8 && d.k == 2);
    for (int i = 0; i < 8; i++) {
        mc_disk_row(&d, i, 0, 2, row);
        assert_memory_equal(row, want[i], sizeof row);
    }
    free(own);
    mc_ckpt_close(c);
    c = latent_parts(b, "qwen2moe", 3); /* as many columns of values as no key has */
    assert_non_null(mc_ckpt_find(c, "model.layers.3.mlp.shared_expert.up_proj.weight"));
    own = NULL;
    assert_int_equal(mc_ckpt_matrix_own(c, KV_B, &d, &own, &err), MC_EFORMAT);
    assert_null(own);
    assert_non_null(strstr(err.text, "attn_k_b and attn_v_b"));
    mc_ckpt_close(c);
    free(b);
}

static void gguf_last_tensor_needs_no_padding_and_rest_is_ignored(void **state)
{
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c;

    (void)state;
    head(b, 1, 1);
    key(b, "general.alignment", 4), u32(b, 64);
    info(b, "a", 3, 1, 0, 0);
    pad(b, 64);
    u64(b, 1), u32(b, 2);
    c = opened(b);
    assert_int_equal(mc_ckpt_at(c, 0)->bytes, 12);
    mc_ckpt_close(c);
    u8(b, 0);
    c = opened(b);
    mc_ckpt_close(c);
    b->n -= 2;
    refused(b, "'a' passes the end");
    free(b);
}

static void gguf_directory_with_one_opens_it(void **state)
{
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};
    char *text;
    size_t n;

    (void)state;
    head(b, 0, 0);
    tmp_write(dir, "x.gguf", b->p, b->n);
    assert_ok(mc_ckpt_open(dir, &c, &err), err);
    assert_int_equal(mc_ckpt_kind(c), MC_CKPT_GGUF);
    assert_int_equal(mc_ckpt_file(c, "x.gguf", 100, &text, &n, &err), MC_ENOENT);
    mc_ckpt_close(c);
    tmp_text(dir, "y.gguf", "");
    assert_int_equal(mc_ckpt_open(dir, &c, &err), MC_EARG);
    assert_int_equal(unlink(tmp_path(dir, "y.gguf")), 0);
    free(b);
}

static void gguf_real_file_has_the_safetensors_model_in_it(void **state)
{
    struct mc_ckpt *a = NULL, *b = NULL;
    struct mc_err err = {0};
    float x[256], y[256];
    struct mc_disk d, e;
    const char *s;
    uint64_t u;
    size_t n;

    (void)state;
    assert_ok(mc_ckpt_open("tests/models/tiny-llama-gguf/tiny-llama-q8_0.gguf", &a, &err),
              err);
    assert_ok(mc_ckpt_open("tests/models/tiny-llama", &b, &err), err);
    assert_int_equal(mc_ckpt_n(a), 39);
    assert_true(mc_gguf_u64(mc_ckpt_gguf(a), "llama.block_count", &u) && u == 4);
    assert_true(mc_gguf_arr_n(mc_ckpt_gguf(a), "tokenizer.ggml.tokens", &u) && u == 2048);
    assert_true(mc_gguf_arr_str(mc_ckpt_gguf(a), "tokenizer.ggml.tokens", 1792, &s, &n));
    assert_int_equal(n, 17);
    assert_memory_equal(s, "<|begin_of_text|>", 17);
    assert_ok(mc_ckpt_vector(a, "model.norm.weight", 256, x, &err), err);
    assert_ok(mc_ckpt_vector(b, "model.norm.weight", 256, y, &err), err);
    assert_memory_equal(x, y, sizeof x);
    /* Row 5 of v, which GGUF does not reorder, agrees to half a Q8_0 step. */
    assert_ok(mc_ckpt_matrix(a, "model.layers.2.self_attn.v_proj", &d, &err), err);
    assert_ok(mc_ckpt_matrix(b, "model.layers.2.self_attn.v_proj", &e, &err), err);
    mc_disk_row(&d, 5, 0, 256, x);
    mc_disk_row(&e, 5, 0, 256, y);
    for (int g = 0; g < 8; g++) {
        float max = 0;

        for (int i = 0; i < 32; i++)
            max = y[g * 32 + i] > max    ? y[g * 32 + i]
                  : -y[g * 32 + i] > max ? -y[g * 32 + i]
                                         : max;
        for (int i = 0; i < 32; i++) /* and 2^-11 of f16 rounding of the step */
            assert_true(x[g * 32 + i] - y[g * 32 + i] <= max * (0.5f / 127 + 0x1p-11f) &&
                        y[g * 32 + i] - x[g * 32 + i] <= max * (0.5f / 127 + 0x1p-11f));
    }
    mc_ckpt_close(a);
    mc_ckpt_close(b);
}

/* ---- broken files ------------------------------------------------------------------ */

static void gguf_counts_are_bounded_by_the_file(void **state)
{
    struct buf *b = calloc(1, sizeof *b);

    (void)state;
    b->n = 0;
    refused(b, "empty");
    raw(b, "GGU", 3);
    refused(b, "no magic");
    u8(b, 'f');
    refused(b, "no magic");
    b->n = 0;
    raw(b, "GGUF", 4), u32(b, 3);
    refused(b, "ends in its header");
    head(b, 1ull << 61, 0);
    refused(b, "2305843009213693952 tensors");
    head(b, 0, 1ull << 63);
    refused(b, "9223372036854775808 metadata");
    head(b, UINT64_MAX, UINT64_MAX);
    refused(b, "metadata");
    head(b, 1, 0);
    refused(b, "1 tensors in 0 bytes");
    head(b, 0, 1);
    u64(b, 1ull << 40), raw(b, "abcdefgh", 8);
    refused(b, "metadata key");
    head(b, 0, 1);
    u64(b, UINT64_MAX), raw(b, "abcdefgh", 8);
    refused(b, "metadata key");
    head(b, 0, 1);
    key(b, "s", 8), u64(b, 1ull << 40);
    refused(b, "'s': its value passes the end");
    head(b, 0, 1);
    key(b, "s", 8), u64(b, UINT64_MAX - 7);
    refused(b, "'s'");
    head(b, 0, 1);
    key(b, "arr", 9), u32(b, 4), u64(b, 1ull << 62);
    refused(b, "'arr': 4611686018427387904 elements");
    head(b, 0, 1);
    key(b, "arr", 9), u32(b, 8), u64(b, 1ull << 61);
    refused(b, "'arr'");
    head(b, 0, 1);
    key(b, "arr", 9), u32(b, 8), u64(b, 2), str(b, "a"), u64(b, 9);
    refused(b, "'arr': a string passes the end");
    free(b);
}

static void gguf_versions_and_parts_are_checked(void **state)
{
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c;

    (void)state;
    head(b, 0, 0);
    b->p[4] = 2;
    c = opened(b);
    mc_ckpt_close(c);
    b->p[4] = 1;
    refused(b, "version 1,");
    b->p[4] = 4;
    refused(b, "version 4,");
    memcpy(b->p + 4, "\0\0\0\3", 4);
    refused(b, "version 3 (big-endian)");
    head(b, 0, 1);
    key(b, "split.count", 2), raw(b, "\2\0", 2);
    refused(b, "2 parts");
    free(b);
}

static void gguf_metadata_is_checked(void **state)
{
    struct buf *b = calloc(1, sizeof *b);

    (void)state;
    head(b, 0, 1);
    key(b, "k", 13), u64(b, 0);
    refused(b, "'k': unknown type 13");
    head(b, 0, 1);
    key(b, "k", UINT32_MAX), u64(b, 0);
    refused(b, "'k': unknown type");
    head(b, 0, 1);
    key(b, "k", 9);
    for (int i = 0; i < 1000; i++) /* arrays in arrays */
        u32(b, 9), u64(b, 1);
    refused(b, "'k': an array of type 9");
    head(b, 0, 1);
    key(b, "k", 9), u32(b, 77), u64(b, 0);
    refused(b, "'k': an array of type 77");
    head(b, 0, 2);
    key(b, "twin", 0), u8(b, 0);
    key(b, "twin", 4), u32(b, 0);
    refused(b, "'twin': duplicate");
    head(b, 0, 1);
    key(b, "a\nb", 4), u32(b, 0);
    refused(b, "printable");
    head(b, 0, 1);
    key(b, "", 4), u64(b, 0);
    refused(b, "printable");
    free(b);
}

static void gguf_alignment_is_a_sane_power_of_two(void **state)
{
    static const uint32_t bad[] = {0, 1, 3, 4, 24, 1u << 30, UINT32_MAX};
    struct buf *b = calloc(1, sizeof *b);

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        head(b, 0, 1);
        key(b, "general.alignment", 4), u32(b, bad[i]);
        refused(b, "general.alignment");
    }
    head(b, 0, 1);
    key(b, "general.alignment", 8), str(b, "32");
    refused(b, "general.alignment");
    free(b);
}

static void gguf_tensors_are_checked(void **state)
{
    struct buf *b = calloc(1, sizeof *b);

    (void)state;
    head(b, 1, 0);
    str(b, "t"), u32(b, 9);
    for (int i = 0; i < 12; i++)
        u64(b, 1);
    refused(b, "'t': 9 dimensions");
    head(b, 1, 0);
    info(b, "t", 1ull << 32, 1ull << 32, 0, 0), pad(b, 32);
    refused(b, "'t'");
    head(b, 1, 0);
    info(b, "t", 1ull << 31, 1ull << 31, 0, 0), pad(b, 32);
    refused(b, "'t': 2147483648 rows of 2147483648 columns");
    head(b, 1, 0);
    info(b, "t", 1ull << 30, 1ull << 30, 0, 0), pad(b, 32);
    refused(b, "'t' passes the end");
    head(b, 1, 0);
    info(b, "t", 1ull << 62, 1, 0, 0), pad(b, 32); /* times 4 bytes: beyond 64 bits */
    refused(b, "'t'");
    head(b, 1, 0);
    info(b, "t", 0, 4, 0, 0), pad(b, 32);
    refused(b, "dimension 0 is 0");
    head(b, 1, 0);
    info(b, "t", 32, 1, 255, 0), pad(b, 32);
    refused(b, "'t': ggml type 255");
    head(b, 1, 0);
    info(b, "t", 32, 1, UINT32_MAX, 0), pad(b, 32);
    refused(b, "'t': ggml type 4294967295");
    head(b, 1, 0);
    info(b, "t", 32, 1, 23, 0), pad(b, 32); /* IQ4_XS */
    refused(b, "ggml type 23");
    head(b, 1, 0);
    info(b, "t", 48, 1, 2, 0), pad(b, 32);
    refused(b, "'t': 1 rows of 48 columns are no whole blocks of Q4_0");
    head(b, 1, 0);
    info(b, "t", 8, 1, 0, 32), pad(b, 32), u64(b, 0);
    refused(b, "'t': its data is at 32");
    head(b, 1, 0);
    info(b, "t", 8, 1, 0, UINT64_MAX - 31), pad(b, 32);
    refused(b, "'t'");
    head(b, 2, 0);
    info(b, "t", 8, 1, 0, 0), info(b, "u", 8, 1, 0, 0), pad(b, 32), u64(b, 0);
    refused(b, "'u': its data is at 0, but the one before ends at 32");
    head(b, 2, 0);
    info(b, "t", 8, 1, 0, 0), info(b, "t", 8, 1, 0, 32), pad(b, 32);
    b->n += 64;
    refused(b, "duplicate tensor 't'");
    head(b, 2, 0);
    info(b, "token_embd.weight", 8, 1, 0, 0);
    info(b, "model.embed_tokens.weight", 8, 1, 0, 32), pad(b, 32);
    b->n += 64;
    refused(b, "duplicate tensor 'model.embed_tokens.weight'");
    head(b, 1, 0);
    info(b, "t\x1b", 8, 1, 0, 0), pad(b, 32);
    refused(b, "printable");
    head(b, 1, 0);
    str(b, "t"), u32(b, 1), u64(b, 8), u32(b, 0);
    refused(b, "'t': the file ends in its type or offset");
    b->n--;
    refused(b, "1 tensors in 24 bytes");
    free(b);
}

static void gguf_cut_anywhere_is_refused(void **state)
{
    struct buf *b = calloc(1, sizeof *b);
    struct mc_ckpt *c;
    size_t whole;

    (void)state;
    head(b, 1, 2);
    key(b, "words", 9), u32(b, 8), u64(b, 2), str(b, "a"), str(b, "bb");
    key(b, "n", 10), u64(b, 1);
    info(b, "t", 8, 1, 0, 0), pad(b, 32);
    for (int i = 0; i < 8; i++)
        u32(b, 0);
    whole = b->n;
    c = opened(b);
    mc_ckpt_close(c);
    for (size_t n = 0; n < whole; n++) {
        b->n = n;
        refused(b, "");
    }
    free(b);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
    TEST(gguf_metadata_of_each_type_is_read),
    TEST(gguf_tensors_have_hugging_face_names),
    TEST(gguf_two_parts_of_kv_b_are_one_matrix),
    TEST(gguf_last_tensor_needs_no_padding_and_rest_is_ignored),
    TEST(gguf_directory_with_one_opens_it),
    TEST(gguf_real_file_has_the_safetensors_model_in_it),
    TEST(gguf_counts_are_bounded_by_the_file),
    TEST(gguf_versions_and_parts_are_checked),
    TEST(gguf_metadata_is_checked),
    TEST(gguf_alignment_is_a_sane_power_of_two),
    TEST(gguf_tensors_are_checked),
    TEST(gguf_cut_anywhere_is_refused),
};

MC_TEST_MAIN(tests)

/* test_matrix.c - a module's tensors as one matrix, and every disk format decoded.
 *
 * tests/golden/disk holds small matrices in each format and what the formats' own code
 * (compressed-tensors, gguf) makes of them: see tests/golden/disk.py. Equality is exact but
 * for nvfp4, where the reference divides scale by global scale and we multiply by its
 * inverse: three roundings against two, at most 2 units in the last place apart. */
#include "tests/c/test.h"

#include <math.h>

#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

static struct mc_ckpt *opened(const char *path)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};

    assert_ok(mc_ckpt_open(path, &c, &err), err);
    return c;
}

/* ---- goldens ----------------------------------------------------------------------- */

/* Compares each row, whole and in pieces from block borders, with M.want. */
static void check(const char *path, const char *module, int fmt, int block, int ulp)
{
    struct mc_ckpt *c = opened(path);
    const struct mc_stored *want;
    struct mc_err err = {0};
    struct mc_disk d;
    char name[64];
    float row[512];

    assert_ok(mc_ckpt_matrix(c, module, &d, &err), err);
    snprintf(name, sizeof name, "%s.want", module);
    want = mc_ckpt_find(c, name);
    assert_non_null(want);
    assert_int_equal(d.fmt, fmt);
    assert_int_equal(d.n, want->dim[0]);
    assert_int_equal(d.k, want->dim[1]);
    for (int32_t r = 0; r < d.n; r++) {
        const float *w = (const float *)want->data + (int64_t)r * d.k;

        mc_disk_row(&d, r, 0, d.k, row);
        for (int32_t k = 0; k < d.k; k++)
            if (fabsf(row[k] - w[k]) > (float)ulp * 0x1p-23f * fabsf(w[k]))
                fail_msg("%s[%d,%d] is %a, want %a", module, r, k, (double)row[k],
                         (double)w[k]);
        for (int32_t k0 = 0; k0 < d.k; k0 += block) {
            int32_t k1 = k0 + block + 3 < d.k ? k0 + block + 3 : d.k;
            float part[512];

            mc_disk_row(&d, r, k0, k1, part);
            assert_memory_equal(part, row + k0, (size_t)(k1 - k0) * sizeof *row);
        }
    }
    mc_ckpt_close(c);
}

static void matrix_hf_formats_decode_as_their_references(void **state)
{
    const char *dir = "tests/golden/disk";
    struct mc_ckpt *c;

    (void)state;
    /* The directory holds a GGUF too; it opens as Hugging Face's all the same. */
    c = opened(dir);
    assert_int_equal(mc_ckpt_kind(c), MC_CKPT_HF);
    mc_ckpt_close(c);
    check(dir, "f32", MC_D_F32, 1, 0);
    check(dir, "f16", MC_D_F16, 1, 0);
    check(dir, "bf16", MC_D_BF16, 1, 0);
    check(dir, "int4_g32", MC_D_INT4, 32, 0);
    check(dir, "int4_g128", MC_D_INT4, 128, 0);
    check(dir, "int4_channel", MC_D_INT4, 8, 0);
    check(dir, "int4_zero", MC_D_INT4, 32, 0);
    check(dir, "fp8_tensor", MC_D_E4M3, 1, 0);
    check(dir, "fp8_row", MC_D_E4M3, 1, 0);
    check(dir, "fp8_block", MC_D_E4M3, 128, 0);
    check(dir, "fp8_inv", MC_D_E4M3, 128, 0);
    check(dir, "fp8_inv_bf16", MC_D_E4M3, 128, 0);
    check(dir, "nvfp4", MC_D_NVFP4, 16, 2);
    check(dir, "nvfp4_modelopt", MC_D_NVFP4, 16, 2);
}

static void matrix_ggml_formats_decode_as_their_references(void **state)
{
    const char *file = "tests/golden/disk/ggml.gguf";

    (void)state;
    check(file, "q4_0", MC_D_Q4_0, 32, 0);
    check(file, "q4_1", MC_D_Q4_1, 32, 0);
    check(file, "q5_0", MC_D_Q5_0, 32, 0);
    check(file, "q5_1", MC_D_Q5_1, 32, 0);
    check(file, "q8_0", MC_D_Q8_0, 32, 0);
    check(file, "q4_k", MC_D_Q4_K, 256, 0);
    check(file, "q5_k", MC_D_Q5_K, 256, 0);
    check(file, "q6_k", MC_D_Q6_K, 256, 0);
    check(file, "f16", MC_D_F16, 1, 0);
    check(file, "bf16", MC_D_BF16, 1, 0);
}

static void matrix_int4_nibbles_are_little_end_first_with_offset_eight(void **state)
{
    static const uint32_t words[4] = {0x76543210, 0xFEDCBA98, 0x76543210, 0xFEDCBA98};
    static const uint32_t awq[4] = {0x75316420, 0xFDB9ECA8, 0x75316420, 0xFDB9ECA8};
    static const uint32_t zero[1] = {0}; /* stored zero point 0: codes are 0..15 */
    static const float half = 0.5f;
    struct mc_disk d = {.fmt = MC_D_INT4, .scale_dt = MC_F32, .n = 1, .k = 32, .group = 32,
                        .q = words, .scale = &half};
    float row[32], other[32];

    (void)state;
    mc_disk_row(&d, 0, 0, 32, row);
    for (int i = 0; i < 32; i++)
        assert_true(row[i] == (float)(i % 16 - 8) * 0.5f);
    d.zero = zero;
    mc_disk_row(&d, 0, 0, 32, other);
    for (int i = 0; i < 32; i++)
        assert_true(other[i] == (float)(i % 16) * 0.5f);
    /* AutoAWQ's order of the same row is another row here: the loader refuses its names. */
    d.zero = NULL;
    d.q = awq;
    mc_disk_row(&d, 0, 0, 32, other);
    assert_memory_not_equal(other, row, sizeof row);
}

static void matrix_bytes_are_whole_blocks(void **state)
{
    (void)state;
    assert_int_equal(mc_disk_bytes(MC_D_BF16, 3, 5), 30);
    assert_int_equal(mc_disk_bytes(MC_D_E4M3, 3, 5), 15);
    assert_int_equal(mc_disk_bytes(MC_D_INT4, 3, 32), 48);
    assert_int_equal(mc_disk_bytes(MC_D_INT4, 3, 12), 0);
    assert_int_equal(mc_disk_bytes(MC_D_NVFP4, 2, 32), 32);
    assert_int_equal(mc_disk_bytes(MC_D_Q4_0, 1, 32), 18);
    assert_int_equal(mc_disk_bytes(MC_D_Q4_K, 2, 512), 576);
    assert_int_equal(mc_disk_bytes(MC_D_Q6_K, 1, 128), 0);
    assert_int_equal(mc_disk_bytes(MC_D_F32, INT64_MAX, INT64_MAX), 0);
    assert_int_equal(mc_disk_bytes(MC_D_F32, -1, 4), 0);
    assert_int_equal(mc_disk_bytes(MC_N_DISK, 1, 1), 0);
    assert_string_equal(mc_disk_name(MC_D_Q4_1), "q4_1");
    assert_string_equal(mc_disk_name(MC_N_DISK), "?");
}

/* ---- real checkpoints -------------------------------------------------------------- */

static void matrix_real_checkpoints_resolve_whole(void **state)
{
    static const struct {
        const char *path;
        int linear, embed, group;
    } models[] = {
        {"tests/models/tiny-llama", MC_D_BF16, MC_D_BF16, 0},
        {"tests/models/tiny-llama-w4a16", MC_D_INT4, MC_D_BF16, 128},
        {"tests/models/tiny-llama-fp8", MC_D_E4M3, MC_D_BF16, 0},
        {"tests/models/tiny-llama-nvfp4", MC_D_NVFP4, MC_D_BF16, 16},
        {"tests/models/tiny-llama-gguf", MC_D_Q8_0, MC_D_Q8_0, 0},
    };
    static const char *const proj[] = {"self_attn.q_proj", "self_attn.k_proj",
                                       "self_attn.v_proj", "self_attn.o_proj",
                                       "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct mc_ckpt *c = opened(models[i].path);
        struct mc_err err = {0};
        struct mc_disk d;
        char name[64];

        for (int layer = 0; layer < 4; layer++)
            for (size_t p = 0; p < sizeof proj / sizeof *proj; p++) {
                snprintf(name, sizeof name, "model.layers.%d.%s", layer, proj[p]);
                assert_ok(mc_ckpt_matrix(c, name, &d, &err), err);
                assert_int_equal(d.fmt, models[i].linear);
                assert_int_equal(d.group, models[i].group);
                assert_int_equal(d.k, p == 6 ? 512 : 256);
            }
        assert_ok(mc_ckpt_matrix(c, "model.embed_tokens", &d, &err), err);
        assert_int_equal(d.fmt, models[i].embed);
        assert_int_equal(mc_ckpt_matrix(c, "lm_head", &d, &err), MC_ENOENT);
        assert_non_null(strstr(err.text, "lm_head.weight"));
        mc_ckpt_close(c);
    }
}

/* ---- broken ones ------------------------------------------------------------------- */

/* A checkpoint of a few tensors, each {name, dtype, shape, bytes}, all zero but for a
 * weight_shape; `quant` is quantization_config's text or NULL. */
struct part {
    const char *name, *dtype, *shape;
    int bytes;
    int64_t shape_is[2]; /* of weight_shape, I64 */
};

static char *make(const struct part *p, int n, const char *quant)
{
    char *dir = tmp_new(), head[2048], config[1024];
    uint8_t data[16384] = {0};
    size_t at = 1, bytes = 0;
    uint64_t len;
    FILE *f;

    head[0] = '{';
    for (int i = 0; i < n; i++) {
        at += (size_t)snprintf(head + at, sizeof head - at,
                               "%s\"m.%s\":{\"dtype\":\"%s\",\"shape\":%s,"
                               "\"data_offsets\":[%zu,%zu]}", i ? "," : "", p[i].name,
                               p[i].dtype, p[i].shape, bytes, bytes + (size_t)p[i].bytes);
        memcpy(data + bytes, p[i].shape_is,
               p[i].bytes < 16 ? (size_t)p[i].bytes : sizeof p[i].shape_is);
        bytes += (size_t)p[i].bytes;
        assert_true(bytes <= sizeof data);
    }
    at += (size_t)snprintf(head + at, sizeof head - at, "}");
    while (at % 8)
        head[at++] = ' ';
    len = at;
    f = fopen(tmp_path(dir, "model.safetensors"), "wb");
    assert_non_null(f);
    fwrite(&len, 8, 1, f);
    fwrite(head, 1, at, f);
    fwrite(data, 1, bytes, f);
    assert_int_equal(fclose(f), 0);
    snprintf(config, sizeof config, "{\"quantization_config\":%s}",
             quant ? quant : "null");
    tmp_text(dir, "config.json", config);
    return dir;
}

static void matrix_is(const struct part *p, int n, const char *quant, int fmt)
{
    char *dir = make(p, n, quant);
    struct mc_ckpt *c = opened(dir);
    struct mc_err err = {0};
    struct mc_disk d;

    assert_ok(mc_ckpt_matrix(c, "m", &d, &err), err);
    assert_int_equal(d.fmt, fmt);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void matrix_refused(const struct part *p, int n, const char *quant,
                           const char *says)
{
    char *dir = make(p, n, quant);
    struct mc_ckpt *c = opened(dir);
    struct mc_err err = {0};
    struct mc_disk d;
    int rc = mc_ckpt_matrix(c, "m", &d, &err);

    if (rc == 0 || rc == MC_ENOENT || !strstr(err.text, says) || err.text[0] != 'm' ||
        !strchr(".: ", err.text[1])) /* the module is named */
        fail_msg("want '%s' in: %d %s", says, rc, err.text);
    assert_int_equal(mc_ckpt_matrix(c, "m", &d, NULL), rc);
    mc_ckpt_close(c);
    tmp_free(dir);
}

#define N_OF(a) (int)(sizeof(a) / sizeof *(a))
#define CT(weights) \
    "{\"quant_method\":\"compressed-tensors\"," \
    "\"config_groups\":{\"group_0\":{\"weights\":" weights "}}}"
#define INT4_G32 CT("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32," \
                    "\"symmetric\":true}")
#define INT4_G128 \
    CT("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":128}")
#define INT4_ZERO CT("{\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32," \
                     "\"symmetric\":false}")

static void matrix_int4_parts_must_agree(void **state)
{
    struct part p[4] = {{"weight_packed", "I32", "[4,16]", 256, {0}},
                        {"weight_scale", "BF16", "[4,4]", 32, {0}},
                        {"weight_shape", "I64", "[2]", 16, {4, 128}},
                        {"weight_zero_point", "I32", "[1,4]", 16, {0}}};

    (void)state;
    matrix_is(p, 3, INT4_G32, MC_D_INT4);
    matrix_is(p, 4, INT4_ZERO, MC_D_INT4);
    matrix_refused(p, 3, INT4_G128, "groups of 32 (K 128, symmetric)");
    matrix_refused(p, 3, INT4_G128, "declares 128");
    matrix_refused(p, 4, INT4_G32, "zero points");
    matrix_refused(p, 3, INT4_ZERO, "symmetric");
    matrix_refused(p, 3, NULL, "quant_method is absent");
    matrix_refused(p, 3, "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}",
                   "awq");
    matrix_refused(p, 3, CT("{\"num_bits\":8,\"type\":\"int\",\"group_size\":32}"),
                   "groups of 32");
    matrix_refused(p, 2, INT4_G32, "no weight_shape");
    p[2].shape_is[1] = 120; /* K of the shape against the packed words */
    matrix_refused(p, 3, INT4_G32,
                   "m.weight_packed has shape [4,16], want [N,K/8] (N 4, K 120");
    p[2].shape_is[1] = 256; /* 8 bits a code, or half of the words */
    matrix_refused(p, 3, INT4_G32, "m.weight_packed");
    p[2].shape_is[1] = 124; /* no whole words */
    matrix_refused(p, 3, INT4_G32, "m.weight_packed");
    p[2].shape_is[1] = -128;
    matrix_refused(p, 3, INT4_G32, "4 x -128");
    p[2].shape_is[1] = 1ll << 40;
    matrix_refused(p, 3, INT4_G32, "4 x 1099511627776");
    p[2].shape_is[1] = 128;
    p[1].shape = "[4,3]"; /* 3 groups do not cut 128 columns */
    p[1].bytes = 24;
    matrix_refused(p, 3, INT4_G32, "m.weight_scale has shape [4,3]");
    p[1].shape = "[3,4]";
    matrix_refused(p, 3, INT4_G32, "m.weight_scale");
    p[1].shape = "[12]";
    matrix_refused(p, 3, INT4_G32, "m.weight_scale");
    p[1].shape = "[4,0]";
    p[1].bytes = 0;
    matrix_refused(p, 3, INT4_G32, "m.weight_scale");
    p[1] = (struct part){"weight_scale", "I16", "[4,4]", 32, {0}};
    matrix_refused(p, 3, INT4_G32, "dtype I16");
    p[1] = (struct part){"weight_scale", "BF16", "[4,4]", 32, {0}};
    p[3].shape = "[4]";
    matrix_refused(p, 4, INT4_ZERO, "m.weight_zero_point");
    p[3] = (struct part){"weight_g_idx", "I32", "[128]", 512, {0}};
    matrix_refused(p, 4, INT4_G32, "weight_g_idx");
    p[3] = (struct part){"weight_global_scale", "F32", "[1]", 4, {0}};
    matrix_refused(p, 4, INT4_G32, "weight_global_scale has no part");
    p[3] = (struct part){"weight", "BF16", "[1,1]", 2, {0}};
    matrix_refused(p, 4, INT4_G32, "weight has no part");
}

static void matrix_quantization_may_be_declared_in_text_config(void **state)
{
    struct part p[3] = {{"weight_packed", "I32", "[4,16]", 256, {0}},
                        {"weight_scale", "BF16", "[4,4]", 32, {0}},
                        {"weight_shape", "I64", "[2]", 16, {4, 128}}};
    char *dir = make(p, 3, NULL);
    struct mc_err err = {0};
    struct mc_ckpt *c;
    struct mc_disk d;

    (void)state;
    tmp_text(dir, "config.json",
             "{\"text_config\":{\"quantization_config\":" INT4_G32 "}}");
    c = opened(dir);
    assert_ok(mc_ckpt_matrix(c, "m", &d, &err), err);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void matrix_int4_shape_may_be_i32(void **state)
{
    struct part p[3] = {{"weight_packed", "I32", "[4,16]", 256, {0}},
                        {"weight_scale", "F16", "[4,4]", 32, {0}},
                        {"weight_shape", "I32", "[2]", 8, {4 | 128ll << 32}}};

    (void)state;
    matrix_is(p, 3, INT4_G32, MC_D_INT4);
    p[2].shape = "[1,2]";
    matrix_refused(p, 3, INT4_G32, "m.weight_shape");
}

static void matrix_fp8_parts_must_agree(void **state)
{
    struct part p[3] = {{"weight", "F8_E4M3", "[130,20]", 2600, {0}},
                        {"weight_scale_inv", "F32", "[2,1]", 8, {0}},
                        {"input_scale", "F32", "[]", 4, {0}}};

    (void)state;
    matrix_is(p, 3, NULL, MC_D_E4M3);
    matrix_refused(p, 2, "{\"weight_block_size\":[64,64]}",
                   "m.weight_scale_inv has shape [2,1], want one a block (N 130, K 20");
    matrix_refused(p, 1, NULL, "no weight_scale");
    p[1].shape = "[1,1]";
    p[1].bytes = 4;
    matrix_refused(p, 2, NULL, "m.weight_scale_inv");
    p[1] = (struct part){"weight_scale", "F32", "[]", 4, {0}};
    matrix_is(p, 2, NULL, MC_D_E4M3);
    p[1] = (struct part){"weight_scale", "BF16", "[130]", 260, {0}};
    matrix_is(p, 2, NULL, MC_D_E4M3);
    p[1] = (struct part){"weight_scale", "F32", "[130,2]", 1040, {0}};
    matrix_refused(p, 2, NULL, "m.weight_scale has shape [130,2]");
    p[1] = (struct part){"weight_scale", "F32", "[2,1]", 8, {0}};
    matrix_is(p, 2, NULL, MC_D_E4M3); /* compressed-tensors' strategy block */
    p[2] = (struct part){"weight_scale_inv", "F32", "[2,1]", 8, {0}};
    matrix_refused(p, 3, NULL, "weight_scale has no part");
    p[0].dtype = "F8_E5M2";
    matrix_refused(p, 2, NULL, "F8_E5M2");
    p[0] = (struct part){"weight", "F8_E4M3", "[2,2,2]", 8, {0}};
    p[1] = (struct part){"weight_scale", "F32", "[1]", 4, {0}};
    matrix_refused(p, 2, NULL, "[2,2,2]");
}

static void matrix_nvfp4_parts_must_agree(void **state)
{
    struct part p[3] = {{"weight_packed", "U8", "[4,16]", 64, {0}},
                        {"weight_scale", "F8_E4M3", "[4,2]", 8, {0}},
                        {"weight_global_scale", "F32", "[1]", 4, {0x3F800000}}};

    (void)state;
    matrix_is(p, 3, NULL, MC_D_NVFP4);
    p[2].shape_is[0] = 0;
    matrix_refused(p, 3, NULL, "m.weight_global_scale is 0");
    p[2].shape_is[0] = 0x7FC00000;
    matrix_refused(p, 3, NULL, "m.weight_global_scale is nan");
    p[2].shape_is[0] = 0x3F800000;
    p[2].name = "weight_scale_2";
    matrix_refused(p, 3, NULL, "no weight_global_scale");
    p[0].name = "weight";
    matrix_is(p, 3, NULL, MC_D_NVFP4);
    p[1].shape = "[2,4]";
    matrix_refused(p, 3, NULL,
                   "m.weight_scale has shape [2,4], want [N,K/16] (N 4, K 32");
    p[1] = (struct part){"weight_scale", "BF16", "[4,2]", 16, {0}};
    matrix_refused(p, 3, NULL, "dtype BF16");
    p[1] = (struct part){"weight_scale", "F8_E4M3", "[4,2]", 8, {0}};
    p[2] = (struct part){"weight_scale_2", "F32", "[2]", 8, {0}};
    matrix_refused(p, 3, NULL, "m.weight_scale_2");
    matrix_refused(p, 2, NULL, "no weight_scale_2");
}

static void matrix_other_layouts_are_refused_by_name(void **state)
{
    struct part awq[3] = {{"qweight", "I32", "[4,4]", 64, {0}},
                          {"qzeros", "I32", "[1,4]", 16, {0}},
                          {"scales", "F16", "[1,32]", 64, {0}}};
    struct part odd[2] = {{"weight", "BF16", "[2,2]", 8, {0}},
                          {"weight_scale", "F32", "[1]", 4, {0}}};
    struct part misplaced[2] = {{"a", "U8", "[1]", 1, {0}}, {"weight", "BF16", "[2,2]", 8, {0}}};

    (void)state;
    matrix_refused(awq, 3, "{\"quant_method\":\"awq\"}", "AWQ");
    matrix_refused(odd, 2, NULL, "weight_scale has no part in a matrix stored as bf16");
    odd[0].dtype = "I16";
    matrix_refused(odd, 1, NULL, "I16");
    odd[0] = (struct part){"weight", "I8", "[2,2]", 4, {0}};
    matrix_refused(odd, 2, NULL, "I8");
    odd[0] = (struct part){"weight", "BF16", "[4]", 8, {0}};
    matrix_refused(odd, 1, NULL, "[4]");
    odd[0] = (struct part){"weight", "BF16", "[0,4]", 0, {0}};
    matrix_refused(odd, 1, NULL, "m is a matrix of 0 x 4");
    matrix_refused(misplaced, 2, NULL, "m.weight is not aligned to 2 bytes");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(matrix_hf_formats_decode_as_their_references),
    cmocka_unit_test(matrix_ggml_formats_decode_as_their_references),
    cmocka_unit_test(matrix_int4_nibbles_are_little_end_first_with_offset_eight),
    cmocka_unit_test(matrix_bytes_are_whole_blocks),
    cmocka_unit_test(matrix_real_checkpoints_resolve_whole),
    cmocka_unit_test(matrix_int4_parts_must_agree),
    cmocka_unit_test(matrix_quantization_may_be_declared_in_text_config),
    cmocka_unit_test(matrix_int4_shape_may_be_i32),
    cmocka_unit_test(matrix_fp8_parts_must_agree),
    cmocka_unit_test(matrix_nvfp4_parts_must_agree),
    cmocka_unit_test(matrix_other_layouts_are_refused_by_name),
};

MC_TEST_MAIN(tests)

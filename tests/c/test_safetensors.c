/* test_safetensors.c - safetensors headers: good ones, and every broken one we know. */
#include "tests/c/test.h"

#include <sys/resource.h>

#include "tests/c/st_write.h"

/* A directory whose model.safetensors has this header over n_data zero bytes. */
static void header_refused(const char *header, size_t n_data, const char *says)
{
    char *dir = new_dir();

    put(dir, "model.safetensors", header, UINT64_MAX, NULL, n_data);
    refused(dir, says);
    tmp_free(dir);
}

static void header_loads(const char *header, size_t n_data, int32_t n_tensor)
{
    char *dir = new_dir();
    struct mc_ckpt *c;

    put(dir, "model.safetensors", header, UINT64_MAX, NULL, n_data);
    c = opened(dir);
    assert_int_equal(mc_ckpt_n(c), n_tensor);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void safetensors_smallest_good_file_loads(void **state)
{
    char *dir = new_dir();
    float one = 1.0f, got = 0;
    struct mc_err err = {0};
    const struct mc_stored *a;
    struct mc_ckpt *c;
    struct stat st;

    (void)state;
    put(dir, "model.safetensors", A_F32, UINT64_MAX, &one, 4);
    assert_int_equal(stat(tmp_path(dir, "model.safetensors"), &st), 0);
    assert_int_equal(st.st_size, 66);
    c = opened(dir);
    assert_int_equal(mc_ckpt_kind(c), MC_CKPT_HF);
    assert_string_equal(mc_ckpt_path(c), dir);
    assert_int_equal(mc_ckpt_n(c), 1);
    a = mc_ckpt_find(c, "a");
    assert_ptr_equal(a, mc_ckpt_at(c, 0));
    assert_null(mc_ckpt_at(c, 1));
    assert_null(mc_ckpt_find(c, "b"));
    assert_string_equal(a->dtype, "F32");
    assert_int_equal(a->n_dim, 1);
    assert_int_equal(a->bytes, 4);
    assert_ok(mc_ckpt_vector(c, "a", 1, &got, &err), err);
    assert_true(got == 1.0f);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void safetensors_header_length_is_checked_before_use(void **state)
{
    static const uint64_t bad[] = {0, 1, UINT64_MAX - 1, UINT64_MAX - 7, 1ull << 63,
                                   3, 100000001};
    char *dir = new_dir();
    struct rusage before, after;
    double t0 = now();
    uint64_t n;
    int fd;

    (void)state;
    getrusage(RUSAGE_SELF, &before);
    tmp_write(dir, "model.safetensors", "1234567", 7);
    refused(dir, "header length");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(dir, "model.safetensors", "{}", bad[i], NULL, 0);
        refused(dir, "header length");
    }
    n = UINT64_MAX; /* put's own mark */
    tmp_write(dir, "model.safetensors", &n, 8);
    refused(dir, "header length");
    /* One over the cap in a sparse file that is long enough: the text states the cap. */
    n = 100000001;
    tmp_write(dir, "model.safetensors", &n, 8);
    fd = open(tmp_path(dir, "model.safetensors"), O_WRONLY);
    assert_int_equal(ftruncate(fd, 1ll << 28), 0);
    close(fd);
    refused(dir, "100000000");
    getrusage(RUSAGE_SELF, &after);
    assert_true(now() - t0 < 1.0);
    assert_true(after.ru_maxrss - before.ru_maxrss < 32 << 10);
    tmp_free(dir);
}

static void safetensors_empty_file_is_refused(void **state)
{
    char *dir = new_dir();

    (void)state;
    tmp_write(dir, "model.safetensors", "", 0);
    refused(dir, "empty");
    tmp_free(dir);
}

static void safetensors_offsets_must_fit_shape_and_file(void **state)
{
    static const struct {
        const char *offsets, *says;
    } bad[] = {
        {"[4,0]", "'a'"}, {"[-4,0]", "'a'"}, {"[0,8]", "'a'"}, {"[0,4,8]", "'a'"},
        {"[0]", "'a'"}, {"[0.5,4.5]", "'a'"}, {"[\"0\",\"4\"]", "'a'"},
        {"[0,9223372036854775808]", "'a'"}, {"[1,5]", "'a'"}, {"[]", "'a'"},
        {"null", "'a'"}, {"{}", "'a'"}, {"[0,3]", "take 4"}, {"[0,9223372036854775807]", "'a'"},
        {"[0,1e0]", "'a'"}, {"[true,4]", "'a'"},
    };
    char header[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":%s}}",
                 bad[i].offsets);
        header_refused(header, 4, bad[i].says);
    }
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'a'");
    header_refused(A_F32, 8, "the last is a"); /* bytes after the last tensor */
    header_refused("{}", 4, "data"); /* and no tensor at all */
}

static void safetensors_shapes_are_natural_numbers_that_fit(void **state)
{
    static const struct {
        const char *shape, *says;
    } bad[] = {
        {"[1000,1000]", "take 4000000"}, {"[-1]", "'a'"}, {"[1.0]", "'a'"}, {"1", "'a'"},
        {"[\"1\"]", "'a'"}, {"[[1]]", "'a'"}, {"null", "'a'"},
        {"[4294967296,4294967296]", "larger"}, {"[2305843009213693952,8]", "larger"},
        {"[9223372036854775807,9223372036854775807]", "larger"},
        {"[1,1,1,1,1,1,1,1,1]", "9 dimensions"}, {"[0]", "take 0"},
    };
    char header[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,4]}}",
                 bad[i].shape);
        header_refused(header, 4, bad[i].says);
    }
    header_loads("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1);
    header_loads("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0,
                 1);
    header_loads("{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3,
                 1);
    header_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
                   "whole");
    header_loads(
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,2,1,2],\"data_offsets\":[0,4]}}", 4, 1);
}

static void safetensors_tensors_tile_the_data(void **state)
{
    (void)state;
    header_refused("{" TENSOR("a", 0, 4) "," TENSOR("b", 0, 4) "}", 4, "overlap");
    header_refused("{" TENSOR("a", 0, 4) "," TENSOR("b", 2, 6) "}", 6, "overlap");
    header_refused("{" TENSOR("a", 0, 4) "," TENSOR("b", 8, 12) "}", 12, "gap");
    header_refused("{" TENSOR("a", 4, 8) "}", 8, "gap");
    header_loads("{" TENSOR("a", 4, 8) "," TENSOR("b", 0, 4) "}", 8, 2);
    header_loads("{}", 0, 0);
}

static void safetensors_duplicates_are_refused_by_name(void **state)
{
    char *dir = new_dir();

    (void)state;
    header_refused("{" TENSOR("twin", 0, 4) "," TENSOR("twin", 4, 8) "}", 8, "duplicate");
    header_refused("{" TENSOR("twin", 0, 4) "," TENSOR("twin", 4, 8) "}", 8, "twin");
    header_refused("{" TENSOR("a", 0, 4) "," TENSOR(
                       "model.layers.0.self_attn.q_proj.weight", 4,
                       8) "," TENSOR("model.layers.0.self_attn.q_proj.weight", 8, 12) "}",
                   12, "'model.layers.0.self_attn.q_proj.weight'");
    header_refused("{\"twin\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
                   "\"data_offsets\":[0,4]}}", 4, "'twin'");
    /* The same name in two shards. */
    put(dir, "one.safetensors", "{" TENSOR("twin", 0, 4) "}", UINT64_MAX, NULL, 4);
    put(dir, "two.safetensors", "{" TENSOR("twin", 0, 4) "," TENSOR("b", 4, 8) "}",
        UINT64_MAX, NULL, 8);
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"twin\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    refused(dir, "duplicate tensor 'twin'");
    tmp_free(dir);
}

static void safetensors_unknown_dtypes_are_refused_for_every_tensor(void **state)
{
    static const char *const bad[] = {"\"F4X\"", "\"f32\"", "\"\"", "7", "null", "[]",
                                      "\"F32 \"", "\"F\\u00333\""};
    char header[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(header, sizeof header,
                 "{\"odd\":{\"dtype\":%s,\"shape\":[1],\"data_offsets\":[0,4]}}", bad[i]);
        header_refused(header, 4, "'odd'");
    }
    header_refused("{\"odd\":{\"dtype\":\"F4X\",\"shape\":[1],"
                   "\"data_offsets\":[0,18446744073709551615]}}", 4, "'odd'");
    header_refused("{\"odd\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'odd'");
    header_refused("{\"odd\":7}", 4, "'odd'");
    /* What a file says does not break the error's line. */
    header_refused("{\"odd\":{\"dtype\":\"a\\nb\\u001b[31m\",\"shape\":[1],"
                   "\"data_offsets\":[0,4]}}", 4, "dtype a b [31m");
}

static void safetensors_a_dtype_must_suit_the_role(void **state)
{
    static const char *const wrong[] = {"I32", "F8_E4M3", "F8_E5M2", "U8", "F64"};
    char *dir = new_dir(), header[256];
    static const int width[] = {4, 1, 1, 1, 8};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct mc_err err = {0};
        struct mc_ckpt *c;
        float got[2];

        snprintf(header, sizeof header,
                 "{\"model.norm.weight\":{\"dtype\":\"%s\",\"shape\":[2],"
                 "\"data_offsets\":[0,%d]}}", wrong[i], 2 * width[i]);
        put(dir, "model.safetensors", header, UINT64_MAX, NULL, (size_t)(2 * width[i]));
        c = opened(dir);
        assert_int_equal(mc_ckpt_vector(c, "model.norm.weight", 2, got, &err), MC_EUNSUP);
        assert_non_null(strstr(err.text, "model.norm.weight"));
        assert_non_null(strstr(err.text, wrong[i]));
        mc_ckpt_close(c);
    }
    tmp_free(dir);
}

static void safetensors_vectors_convert_and_check_their_length(void **state)
{
    static const uint16_t half[3] = {0x3C00, 0xC000, 0x0001}; /* 1, -2, 2^-24 */
    struct mc_err err = {0};
    char *dir = new_dir();
    struct mc_ckpt *c;
    float got[3];

    (void)state;
    put(dir, "model.safetensors",
        "{\"v\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]}}", UINT64_MAX, half, 6);
    c = opened(dir);
    assert_ok(mc_ckpt_vector(c, "v", 3, got, &err), err);
    assert_true(got[0] == 1.0f && got[1] == -2.0f && got[2] == 0x1p-24f);
    assert_int_equal(mc_ckpt_vector(c, "v", 2, got, &err), MC_EFORMAT);
    assert_non_null(strstr(err.text, "[3]"));
    assert_int_equal(mc_ckpt_vector(c, "w", 3, got, &err), MC_ENOENT);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void safetensors_metadata_is_a_string_map_and_may_be_empty(void **state)
{
    (void)state;
    header_loads("{\"__metadata__\":{}," TENSOR("a", 0, 4) "}", 4, 1);
    header_loads("{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", 0, 4) "}", 4, 1);
    header_loads("{\"__metadata__\":{}}", 0, 0);
    header_refused("{\"__metadata__\":{\"k\":0}," TENSOR("a", 0, 4) "}", 4,
                   "__metadata__");
    header_refused("{\"__metadata__\":[]," TENSOR("a", 0, 4) "}", 4, "__metadata__");
    header_loads("{" TENSOR("__metadata__x", 0, 4) "}", 4, 1);
    header_loads(A_F32 "      ", 4, 1);
    header_refused(" " A_F32, 4, "'{'");
    header_refused("[]", 0, "'{'");
    header_refused("{\"a\":", 0, "line 1");
    header_refused(A_F32 "{}", 4, "line 1");
    header_refused("{" TENSOR("a\\u0000b", 0, 4) "}", 4, "line 1");
    header_refused("{" TENSOR("a\\u001bb", 0, 4) "}", 4, "printable");
    header_refused("{" TENSOR("", 0, 4) "}", 4, "printable");
}

static void safetensors_deep_nesting_is_refused(void **state)
{
    char *deep = malloc(200001);

    (void)state;
    memset(deep, '[', 200000);
    memcpy(deep, "{\"a\":", 5);
    deep[200000] = 0;
    header_refused(deep, 0, "depth");
    free(deep);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(safetensors_smallest_good_file_loads),
    cmocka_unit_test(safetensors_header_length_is_checked_before_use),
    cmocka_unit_test(safetensors_empty_file_is_refused),
    cmocka_unit_test(safetensors_offsets_must_fit_shape_and_file),
    cmocka_unit_test(safetensors_shapes_are_natural_numbers_that_fit),
    cmocka_unit_test(safetensors_tensors_tile_the_data),
    cmocka_unit_test(safetensors_duplicates_are_refused_by_name),
    cmocka_unit_test(safetensors_unknown_dtypes_are_refused_for_every_tensor),
    cmocka_unit_test(safetensors_a_dtype_must_suit_the_role),
    cmocka_unit_test(safetensors_vectors_convert_and_check_their_length),
    cmocka_unit_test(safetensors_metadata_is_a_string_map_and_may_be_empty),
    cmocka_unit_test(safetensors_deep_nesting_is_refused),
};

MC_TEST_MAIN(tests)

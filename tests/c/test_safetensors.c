/* test_safetensors.c - Hugging Face directories: good ones, and every broken one we know. */
#include "tests/c/test.h"

#include <math.h>
#include <sys/resource.h>
#include <time.h>

#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

/* Writes dir/name: length n (-1: the real one), header, n_data zero bytes. */
static void put(const char *dir, const char *name, const char *header, uint64_t n,
                const void *data, size_t n_data)
{
    size_t n_header = strlen(header);
    uint8_t *b = calloc(1, 8 + n_header + n_data);

    if (n == UINT64_MAX)
        n = n_header;
    memcpy(b, &n, 8);
    memcpy(b + 8, header, n_header);
    if (data)
        memcpy(b + 8 + n_header, data, n_data);
    tmp_write(dir, name, b, 8 + n_header + n_data);
    free(b);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Opening dir must fail with a text that holds `says`. */
static void refused(const char *dir, const char *says)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};
    int rc = mc_ckpt_open(dir, &c, &err);

    assert_null(c);
    if (rc == 0 || !strstr(err.text, says))
        fail_msg("want '%s' in: %d %s", says, rc, err.text);
    assert_int_equal(rc, err.code);
    assert_int_equal(mc_ckpt_open(dir, &c, NULL), rc);
}

static struct mc_ckpt *opened(const char *dir)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};

    assert_ok(mc_ckpt_open(dir, &c, &err), err);
    return c;
}

static char *new_dir(void)
{
    char *dir = tmp_new();

    tmp_text(dir, "config.json", "{}");
    return dir;
}

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

#define A_F32 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

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
    assert_int_equal(ftruncate(fd, 1ll << 40), 0);
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
    header_loads("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, 1);
    header_loads("{\"a\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[0,3]}}", 3, 1);
    header_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "whole");
    header_loads("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,2,1,2],\"data_offsets\":[0,4]}}", 4, 1);
}

#define TENSOR(name, from, to) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" #from "," #to "]}"

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
    header_refused("{" TENSOR("a", 0, 4) "," TENSOR("model.layers.0.self_attn.q_proj.weight", 4, 8)
                   "," TENSOR("model.layers.0.self_attn.q_proj.weight", 8, 12) "}", 12,
                   "'model.layers.0.self_attn.q_proj.weight'");
    header_refused("{\"twin\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
                   "\"data_offsets\":[0,4]}}", 4, "'twin'");
    /* The same name in two shards. */
    put(dir, "one.safetensors", "{" TENSOR("twin", 0, 4) "}", UINT64_MAX, NULL, 4);
    put(dir, "two.safetensors", "{" TENSOR("twin", 0, 4) "," TENSOR("b", 4, 8) "}", UINT64_MAX,
        NULL, 8);
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
    header_refused("{\"__metadata__\":{\"k\":0}," TENSOR("a", 0, 4) "}", 4, "__metadata__");
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

/* ---- shards -------------------------------------------------------------------------- */

static void index_of(const char *dir, const char *shard)
{
    char text[512];

    snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":{\"a\":%s}}", shard);
    tmp_text(dir, "model.safetensors.index.json", text);
}

static void shards_open_in_the_directory(void **state)
{
    char *dir = new_dir();
    struct mc_ckpt *c;

    (void)state;
    put(dir, "m-2.safetensors", "{" TENSOR("b", 0, 4) "}", UINT64_MAX, "bbbb", 4);
    put(dir, "m-1.safetensors", "{" TENSOR("a", 0, 4) "," TENSOR("c", 4, 8) "}", UINT64_MAX,
        "aaaacccc", 8);
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\","
             "\"c\":\"m-1.safetensors\"}}");
    c = opened(dir);
    assert_int_equal(mc_ckpt_n(c), 3);
    assert_memory_equal(mc_ckpt_find(c, "a")->data, "aaaa", 4);
    assert_memory_equal(mc_ckpt_find(c, "b")->data, "bbbb", 4);
    assert_memory_equal(mc_ckpt_find(c, "c")->data, "cccc", 4);
    mc_ckpt_close(c);
    /* A tensor that the index puts elsewhere, one that is nowhere, one it does not list. */
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"b\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}}");
    refused(dir, "'b'");
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"x.y\":\"m-2.safetensors\",\"b\":\"m-2.safetensors\"}}");
    refused(dir, "'x.y'");
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"m-1.safetensors\"}}");
    refused(dir, "'c'");
    tmp_text(dir, "model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}");
    refused(dir, "duplicate");
    tmp_text(dir, "model.safetensors.index.json", "{\"weight_map\":[]}");
    refused(dir, "weight_map");
    tmp_text(dir, "model.safetensors.index.json", "{}");
    refused(dir, "weight_map");
    tmp_text(dir, "model.safetensors.index.json", "[]");
    refused(dir, "not a JSON object");
    tmp_free(dir);
}

static void shards_have_plain_names(void **state)
{
    static const char *const bad[] = {
        "\"../x.safetensors\"", "\"/etc/passwd\"", "\"a/../../x.safetensors\"", "\".\"", "\"\"",
        "\"..\"", "\"sub/x.safetensors\"", "\"/x.safetensors\"", "\".safetensors\"",
        "\"x.bin\"", "7", "null", "[\"x.safetensors\"]", "\"x\\n.safetensors\"",
    };
    char *root = tmp_new(), *dir = strdup(tmp_path(root, "model"));

    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(mkdir(tmp_path(dir, "sub"), 0700), 0);
    tmp_text(dir, "config.json", "{}");
    put(root, "x.safetensors", A_F32, UINT64_MAX, NULL, 4); /* good, but outside */
    put(dir, "sub/x.safetensors", A_F32, UINT64_MAX, NULL, 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        index_of(dir, bad[i]);
        refused(dir, "plain file name");
    }
    index_of(dir, "\"x\\u0000.safetensors\"");
    refused(dir, "\\u0000");
    index_of(dir, "\"gone.safetensors\"");
    refused(dir, "gone.safetensors");
    free(dir);
    tmp_free(root);
}

static void shards_are_regular_files_and_opening_never_waits(void **state)
{
    char *dir = new_dir();
    double t0 = now();

    (void)state;
    index_of(dir, "\"x.safetensors\"");
    assert_int_equal(mkfifo(tmp_path(dir, "x.safetensors"), 0600), 0);
    refused(dir, "not a regular file");
    assert_int_equal(unlink(tmp_path(dir, "x.safetensors")), 0);
    assert_int_equal(mkdir(tmp_path(dir, "x.safetensors"), 0700), 0);
    refused(dir, "not a regular file");
    assert_int_equal(mkfifo(tmp_path(dir, "pipe"), 0600), 0);
    refused(tmp_path(dir, "pipe"), "neither a file nor a directory");
    assert_true(now() - t0 < 1.0);
    tmp_free(dir);
}

static void shards_behind_links_out_of_the_directory_are_refused(void **state)
{
    char *root = tmp_new(), *dir = strdup(tmp_path(root, "sub/model"));
    struct mc_ckpt *c;

    (void)state;
    assert_int_equal(mkdir(tmp_path(root, "sub"), 0700), 0);
    assert_int_equal(mkdir(tmp_path(root, "blobs"), 0700), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    tmp_text(dir, "config.json", "{}");
    index_of(dir, "\"x.safetensors\"");
    put(root, "out.safetensors", A_F32, UINT64_MAX, NULL, 4);
    put(root, "blobs/b", A_F32, UINT64_MAX, NULL, 4);
    assert_int_equal(symlink("../../out.safetensors", tmp_path(dir, "x.safetensors")), 0);
    refused(dir, "link");
    assert_int_equal(unlink(tmp_path(dir, "x.safetensors")), 0);
    assert_int_equal(symlink(tmp_path(root, "out.safetensors"),
                             tmp_path(dir, "x.safetensors")), 0);
    refused(dir, "link");
    /* blobs of some other directory, which is no hub cache */
    assert_int_equal(unlink(tmp_path(dir, "x.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/b", tmp_path(dir, "x.safetensors")), 0);
    refused(dir, "link");
    /* to a neighbour: stays inside */
    assert_int_equal(unlink(tmp_path(dir, "x.safetensors")), 0);
    put(dir, "y.safetensors", A_F32, UINT64_MAX, NULL, 4);
    assert_int_equal(symlink("y.safetensors", tmp_path(dir, "x.safetensors")), 0);
    c = opened(dir);
    mc_ckpt_close(c);
    /* in a circle */
    assert_int_equal(unlink(tmp_path(dir, "y.safetensors")), 0);
    assert_int_equal(symlink("x.safetensors", tmp_path(dir, "y.safetensors")), 0);
    refused(dir, "link");
    free(dir);
    tmp_free(root);
}

static void shards_of_a_hub_cache_are_links_into_its_blobs(void **state)
{
    char *root = tmp_new(), *dir = strdup(tmp_path(root, "models--x/snapshots/rev"));
    struct mc_ckpt *c;

    (void)state;
    assert_int_equal(mkdir(tmp_path(root, "models--x"), 0700), 0);
    assert_int_equal(mkdir(tmp_path(root, "models--x/blobs"), 0700), 0);
    assert_int_equal(mkdir(tmp_path(root, "models--x/snapshots"), 0700), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    tmp_text(root, "models--x/blobs/c0ffee", "{\"model_type\":\"llama\"}");
    put(root, "models--x/blobs/beef", A_F32, UINT64_MAX, NULL, 4);
    assert_int_equal(symlink("../../blobs/c0ffee", tmp_path(dir, "config.json")), 0);
    assert_int_equal(symlink("../../blobs/beef", tmp_path(dir, "model.safetensors")), 0);
    c = opened(dir);
    assert_int_equal(mc_ckpt_n(c), 1);
    assert_string_equal(json_string_value(json_object_get(mc_ckpt_config(c), "model_type")),
                        "llama");
    mc_ckpt_close(c);
    /* A blob that leaves the blobs. */
    assert_int_equal(unlink(tmp_path(dir, "model.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/../../x", tmp_path(dir, "model.safetensors")), 0);
    refused(dir, "link");
    assert_int_equal(unlink(tmp_path(dir, "model.safetensors")), 0);
    assert_int_equal(symlink("/etc/passwd", tmp_path(root, "models--x/blobs/evil")), 0);
    assert_int_equal(symlink("../../blobs/evil", tmp_path(dir, "model.safetensors")), 0);
    refused(dir, "link");
    free(dir);
    tmp_free(root);
}

static void shards_index_of_a_million_entries_is_handled(void **state)
{
    char *dir = new_dir();
    FILE *f = fopen(tmp_path(dir, "model.safetensors.index.json"), "w");
    double t0 = now();

    (void)state;
    fprintf(f, "{\"weight_map\":{");
    for (int i = 0; i < 1000000; i++)
        fprintf(f, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i % 7);
    fprintf(f, "}}");
    assert_int_equal(fclose(f), 0);
    refused(dir, "no file s0.safetensors");
    assert_true(now() - t0 < 60.0);
    tmp_free(dir);
}

static void shards_are_limited_in_number(void **state)
{
    char *dir = new_dir(), name[32];
    FILE *f = fopen(tmp_path(dir, "model.safetensors.index.json"), "w");

    (void)state;
    fprintf(f, "{\"weight_map\":{");
    for (int i = 0; i < 4097; i++) {
        fprintf(f, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i);
        snprintf(name, sizeof name, "s%d.safetensors", i);
        put(dir, name, "{}", UINT64_MAX, NULL, 0);
    }
    fprintf(f, "}}");
    assert_int_equal(fclose(f), 0);
    refused(dir, "4096 shards");
    tmp_free(dir);
}

/* ---- directories and their other files ----------------------------------------------- */

static void directory_that_is_no_checkpoint_says_why(void **state)
{
    char *dir = tmp_new();

    (void)state;
    refused("/no/such/checkpoint", "No such file");
    refused("/no/such/checkpoint", "opening /no/such/checkpoint");
    refused(dir, "no model.safetensors");
    tmp_text(dir, "config.json", "{}");
    refused(dir, "only a config.json");
    put(dir, "model.safetensors", A_F32, UINT64_MAX, NULL, 4);
    refused(tmp_path(dir, "model.safetensors"), "not a GGUF");
    refused(tmp_path(dir, "model.safetensors"), "give the directory");
    assert_int_equal(unlink(tmp_path(dir, "config.json")), 0);
    refused(dir, "no config.json");
    tmp_text(dir, "config.json", "{\"a\":1,\"a\":2}");
    refused(dir, "reading config.json");
    refused(dir, "duplicate");
    tmp_text(dir, "config.json", "[]");
    refused(dir, "not a JSON object");
    tmp_text(dir, "config.json", "{\"a\":\n NaN}");
    refused(dir, "line 2");
    tmp_text(dir, "config.json", "{}");
    tmp_text(dir, "generation_config.json", "{");
    refused(dir, "generation_config.json");
    tmp_free(dir);
}

static void directory_of_several_ggufs_lists_them(void **state)
{
    char *dir = tmp_new(), name[32];

    (void)state;
    tmp_text(dir, "b.gguf", "");
    tmp_text(dir, "a.gguf", "");
    tmp_text(dir, "c.txt", "");
    refused(dir, "2 GGUFs, name one: a.gguf, b.gguf");
    for (int i = 10; i < 30; i++) {
        snprintf(name, sizeof name, "m%d.gguf", i);
        tmp_text(dir, name, "");
    }
    refused(dir, "22 GGUFs, name one: a.gguf, b.gguf, m10.gguf");
    refused(dir, "...");
    tmp_free(dir);
}

static void directory_files_are_read_by_plain_name(void **state)
{
    char *dir = new_dir(), *text = NULL;
    struct mc_err err = {0};
    struct mc_ckpt *c;
    size_t n = 0;

    (void)state;
    put(dir, "model.safetensors", A_F32, UINT64_MAX, NULL, 4);
    tmp_text(dir, "tokenizer.json", "hello");
    c = opened(dir);
    assert_ok(mc_ckpt_file(c, "tokenizer.json", 5, &text, &n, &err), err);
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    assert_int_equal(mc_ckpt_file(c, "tokenizer.json", 4, &text, &n, &err), MC_EBIG);
    assert_null(text);
    assert_int_equal(mc_ckpt_file(c, "absent", 4, &text, &n, &err), MC_ENOENT);
    assert_int_equal(mc_ckpt_file(c, "../x", 4, &text, &n, &err), MC_EFORMAT);
    assert_int_equal(mc_ckpt_file(c, "/etc/passwd", 4, &text, &n, &err), MC_EFORMAT);
    assert_null(mc_ckpt_generation_config(c));
    assert_null(mc_ckpt_tokenizer_config(c));
    assert_null(mc_ckpt_gguf(c));
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void directory_with_an_integer_beyond_64_bits_still_loads(void **state)
{
    char *dir = new_dir();
    struct mc_ckpt *c;
    json_t *t;

    (void)state;
    put(dir, "model.safetensors", A_F32, UINT64_MAX, NULL, 4);
    tmp_text(dir, "tokenizer_config.json",
             "{\"model_max_length\": 1000000000000000019884624838656, \"n\": 7}");
    c = opened(dir);
    t = mc_ckpt_tokenizer_config(c);
    assert_true(json_number_value(json_object_get(t, "model_max_length")) == 1e30);
    assert_true(json_number_value(json_object_get(t, "n")) == 7);
    mc_ckpt_close(c);
    tmp_free(dir);
}

static void directory_of_a_real_model_opens(void **state)
{
    struct mc_ckpt *c = opened("tests/models/tiny-llama");
    const struct mc_stored *t = mc_ckpt_find(c, "model.embed_tokens.weight");
    struct mc_err err = {0};
    uint8_t first[64];
    float norm[256];

    (void)state;
    assert_int_equal(mc_ckpt_n(c), 38);
    assert_int_equal(t->dim[0], 2048);
    assert_int_equal(t->dim[1], 256);
    assert_ok(mc_ckpt_vector(c, "model.norm.weight", 256, norm, &err), err);
    assert_true(isfinite(norm[0]) && norm[0] != 0);
    /* Dropped pages come back from the file. */
    memcpy(first, t->data, sizeof first);
    mc_ckpt_drop(c, t->data, t->bytes);
    assert_memory_equal(t->data, first, sizeof first);
    mc_ckpt_drop(c, first, sizeof first); /* not ours: left alone */
    mc_ckpt_close(c);
    mc_ckpt_close(NULL);
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
    cmocka_unit_test(shards_open_in_the_directory),
    cmocka_unit_test(shards_have_plain_names),
    cmocka_unit_test(shards_are_regular_files_and_opening_never_waits),
    cmocka_unit_test(shards_behind_links_out_of_the_directory_are_refused),
    cmocka_unit_test(shards_of_a_hub_cache_are_links_into_its_blobs),
    cmocka_unit_test(shards_index_of_a_million_entries_is_handled),
    cmocka_unit_test(shards_are_limited_in_number),
    cmocka_unit_test(directory_that_is_no_checkpoint_says_why),
    cmocka_unit_test(directory_of_several_ggufs_lists_them),
    cmocka_unit_test(directory_files_are_read_by_plain_name),
    cmocka_unit_test(directory_with_an_integer_beyond_64_bits_still_loads),
    cmocka_unit_test(directory_of_a_real_model_opens),
};

MC_TEST_MAIN(tests)

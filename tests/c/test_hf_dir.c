/* test_hf_dir.c - Hugging Face directories: shards, links, and the files beside them. */
#include "tests/c/test.h"

#include <math.h>

#include "tests/c/st_write.h"

/* ---- shards ------------------------------------------------------------------------ */

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
    put(dir, "m-1.safetensors", "{" TENSOR("a", 0, 4) "," TENSOR("c", 4, 8) "}",
        UINT64_MAX, "aaaacccc", 8);
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
    assert_string_equal(json_string_value(
                            json_object_get(mc_ckpt_config(c), "model_type")),
                        "llama");
    mc_ckpt_close(c);
    /* A blob that leaves the blobs. */
    assert_int_equal(unlink(tmp_path(dir, "model.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/../../x", tmp_path(dir, "model.safetensors")),
                     0);
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

/* ---- directories and their other files --------------------------------------------- */

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

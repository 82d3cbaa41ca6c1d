/* hf.c - a Hugging Face directory: its JSON files and its safetensors, one or in shards.
 *
 * Owns nothing: all goes to the checkpoint. THREAD: opening; mc_ckpt_file: any.
 * Like transformers it prefers model.safetensors to an index. With an index each tensor is
 * in the shard that the index says, and nothing is in a shard that the index lacks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/weights/ckpt_int.h"

enum {
    JSON_MAX = 32 << 20,   /* the longest tokenizer_config.json seen is under 1 MB */
    INDEX_MAX = 256 << 20, /* Kimi K2's index: 23 MB */
    SHARD_MAX = 4096,
};

static int read_all(int fd, char *text, size_t n, const char *name, struct mc_err *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, text + done, n - done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return mc_fail(err, MC_EIO, "%s: %s", name,
                           got < 0 ? strerror(errno) : "it became shorter");
        done += (size_t)got;
    }
    return 0;
}

int mc_ckpt_file(const struct mc_ckpt *c, const char *name, size_t max_bytes, char **text,
                 size_t *n, struct mc_err *err)
{
    int64_t size = 0;
    int fd, rc;

    *text = NULL;
    if (c->dir < 0)
        return mc_fail(err, MC_ENOENT, "a GGUF has no file %s beside it", name);
    fd = mc_dir_open(c->dir, name, &size, err);
    if (fd < 0)
        return fd;
    if ((uint64_t)size > max_bytes) {
        rc = mc_fail(err, MC_EBIG, "%s has %lld bytes, at most %zu are read", name,
                     (long long)size, max_bytes);
        goto done;
    }
    *text = malloc((size_t)size + 1);
    if (!*text) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for %s", name);
        goto done;
    }
    rc = read_all(fd, *text, (size_t)size, name, err);
    if (rc < 0) {
        free(*text);
        *text = NULL;
        goto done;
    }
    (*text)[size] = 0;
    *n = (size_t)size;
done:
    close(fd);
    return rc;
}

/* An optional JSON object in a file; *out stays NULL when there is no such file. */
static int read_json(const struct mc_ckpt *c, const char *name, size_t max_bytes,
                     int depth, json_t **out, struct mc_err *err)
{
    char *text;
    size_t n;
    int rc;

    rc = mc_ckpt_file(c, name, max_bytes, &text, &n, err);
    if (rc == MC_ENOENT)
        return 0;
    if (rc < 0)
        return rc;
    rc = mc_json_parse(text, n, 0, depth, out, err);
    if (rc < 0) /* an integer beyond 64 bits? */
        rc = mc_json_parse(text, n, JSON_DECODE_INT_AS_REAL, depth, out, err);
    free(text);
    if (rc < 0)
        mc_err_while(err, "reading %s", name);
    if (rc == 0 && !json_is_object(*out))
        rc = mc_fail(err, MC_EFORMAT, "%s is not a JSON object", name);
    return rc;
}

static int open_shard(struct mc_ckpt *c, const char *name, struct mc_err *err)
{
    int64_t size = 0;
    int fd, rc;

    fd = mc_dir_open(c->dir, name, &size, err);
    if (fd < 0)
        return fd;
    rc = mc_ckpt_map(c, fd, size, name, err);
    if (rc == 0)
        rc = mc_safetensors_read(c, c->n_map - 1, err);
    if (rc < 0)
        mc_err_while(err, "reading %s", name);
    return rc;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_shard_name(const char *tensor, const json_t *value, struct mc_err *err)
{
    const char *s = json_string_value(value);
    size_t n = s ? strlen(s) : 0;

    if (!mc_ckpt_name_ok(tensor, strlen(tensor)))
        return mc_fail(err, MC_EFORMAT,
                       "weight_map: a name is not 1 to 255 printable bytes");
    if (n < 13 || !mc_name_plain(s) || strcmp(s + n - 12, ".safetensors") != 0)
        return mc_fail(err, MC_EFORMAT, "weight_map of '%.80s' is not a plain file name "
                       "ending in .safetensors: '%s'", tensor, s ? s : "(not a string)");
    return 0;
}

/* Opens each shard that weight_map names, in the order of names. */
static int open_shards(struct mc_ckpt *c, json_t *weight_map, struct mc_err *err)
{
    size_t n = json_object_size(weight_map), at = 0;
    const char **name, *tensor;
    json_t *value;
    int rc = 0;

    name = calloc(n + 1, sizeof *name);
    if (!name)
        return mc_fail(err, MC_ENOMEM, "no memory for %zu index entries", n);
    json_object_foreach (weight_map, tensor, value) {
        rc = check_shard_name(tensor, value, err);
        if (rc < 0)
            goto done;
        name[at++] = json_string_value(value);
    }
    qsort(name, n, sizeof *name, by_string);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (i > 0 && strcmp(name[i], name[i - 1]) == 0)
            continue;
        if (c->n_map == SHARD_MAX)
            rc = mc_fail(err, MC_ELIMIT, "more than %d shards", SHARD_MAX);
        else
            rc = open_shard(c, name[i], err);
    }
done:
    free(name);
    return rc;
}

/* Each tensor of the index is in its shard, and each tensor of a shard in the index. */
static int check_index(const struct mc_ckpt *c, json_t *weight_map, struct mc_err *err)
{
    const char *name;
    json_t *value;

    json_object_foreach (weight_map, name, value) {
        const struct mc_tensor_ref *t = mc_ckpt_ref(c, name);

        if (!t || strcmp(c->map[t->map].name, json_string_value(value)) != 0)
            return mc_fail(err, MC_EFORMAT,
                           "tensor '%.100s' is not where the index has it, in %s", name,
                           json_string_value(value));
    }
    for (int32_t i = 0; i < c->n; i++)
        if (!json_object_get(weight_map, c->tensor[i].hf))
            return mc_fail(err, MC_EFORMAT,
                           "tensor '%.100s' is not in the index, but in %s",
                           c->tensor[i].hf, c->map[c->tensor[i].map].name);
    return 0;
}

static int open_index(struct mc_ckpt *c, struct mc_err *err)
{
    json_t *index = NULL, *weight_map;
    int rc;

    rc = read_json(c, MC_HF_INDEX, INDEX_MAX, 2, &index, err);
    if (rc < 0)
        goto done;
    weight_map = json_object_get(index, "weight_map");
    if (json_object_size(weight_map) == 0) {
        rc = mc_fail(err, MC_EFORMAT, "weight_map of " MC_HF_INDEX " is not an object "
                     "with entries");
        goto done;
    }
    rc = open_shards(c, weight_map, err);
    if (rc == 0)
        rc = mc_ckpt_sort(c, err);
    if (rc == 0)
        rc = check_index(c, weight_map, err);
done:
    json_decref(index);
    return rc;
}

int mc_hf_open(struct mc_ckpt *c, struct mc_err *err)
{
    int rc;

    c->kind = MC_CKPT_HF;
    rc = read_json(c, "config.json", JSON_MAX, 1, &c->config, err);
    if (rc == 0 && !c->config)
        rc = mc_fail(err, MC_ENOENT, "no config.json beside the safetensors");
    if (rc == 0)
        rc = read_json(c, "generation_config.json", JSON_MAX, 1, &c->generation, err);
    if (rc == 0)
        rc = read_json(c, "tokenizer_config.json", JSON_MAX, 1, &c->tokenizer, err);
    if (rc < 0)
        return rc;
    if (!mc_dir_has(c->dir, MC_HF_SINGLE))
        return open_index(c, err);
    rc = open_shard(c, MC_HF_SINGLE, err);
    return rc < 0 ? rc : mc_ckpt_sort(c, err);
}

int mc_hf_open_config(struct mc_ckpt *c, const char *name, struct mc_err *err)
{
    int rc;

    c->kind = MC_CKPT_HF;
    rc = read_json(c, name, JSON_MAX, 1, &c->config, err);
    if (rc == 0 && !c->config)
        rc = mc_fail(err, MC_ENOENT, "no such file");
    return rc < 0 ? rc : mc_ckpt_sort(c, err);
}

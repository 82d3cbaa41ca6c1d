/* fuzz_index.c - any bytes as model.safetensors.index.json of a directory with two
 * shards.
 *
 * Owns a directory in /tmp until the process ends. THREAD: main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/weights/weights.h"

int mc_fuzz(const uint8_t *data, size_t n);

static char dir[] = "/tmp/mascon-fuzz-XXXXXX";
static const char *const made[] = {"config.json", "a.safetensors", "b.safetensors",
                                   "model.safetensors.index.json"};

static char *path_of(const char *name, char out[96])
{
    snprintf(out, 96, "%s/%s", dir, name);
    return out;
}

static void put(const char *name, const void *data, size_t n)
{
    char path[96];
    FILE *f = fopen(path_of(name, path), "wb");

    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0)
        abort();
}

static void put_shard(const char *name, char tensor)
{
    char file[128];
    uint64_t n = (uint64_t)snprintf(file + 8, sizeof file - 8,
                                    "{\"%c\":{\"dtype\":\"BF16\","
                                    "\"shape\":[1],\"data_offsets\":[0,2]}}",
                                    tensor);

    memcpy(file, &n, 8);
    memset(file + 8 + n, 0, 2);
    put(name, file, (size_t)n + 10);
}

static void clean(void)
{
    char path[96];

    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        unlink(path_of(made[i], path));
    rmdir(dir);
}

static void make(void)
{
    if (!mkdtemp(dir))
        abort();
    atexit(clean);
    put("config.json", "{}", 2);
    put_shard("a.safetensors", 'x');
    put_shard("b.safetensors", 'y');
}

/* What opens has each of the two tensors where the index has it. */
int mc_fuzz(const uint8_t *data, size_t n)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};

    if (dir[sizeof dir - 2] == 'X')
        make();
    put("model.safetensors.index.json", data, n);
    if (mc_ckpt_open(dir, &c, &err) == 0 &&
        (mc_ckpt_n(c) < 1 || mc_ckpt_n(c) > 2 || mc_ckpt_at(c, 0)->bytes != 2))
        abort();
    mc_ckpt_close(c);
    return 0;
}

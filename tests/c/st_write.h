/* st_write.h - safetensors directories, right or wrong, and what opening them says. */
#ifndef MC_TEST_ST_WRITE_H
#define MC_TEST_ST_WRITE_H

#include <time.h>

#include "core/weights/weights.h"
#include "tests/c/tmpdir.h"

#define A_F32 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
#define TENSOR(name, from, to) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" #from "," #to "]}"

/* Writes dir/name: length n (-1: the real one), header, n_data zero bytes. */
static inline void put(const char *dir, const char *name, const char *header, uint64_t n,
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

static inline double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Opening dir must fail with a text that holds `says`. */
static inline void refused(const char *dir, const char *says)
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

static inline struct mc_ckpt *opened(const char *dir)
{
    struct mc_ckpt *c = NULL;
    struct mc_err err = {0};

    assert_ok(mc_ckpt_open(dir, &c, &err), err);
    return c;
}

static inline char *new_dir(void)
{
    char *dir = tmp_new();

    tmp_text(dir, "config.json", "{}");
    return dir;
}

#endif

/* keys.c - the table of API keys. OWNS it: `lock` guards the pointer to it, a table
 * itself never changes; names are only ever added, by one reload at a time (`reload`,
 * taken before `lock`). THREAD: any once open. */
#include "core/serve/keys.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/base/log.h"
#include "core/serve/sha256.h"

enum { KEYS_MAX = 4096, KEY_LEAST = 8, LINE = 512 };

struct table {
    uint32_t n;
    struct {
        uint8_t sum[MC_SHA256];
        uint32_t tenant;
    } key[KEYS_MAX];
};

struct mc_keys {
    char *path;
    pthread_mutex_t reload;
    pthread_rwlock_t lock;
    struct table *table;
    char name[MC_TENANTS_MAX][MC_TENANT_NAME];
    _Atomic double rate[MC_TENANTS_MAX];
    atomic_uint n_tenant; /* published with release */
};

/* ---- reading ----------------------------------------------------------------------- */

bool mc_is_tenant(const char *name)
{
    size_t n = strlen(name);

    for (const char *s = name; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("._-", *s))
            return false;
    return n > 0 && n < MC_TENANT_NAME;
}

static int tenant_of(struct mc_keys *k, const char *name, uint32_t *out,
                     struct mc_err *err)
{
    uint32_t n = atomic_load(&k->n_tenant);

    for (*out = 0; *out < n; ++*out)
        if (strcmp(k->name[*out], name) == 0)
            return 0;
    if (!mc_is_tenant(name))
        return mc_fail(err, MC_EARG,
                       "a tenant's name is 1 to %d letters, digits, dots and "
                       "dashes",
                       MC_TENANT_NAME - 1);
    if (n == MC_TENANTS_MAX)
        return mc_fail(err, MC_ELIMIT, "more than %d tenants", MC_TENANTS_MAX - 1);
    snprintf(k->name[n], sizeof k->name[n], "%s", name);
    atomic_store_explicit(&k->n_tenant, n + 1, memory_order_release);
    return 0;
}

/* "sha256:HEX", or a key to be hashed. */
static int sum_of(const char *key, uint8_t sum[MC_SHA256], struct mc_err *err)
{
    const char *hex = key + 7;
    unsigned byte;

    if (strncmp(key, "sha256:", 7) != 0) {
        if (strlen(key) < KEY_LEAST)
            return mc_fail(err, MC_EARG, "a key needs at least %d characters", KEY_LEAST);
        mc_sha256(key, strlen(key), sum);
        return 0;
    }
    if (strlen(hex) != 2 * MC_SHA256 || strspn(hex, "0123456789abcdef") != 2 * MC_SHA256)
        return mc_fail(err, MC_EARG, "sha256: needs %d digits of lower-case hex",
                       2 * MC_SHA256);
    for (int i = 0; i < MC_SHA256; i++) {
        sscanf(hex + 2 * i, "%2x", &byte);
        sum[i] = (uint8_t)byte;
    }
    return 0;
}

static int read_line(struct mc_keys *k, struct table *t, char *line, struct mc_err *err)
{
    char *save = NULL, *key, *tenant;
    int rc;

    line[strcspn(line, "#\r\n")] = 0;
    key = strtok_r(line, " \t", &save);
    tenant = key ? strtok_r(NULL, " \t", &save) : NULL;
    if (!key)
        return 0;
    if (t->n == KEYS_MAX)
        return mc_fail(err, MC_ELIMIT, "more than %d keys", KEYS_MAX);
    rc = sum_of(key, t->key[t->n].sum, err);
    if (rc == 0)
        rc = tenant_of(k, tenant ? tenant : "", &t->key[t->n].tenant, err);
    t->n += rc == 0;
    return rc;
}

static int read_file(struct mc_keys *k, FILE *f, struct table *t, struct mc_err *err)
{
    char line[LINE], text[sizeof err->text];
    struct stat st;
    int rc = 0, at = 0;

    if (fstat(fileno(f), &st) == 0 && (st.st_mode & 077))
        mc_warn("http", "the API key file can be read by others (mode %03o)",
                (unsigned)st.st_mode & 0777);
    while (rc == 0 && fgets(line, sizeof line, f)) {
        at++;
        if (!strchr(line, '\n') && !feof(f))
            rc = mc_fail(err, MC_EFORMAT, "it is longer than %d bytes", LINE - 2);
        else
            rc = read_line(k, t, line, err);
    }
    if (rc == 0 && ferror(f))
        return mc_fail(err, MC_EIO, "%s", strerror(errno));
    if (rc < 0 && err) {
        snprintf(text, sizeof text, "%s", err->text);
        mc_fail(err, rc, "line %d: %s", at, text);
    }
    return rc == 0 && t->n == 0 ? mc_fail(err, MC_EARG, "no key in it") : rc;
}

int mc_keys_reload(struct mc_keys *k, struct mc_err *err)
{
    struct table *t = calloc(1, sizeof *t), *old;
    FILE *f = fopen(k->path, "r");
    int rc;

    pthread_mutex_lock(&k->reload);
    if (!t || !f)
        rc = mc_fail(err, t ? MC_EIO : MC_ENOMEM, "%s", strerror(errno));
    else
        rc = read_file(k, f, t, err);
    pthread_mutex_unlock(&k->reload);
    if (f)
        fclose(f);
    if (rc < 0) {
        free(t);
        return mc_err_while(err, "reading %s", k->path);
    }
    pthread_rwlock_wrlock(&k->lock);
    old = k->table;
    k->table = t;
    pthread_rwlock_unlock(&k->lock);
    free(old);
    return 0;
}

/* ---- life -------------------------------------------------------------------------- */

int mc_keys_open(const char *path, struct mc_keys **out, struct mc_err *err)
{
    struct mc_keys *k = calloc(1, sizeof *k);
    int rc;

    *out = NULL;
    if (!k)
        return mc_fail(err, MC_ENOMEM, "no memory for the API keys");
    pthread_mutex_init(&k->reload, NULL);
    pthread_rwlock_init(&k->lock, NULL);
    atomic_init(&k->n_tenant, 1);
    k->path = strdup(path);
    rc = k->path ? mc_keys_reload(k, err)
                 : mc_fail(err, MC_ENOMEM, "no memory for a path");
    if (rc < 0)
        mc_keys_close(k);
    else
        *out = k;
    return rc;
}

void mc_keys_close(struct mc_keys *k)
{
    if (!k)
        return;
    pthread_rwlock_destroy(&k->lock);
    pthread_mutex_destroy(&k->reload);
    free(k->table);
    free(k->path);
    free(k);
}

/* ---- asking ------------------------------------------------------------------------ */

static bool find(const struct table *t, const uint8_t sum[MC_SHA256], uint32_t *tenant)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < t->n; i++) { /* all of them, always */
        uint8_t differ = 0;

        for (int b = 0; b < MC_SHA256; b++)
            differ |= t->key[i].sum[b] ^ sum[b];
        if (!differ)
            *tenant = t->key[i].tenant;
        found |= !differ;
    }
    return found;
}

int mc_keys_check(struct mc_keys *k, const char *authorization, const char *x_api_key,
                  uint32_t *tenant, struct mc_err *err)
{
    const char *given = x_api_key;
    uint8_t sum[MC_SHA256];
    bool found;

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        given = authorization + 7 + strspn(authorization + 7, " ");
    *tenant = 0;
    if (!given || !*given)
        return mc_fail(err, MC_EAUTH, "no API key: send Authorization: Bearer KEY");
    mc_sha256(given, strlen(given), sum);
    pthread_rwlock_rdlock(&k->lock);
    found = find(k->table, sum, tenant);
    pthread_rwlock_unlock(&k->lock);
    return found ? 0 : mc_fail(err, MC_EAUTH, "wrong API key");
}

const char *mc_keys_tenant(const struct mc_keys *k, uint32_t tenant)
{
    return k && tenant < atomic_load_explicit(&k->n_tenant, memory_order_acquire)
               ? k->name[tenant]
               : "";
}

int mc_keys_set_rate(struct mc_keys *k, uint32_t tenant, double rate, struct mc_err *err)
{
    if (!(rate >= 0 && rate <= 1e6))
        return mc_fail_param(err, MC_EARG, "tenant_rate",
                             "a tenant's rate is 0 to 1e6 requests "
                             "a second");
    atomic_store_explicit(&k->rate[tenant], rate, memory_order_relaxed);
    return 0;
}

double mc_keys_rate(const struct mc_keys *k, uint32_t tenant)
{
    return k && tenant < MC_TENANTS_MAX
               ? atomic_load_explicit(&k->rate[tenant], memory_order_relaxed)
               : 0;
}

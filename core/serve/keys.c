/* keys.c - the table of API keys. OWNS it. THREAD: any once open. */
#include "core/serve/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "core/base/log.h"

enum { KEYS_MAX = 4096, TENANTS_MAX = 256, KEY_LEAST = 8 };

struct mc_keys {
    XXH128_hash_t hash[KEYS_MAX];
    uint32_t tenant[KEYS_MAX];
    char name[TENANTS_MAX][64];
    uint32_t n_key, n_tenant;
};

static int tenant_of(struct mc_keys *k, const char *name, uint32_t *out, struct mc_err *err)
{
    for (*out = 0; *out < k->n_tenant; ++*out)
        if (strcmp(k->name[*out], name) == 0)
            return 0;
    if (k->n_tenant == TENANTS_MAX || strlen(name) >= sizeof k->name[0])
        return mc_fail(err, MC_ELIMIT, "more than %d tenants, or a name over 63 bytes",
                       TENANTS_MAX);
    strcpy(k->name[k->n_tenant++], name);
    return 0;
}

static int read_line(struct mc_keys *k, char *line, int at, struct mc_err *err)
{
    char *save = NULL, *key, *tenant;

    line[strcspn(line, "#\r\n")] = 0;
    key = strtok_r(line, " \t", &save);
    tenant = key ? strtok_r(NULL, " \t", &save) : NULL;
    if (!key)
        return 0;
    if (strlen(key) < KEY_LEAST)
        return mc_fail(err, MC_EARG, "line %d: a key needs at least %d characters", at,
                       KEY_LEAST);
    if (k->n_key == KEYS_MAX)
        return mc_fail(err, MC_ELIMIT, "more than %d keys", KEYS_MAX);
    k->hash[k->n_key] = XXH3_128bits(key, strlen(key));
    return tenant_of(k, tenant ? tenant : "", &k->tenant[k->n_key++], err);
}

int mc_keys_open(const char *path, struct mc_keys **out, struct mc_err *err)
{
    struct mc_keys *k = calloc(1, sizeof *k);
    FILE *f = fopen(path, "r");
    char line[512];
    struct stat st;
    int rc = 0, at = 0;

    if (!k || !f) {
        rc = mc_fail(err, k ? MC_EIO : MC_ENOMEM, "%s: %s", path, strerror(errno));
        goto out;
    }
    if (fstat(fileno(f), &st) == 0 && (st.st_mode & 077))
        mc_warn("http", "the API key file can be read by others (mode %03o)",
                (unsigned)st.st_mode & 0777);
    k->n_tenant = 1;
    while (rc == 0 && fgets(line, sizeof line, f))
        rc = read_line(k, line, ++at, err);
    if (rc == 0 && k->n_key == 0)
        rc = mc_fail(err, MC_EARG, "no key in it");
    if (rc < 0)
        mc_err_while(err, "reading %s", path);
out:
    if (f)
        fclose(f);
    if (rc < 0) {
        mc_keys_close(k);
        k = NULL;
    }
    *out = k;
    return rc;
}

void mc_keys_close(struct mc_keys *k)
{
    free(k);
}

int mc_keys_check(const struct mc_keys *k, const char *authorization, const char *x_api_key,
                  uint32_t *tenant, struct mc_err *err)
{
    const char *given = x_api_key;
    uint64_t differ, found = 0;
    XXH128_hash_t h;
    uint32_t i;

    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        given = authorization + 7 + strspn(authorization + 7, " ");
    *tenant = 0;
    if (!given || !*given)
        return mc_fail(err, MC_EAUTH, "no API key: send Authorization: Bearer KEY");
    h = XXH3_128bits(given, strlen(given));
    for (i = 0; i < k->n_key; i++) { /* all of them, always */
        differ = (k->hash[i].low64 ^ h.low64) | (k->hash[i].high64 ^ h.high64);
        if (!differ)
            *tenant = k->tenant[i];
        found |= !differ;
    }
    return found ? 0 : mc_fail(err, MC_EAUTH, "wrong API key");
}

const char *mc_keys_tenant(const struct mc_keys *k, uint32_t tenant)
{
    return k && tenant < k->n_tenant ? k->name[tenant] : "";
}

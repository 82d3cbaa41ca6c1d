/* named.c - see named.h. */
#include "core/weights/named.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/weights/ckpt_int.h"
#include "core/weights/weights.h"

static size_t alike(const char *a, const char *b)
{
    size_t n = 0;

    while (a[n] && a[n] == b[n])
        n++;
    return n;
}

static int refuse(const struct mc_ckpt *c, const char *name, struct mc_err *err)
{
    const char *near = "";

    for (int32_t i = 0; i < mc_ckpt_n(c); i++) {
        const char *other = mc_ckpt_hf_name(c, i);

        if (other && (!*near || alike(name, other) > alike(name, near)))
            near = other;
    }
    return mc_fail_param(err, MC_ENOENT, "name",
                         "the checkpoint has no tensor %.100s (it has %.100s)", name, near);
}

static int find(struct mc_named *w, const char *name, struct mc_err *err)
{
    static const char suffix[] = ".weight";
    const struct mc_stored *t = mc_ckpt_find(w->ckpt, name);
    size_t n = strlen(name), tail = sizeof suffix - 1;
    char module[128];
    int rc;

    if (t && t->n_dim == 1) {
        int fmt = mc_format_of_dtype(t->dtype);

        if (t->dim[0] > INT32_MAX ||
            (fmt != MC_D_F32 && fmt != MC_D_F16 && fmt != MC_D_BF16))
            return mc_fail_param(err, MC_EUNSUP, "name", "%.100s: a vector of %lld %s",
                                 name, (long long)t->dim[0], t->dtype);
        w->d = (struct mc_disk){.fmt = (uint16_t)fmt, .n = 1, .k = (int32_t)t->dim[0],
                                .q = t->data};
        w->n_dim = 1;
        return 0;
    }
    if (n <= tail || n - tail >= sizeof module || strcmp(name + n - tail, suffix) != 0)
        return refuse(w->ckpt, name, err);
    snprintf(module, sizeof module, "%.*s", (int)(n - tail), name);
    rc = mc_ckpt_matrix_own(w->ckpt, module, &w->d, &w->own, err);
    w->n_dim = 2;
    return rc == MC_ENOENT ? refuse(w->ckpt, name, err) : rc;
}

int mc_named_open(const char *path, const char *name, struct mc_named *out,
                  struct mc_err *err)
{
    int rc;

    memset(out, 0, sizeof *out);
    rc = mc_ckpt_open(path, &out->ckpt, err);
    if (rc == 0)
        rc = find(out, name, err);
    if (rc < 0)
        mc_named_close(out);
    return rc;
}

void mc_named_close(struct mc_named *w)
{
    free(w->own);
    mc_ckpt_close(w->ckpt);
    w->own = NULL;
    w->ckpt = NULL;
}

int mc_named_rows(const struct mc_named *w, int32_t from, int32_t n, float *out,
                  struct mc_err *err)
{
    for (int32_t i = 0; i < n; i++)
        mc_disk_row(&w->d, from + i, 0, w->d.k, out + (int64_t)i * w->d.k);
    return mc_ckpt_intact(w->ckpt, err);
}

int mc_named_type(const struct mc_named *w)
{
    return w->d.fmt == MC_D_BF16 ? MC_BF16 : w->d.fmt == MC_D_F16 ? MC_F16 : MC_F32;
}

/* kv_b.c - a latent's up-projection put together from the parts that llama.cpp stores.
 *
 * Owns nothing: the copy is the caller's. THREAD: any.
 * llama.cpp keeps W_UK of each head turned, as the absorbed query wants it, and W_UV
 * beside it. Here they become the matrix of Hugging Face files again, in f32, so that
 * loading, its cuts by rank and expanded attention know one form. */
#include "core/weights/kv_b.h"

#include <stdlib.h>

#include "core/weights/ckpt_int.h"

static bool is_stack(const struct mc_stored *t)
{
    return t && t->n_dim == 3 && mc_format_of_dtype(t->dtype) >= 0 && t->dim[0] > 0 &&
           t->dim[0] <= 1 << 16 && t->dim[1] > 0 && t->dim[1] <= 1 << 20 &&
           t->dim[2] > 0 && t->dim[2] <= 1 << 20;
}

/* One head's matrix of a tensor [heads, n, k]. */
static struct mc_disk head_of(const struct mc_stored *t, int64_t head)
{
    return (struct mc_disk){
        .fmt = (uint16_t)mc_format_of_dtype(t->dtype), .n = (int32_t)t->dim[1],
        .k = (int32_t)t->dim[2],
        .q = (const uint8_t *)t->data + t->bytes / (uint64_t)t->dim[0] * (uint64_t)head};
}

/* row has room for the columns of keys. */
static void join(const struct mc_kv_b *b, float *row, float *out)
{
    int64_t c = b->keys->dim[1], nope = b->keys->dim[2], rows = nope + b->values->dim[1];

    for (int64_t h = 0; h < b->keys->dim[0]; h++, out += rows * c) {
        struct mc_disk key = head_of(b->keys, h), value = head_of(b->values, h);

        for (int32_t i = 0; i < key.n; i++) {
            mc_disk_row(&key, i, 0, key.k, row);
            for (int64_t j = 0; j < nope; j++)
                out[j * c + i] = row[j];
        }
        for (int32_t i = 0; i < value.n; i++)
            mc_disk_row(&value, i, 0, value.k, out + (nope + i) * c);
    }
}

int mc_kv_b_read(const struct mc_kv_b *b, struct mc_disk *d, void **own,
                 struct mc_err *err)
{
    const struct mc_stored *k = b->keys, *v = b->values;
    float *row, *all;
    int64_t n;

    if (!is_stack(k) || !is_stack(v) || v->dim[0] != k->dim[0] || v->dim[2] != k->dim[1])
        return mc_fail(err, MC_EFORMAT,
                       "%.110s: attn_k_b and attn_v_b are not a stack of "
                       "matrices [C,N] and one of [N,C], of as many heads",
                       b->module);
    n = k->dim[0] * (k->dim[2] + v->dim[1]);
    if (n > INT32_MAX)
        return mc_fail(err, MC_EFORMAT, "%.110s is too large", b->module);
    *d = (struct mc_disk){.fmt = (uint16_t)mc_format_of_dtype(v->dtype), .n = (int32_t)n,
                          .k = (int32_t)k->dim[1]};
    if (!own)
        return 0;
    row = malloc((size_t)k->dim[2] * sizeof *row);
    all = malloc((size_t)n * (size_t)d->k * sizeof *all);
    if (row && all)
        join(b, row, all);
    free(row);
    if (!row || !all) {
        free(all);
        return mc_fail(err, MC_ENOMEM, "no memory to put %.110s together", b->module);
    }
    d->fmt = MC_D_F32;
    d->q = *own = all;
    return 0;
}

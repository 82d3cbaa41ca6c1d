/* vocab.c - the table of vocabulary sets.
 *
 * Owns patterns and bits. THREAD: as vocab.h says: one writer publishes by the release
 * store of n; a published set never changes. */
#include "lua/host/vocab.h"

#include <stdlib.h>
#include <string.h>

void mc_sets_fini(struct mc_sets *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->set[i].pattern);
        free(t->set[i].bits);
    }
    atomic_store(&t->n, 0);
}

int32_t mc_sets_find(const struct mc_sets *t, const char *pattern, size_t n)
{
    int n_set = atomic_load_explicit(&t->n, memory_order_acquire);

    for (int i = 0; i < n_set; i++)
        if (t->set[i].n_pattern == n && memcmp(t->set[i].pattern, pattern, n) == 0)
            return i;
    return -1;
}

int32_t mc_sets_add(struct mc_sets *t, const char *pattern, size_t n,
                    const uint32_t *bits)
{
    size_t bytes = ((size_t)t->vocab.n / 32 + 1) * sizeof *bits;
    int i = atomic_load(&t->n);

    if (i == MC_N_SET)
        return -1;
    t->set[i].pattern = malloc(n + 1);
    t->set[i].bits = malloc(bytes);
    if (!t->set[i].pattern || !t->set[i].bits) {
        free(t->set[i].pattern);
        free(t->set[i].bits);
        return -1;
    }
    memcpy(t->set[i].pattern, pattern, n);
    t->set[i].n_pattern = n;
    memcpy(t->set[i].bits, bits, bytes);
    atomic_store_explicit(&t->n, i + 1, memory_order_release);
    return i;
}

const uint32_t *mc_sets_bits(const struct mc_sets *t, int32_t handle)
{
    if (handle < 0 || handle >= atomic_load_explicit(&t->n, memory_order_acquire))
        return NULL;
    return t->set[handle].bits;
}

/* Each byte at its own value's place. */
#define B1(x) (char)(x)
#define B4(x) B1(x), B1(x + 1), B1(x + 2), B1(x + 3)
#define B16(x) B4(x), B4(x + 4), B4(x + 8), B4(x + 12)
#define B64(x) B16(x), B16(x + 16), B16(x + 32), B16(x + 48)
static const char bytes[256] = {B64(0), B64(64), B64(128), B64(192)};

static const char *byte_piece(const void *ctx, int32_t id, size_t *n, bool *special)
{
    (void)ctx;
    *special = id < 2;
    *n = 1;
    return id < 2 ? "" : &bytes[id - 2];
}

struct mc_vocab mc_vocab_bytes(void)
{
    return (struct mc_vocab){.n = 258, .piece = byte_piece};
}

const char *mc_vocab_text(const struct mc_vocab *v, int32_t id, size_t *n)
{
    bool special = false;
    const char *s;

    *n = 0;
    if (id < 0 || id >= v->n)
        return NULL;
    s = v->piece(v->ctx, id, n, &special);
    if (!s || special) {
        *n = 0;
        return NULL;
    }
    return s;
}

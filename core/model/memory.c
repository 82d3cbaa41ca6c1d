/* memory.c - a list of device allocations with one lifetime.
 *
 * Owns the blocks in its list. THREAD: its owner's. */
#include "core/model/memory.h"

#include <stdbool.h>
#include <stdlib.h>

struct mc_block {
    struct mc_block *next;
    void *p;
    size_t bytes;
    bool host;
};

bool mc_mem_is_host(const struct mc_backend *be)
{
    return be->alloc == be->host_alloc;
}

void mc_mem_init(struct mc_mem *m, struct mc_backend *be)
{
    *m = (struct mc_mem){.be = be};
}

void mc_mem_fini(struct mc_mem *m)
{
    while (m->list) {
        struct mc_block *b = m->list;

        m->list = b->next;
        if (b->host)
            m->be->host_release(m->be, b->p, b->bytes);
        else
            m->be->release(m->be, b->p, b->bytes);
        free(b);
    }
    m->bytes = 0;
}

static void *take(struct mc_mem *m, size_t bytes, bool host)
{
    struct mc_block *b;

    if (bytes == 0)
        return NULL;
    b = malloc(sizeof *b);
    if (!b)
        return NULL;
    *b = (struct mc_block){.next = m->list, .bytes = bytes, .host = host};
    b->p = host ? m->be->host_alloc(m->be, bytes) : m->be->alloc(m->be, bytes);
    if (!b->p) {
        free(b);
        return NULL;
    }
    m->list = b;
    m->bytes += bytes;
    return b->p;
}

void *mc_mem_take(struct mc_mem *m, size_t bytes)
{
    return take(m, bytes, false);
}

void *mc_mem_take_host(struct mc_mem *m, size_t bytes)
{
    return take(m, bytes, true);
}

void *mc_mem_put(struct mc_mem *m, const void *src, size_t n)
{
    void *p = take(m, n, false);

    if (p && m->be->upload(m->be, p, src, n) < 0)
        return NULL; /* stays in the list: given back by fini */
    return p;
}

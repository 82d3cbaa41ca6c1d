/* tokenizer_merge.c - merging neighbours by rank in n log n.
 *
 * Owns a mc_merger's arrays. THREAD: the encode that made it.
 * Symbols form a linked list inside an array; a heap holds (rank, left symbol) for every
 * pair that may merge. An entry is stale when its symbol's pair has another rank by now;
 * a dead symbol has none. A pair is pushed when it arises, and each merge removes one pair
 * and makes at most two, so 2n entries are enough. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>

int mc_merger_reserve(struct mc_merger *m, size_t n)
{
    size_t cap = m->cap ? m->cap : 256;

    if (n <= m->cap)
        return 0;
    while (cap < n)
        cap *= 2;
    mc_merger_free(m);
    m->sym = malloc(cap * sizeof *m->sym);
    m->heap = malloc(2 * cap * sizeof *m->heap);
    if (!m->sym || !m->heap)
        return MC_ENOMEM;
    m->cap = cap;
    return 0;
}

void mc_merger_free(struct mc_merger *m)
{
    free(m->sym);
    free(m->heap);
    *m = (struct mc_merger){0};
}

static void sift_down(uint64_t *heap, uint32_t n, uint32_t i)
{
    uint64_t key = heap[i];
    uint32_t child;

    for (; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static void push(struct mc_merger *m, uint64_t key)
{
    uint32_t i, up;

    for (i = m->n_heap++; i > 0; i = up) {
        up = (i - 1) / 2;
        if (m->heap[up] <= key)
            break;
        m->heap[i] = m->heap[up];
    }
    m->heap[i] = key;
}

static uint64_t pop(struct mc_merger *m)
{
    uint64_t top = m->heap[0];

    m->heap[0] = m->heap[--m->n_heap];
    if (m->n_heap > 0)
        sift_down(m->heap, m->n_heap, 0);
    return top;
}

static uint64_t key_of(const struct mc_merger *m, uint32_t i)
{
    return (uint64_t)m->sym[i].pair.rank << 32 | i;
}

static void start(struct mc_merger *m, mc_pair_fn pair, const void *ctx)
{
    uint32_t i;

    for (i = 0; i < m->n; i++) {
        m->sym[i].prev = i ? i - 1 : MC_SYM_END;
        m->sym[i].next = i + 1 < m->n ? i + 1 : MC_SYM_END;
    }
    m->n_heap = 0;
    for (i = 0; i < m->n; i++) {
        m->sym[i].pair = (struct mc_pair){MC_NO_RANK, -1};
        if (m->sym[i].next != MC_SYM_END)
            m->sym[i].pair = pair(ctx, m, i);
        if (m->sym[i].pair.rank != MC_NO_RANK)
            m->heap[m->n_heap++] = key_of(m, i);
    }
    for (i = m->n_heap / 2; i-- > 0;)
        sift_down(m->heap, m->n_heap, i);
}

static void pair_again(struct mc_merger *m, uint32_t i, mc_pair_fn pair, const void *ctx)
{
    m->sym[i].pair = (struct mc_pair){MC_NO_RANK, -1};
    if (m->sym[i].next != MC_SYM_END)
        m->sym[i].pair = pair(ctx, m, i);
    if (m->sym[i].pair.rank != MC_NO_RANK)
        push(m, key_of(m, i));
}

void mc_merger_run(struct mc_merger *m, mc_pair_fn pair, const void *ctx)
{
    struct mc_sym *left, *right;
    uint32_t i;
    uint64_t key;

    start(m, pair, ctx);
    while (m->n_heap > 0) {
        key = pop(m);
        i = (uint32_t)key;
        left = &m->sym[i];
        if (left->pair.rank != key >> 32)
            continue;
        right = &m->sym[left->next];
        left->id = left->pair.id;
        left->next = right->next;
        right->pair.rank = MC_NO_RANK;
        if (left->next != MC_SYM_END)
            m->sym[left->next].prev = i;
        pair_again(m, i, pair, ctx);
        if (left->prev != MC_SYM_END)
            pair_again(m, left->prev, pair, ctx);
    }
}

/* backend.c - memory and plumbing of the backends that run on the CPU.
 *
 * Device memory is host memory: zeroed, 64-byte aligned, big pieces mapped with huge pages
 * asked for, since weights and pages are walked end to end. THREAD: any. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "kernels/host/par.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAP_FROM = 1 << 20 }; /* smaller pieces come from the heap */

static void *host_alloc(struct mc_backend *b, size_t bytes)
{
    void *p;

    (void)b;
    if (bytes < MAP_FROM) {
        size_t n = (bytes + 63) / 64 * 64;

        p = aligned_alloc(64, n ? n : 64);
        return p ? memset(p, 0, n) : NULL;
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE); /* advice: no huge pages is slower, not wrong */
    return p;
}

static void host_release(struct mc_backend *b, void *p, size_t bytes)
{
    (void)b;
    if (!p)
        return;
    if (bytes < MAP_FROM)
        free(p);
    else
        munmap(p, bytes);
}

static int upload(struct mc_backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    memcpy(dst, src, bytes);
    return 0;
}

static int stream_new(struct mc_backend *b, struct mc_stream **out)
{
    return mc_stream_new(((struct mc_host *)b)->threads, out);
}

static int cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

void mc_host_init(struct mc_host *h, const char *name, int threads)
{
    struct mc_backend *b = &h->b;

    memset(h, 0, sizeof *h);
    h->threads = threads > 0 ? threads : cores();
    if (h->threads > MC_MAX_THREADS)
        h->threads = MC_MAX_THREADS;
    b->name = name;
    b->row_dt = MC_F32;
    b->alloc = b->host_alloc = host_alloc;
    b->release = b->host_release = host_release;
    b->upload = upload;
    b->stream_new = stream_new;
    b->stream_free = mc_stream_free;
    b->mark = mc_stream_mark;
    b->wait = mc_stream_wait;
    b->done = mc_stream_done;
    b->graph_begin = mc_graph_begin;
    b->graph_end = mc_graph_end;
    b->graph_run = mc_graph_run;
    b->graph_free = mc_graph_free;
    b->op[MC_OP_page_init] = &mc_host_page_init;
    b->op[MC_OP_page_copy] = &mc_host_page_copy;
    b->op[MC_OP_page_check] = &mc_host_page_check;
    b->op[MC_OP_table_apply] = &mc_host_table_apply;
    b->op[MC_OP_gather_rows] = &mc_host_gather_rows;
    b->op[MC_OP_chain] = &mc_host_chain;
    b->op[MC_OP_sample] = &mc_host_sample;
    b->op[MC_OP_commit] = &mc_host_commit;
    b->op[MC_OP_nll] = &mc_host_nll;
}

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
#include <sys/resource.h>
#include <unistd.h>

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
    madvise(p, bytes, MADV_DONTDUMP); /* weights and KV are in no core file */
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

/* Whole pages of the system's that lie in it; the rest stays. */
static void discard(struct mc_backend *b, void *p, size_t bytes)
{
    uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p,
              to = from + bytes;

    (void)b;
    from = (from + unit - 1) / unit * unit;
    to = to / unit * unit;
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

static int upload(struct mc_backend *b, void *dst, const void *src, size_t bytes)
{
    (void)b;
    memcpy(dst, src, bytes);
    return 0;
}

static int stream_new(struct mc_backend *b, struct mc_stream **out)
{
    return mc_stream_new(((struct mc_host *)b)->threads, &b->peer, out);
}

/* On the leader of a stream: it gives way, as nice does, to the threads of others. */
static int give_way(struct mc_par *par, const void *p)
{
    (void)par;
    (void)p;
    setpriority(PRIO_PROCESS, 0, 10); /* Linux: of this thread; without it work is not wrong */
    return 0;
}

static int stream_low(struct mc_backend *b, struct mc_stream **out)
{
    int rc = mc_stream_new(1, &(struct mc_peer){0}, out);

    (void)b;
    return rc < 0 ? rc : mc_stream_push(*out, give_way, "", 0);
}

static int cores(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return CPU_COUNT(&set);
}

/* What rank r of n gets of so many threads. */
static int share_of(int threads, const struct mc_peer *peer)
{
    int n = peer->n > 1 ? peer->n : 1, mine = threads / n + (peer->rank < threads % n);

    return mine < 1 ? 1 : mine > MC_MAX_THREADS ? MC_MAX_THREADS : mine;
}

void mc_host_init(struct mc_host *h, const char *name, const struct mc_backend_opts *o)
{
    struct mc_backend *b = &h->b;

    memset(h, 0, sizeof *h);
    h->threads = share_of(o->threads > 0 ? o->threads : cores(), &o->peer);
    b->name = name;
    b->peer = o->peer;
    b->row_dt = MC_F32;
    b->alloc = b->host_alloc = host_alloc;
    b->release = b->host_release = host_release;
    b->discard = discard;
    b->upload = upload;
    b->stream_new = stream_new;
    b->stream_low = stream_low;
    b->stream_free = mc_stream_free;
    b->mark = mc_stream_mark;
    b->wait = mc_stream_wait;
    b->wait_ms = mc_stream_wait_ms;
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
    b->op[MC_OP_verify] = &mc_host_verify;
    b->op[MC_OP_commit] = &mc_host_commit;
    b->op[MC_OP_nll] = &mc_host_nll;
    b->op[MC_OP_all_gather] = &mc_host_all_gather;
    b->op[MC_OP_all_to_all] = &mc_host_all_to_all;
    b->op[MC_OP_agree] = &mc_host_agree;
    b->op[MC_OP_shard_merge] = &mc_host_shard_merge;
    b->op[MC_OP_dsa_merge] = &mc_host_dsa_merge;
    b->op[MC_OP_tap] = &mc_host_tap;
}

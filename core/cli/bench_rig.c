/* bench_rig.c - decode steps of many sequences, without an engine around them.
 *
 * Owns its crew and staging. THREAD: one.
 * Page i*n + j of n a sequence is block j of sequence i; its bytes are zeros, which take
 * as long as any others. The same step is run again and again: a decode row writes the
 * entry of its own position anew. */
#define _GNU_SOURCE
#include "core/cli/bench_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/sample.h"

enum { OWN = 1 << 20 }; /* bytes of a pool that has mappings to itself */

struct mc_rig {
    struct mc_crew crew;
    struct mc_mem mem;
    int32_t seqs, context, blocks; /* blocks: pages a sequence */
    void *stage_base;
    struct mc_rows stage;
    struct mc_delta *delta;
    struct mc_slot *slots_in;
    uint32_t (*init)[2];
    int32_t *n_init;
};

static int take(struct mc_rig *g, const struct mc_pass_caps *caps)
{
    size_t n = (size_t)g->seqs, pages = n * (size_t)g->blocks;

    mc_mem_init(&g->mem, g->crew.run[0].be);
    g->stage_base = mc_mem_take_host(&g->mem, mc_rows_bytes(caps));
    g->delta = mc_mem_take_host(&g->mem, (n + pages) * sizeof *g->delta);
    g->slots_in = mc_mem_take_host(&g->mem, n * sizeof *g->slots_in);
    g->init = mc_mem_take_host(&g->mem, pages * sizeof *g->init);
    g->n_init = mc_mem_take_host(&g->mem, sizeof *g->n_init);
    if (!g->stage_base || !g->delta || !g->slots_in || !g->init || !g->n_init)
        return MC_ENOMEM;
    g->stage = mc_rows_bind(g->stage_base, caps);
    return 0;
}

static void stage_rows(struct mc_rig *g)
{
    const struct mc_rows *r = &g->stage;
    int32_t *live = mc_staged(r->live);

    live[MC_LIVE_ROWS] = live[MC_LIVE_DECODE] = live[MC_LIVE_SEQS] = g->seqs;
    live[MC_LIVE_OUT] = g->seqs;
    for (int32_t i = 0; i < g->seqs; i++) {
        mc_staged(r->tok)[i] = i % 256;
        mc_staged(r->pos)[i] = g->context - 1;
        mc_staged(r->row_seq)[i] = mc_staged(r->q0)[i] = i;
        mc_staged(r->kv_len)[i] = g->context;
        mc_staged(r->slot)[i] = mc_staged(r->out_row)[i] = i;
        mc_staged(r->target)[i] = -1;
    }
    mc_staged(r->q0)[g->seqs] = g->seqs;
}

/* Slots, tables and cleared pages: once. */
static int set_up(struct mc_rig *g, struct mc_err *err)
{
    int32_t n = 0;
    int rc = 0;

    stage_rows(g);
    for (int32_t i = 0; i < g->seqs; i++) {
        g->slots_in[i] = (struct mc_slot){.tok = 1, .samp = {.top_p = 1, .rep = 1}};
        g->delta[n++] = (struct mc_delta){.what = MC_DELTA_SLOT, .slot = i, .value = i};
        for (int32_t j = 0; j < g->blocks; j++) {
            int32_t page = i * g->blocks + j;

            g->delta[n++] = (struct mc_delta){.what = MC_DELTA_PAGE, .slot = i, .at = j,
                                              .value = page, .tag = 1};
            g->init[page][0] = (uint32_t)page;
            g->init[page][1] = 1;
        }
    }
    *g->n_init = g->seqs * g->blocks;
    for (int32_t i = 0; i < g->crew.n && rc == 0; i++)
        rc = mc_run_put(&g->crew.run[i],
                        &(struct mc_stage){.rows = g->stage_base, .delta = g->delta,
                                           .n_delta = n, .slots_in = g->slots_in,
                                           .init = g->init, .n_init = g->n_init,
                                           .max_init = *g->n_init});
    if (rc == 0)
        rc = mc_crew_wait(&g->crew, mc_crew_mark(&g->crew));
    return rc < 0 ? mc_fail(err, rc, "setting pages up failed: %s", mc_code_text(rc)) : 0;
}

static size_t pool_bytes(const struct mc_kv *kv)
{
    return (size_t)kv->n_page * (size_t)kv->page_stride;
}

/* The memory pages that a pool has to itself: [*from, *from + the bytes returned). */
static size_t memory_pages(const struct mc_kv *kv, void **from)
{
    uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = ((uintptr_t)kv->base + unit - 1) / unit * unit;
    uintptr_t hi = ((uintptr_t)kv->base + pool_bytes(kv)) / unit * unit;

    *from = (void *)lo;
    return lo < hi ? hi - lo : 0;
}

/* Touched memory is counted in small pages only where the pool has them. */
static void small_pages(const struct mc_kv *kv)
{
    void *from;
    size_t bytes = memory_pages(kv, &from);

    if (bytes > 0)
        madvise(from, bytes, MADV_NOHUGEPAGE);
}

int mc_rig_open(struct mc_ranks *r, enum mc_kv_layout kv, int32_t seqs, int32_t context,
                struct mc_rig **out, struct mc_err *err)
{
    struct mc_pass_caps caps = {.rows = seqs, .seqs = seqs, .outs = seqs,
                                .context = context};
    int32_t blocks = (context + MC_PAGE - 1) / MC_PAGE;
    struct mc_pool_size size = {.layout = kv, .n_page = seqs * blocks, .n_slot = seqs,
                                .pitch = blocks};
    struct mc_rig *g = calloc(1, sizeof *g);
    int rc;

    if (!g)
        return mc_fail(err, MC_ENOMEM, "no memory for a rig");
    g->seqs = seqs;
    g->context = context;
    g->blocks = blocks;
    rc = mc_crew_open(&g->crew, r, &size, &caps, err);
    if (rc == 0 && take(g, &caps) < 0)
        rc = mc_fail(err, MC_ENOMEM, "no memory for %d sequences", seqs);
    if (rc == 0) {
        small_pages(&g->crew.run[0].dev.kv);
        rc = set_up(g, err);
    }
    if (rc < 0) {
        mc_rig_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void mc_rig_close(struct mc_rig *g)
{
    if (!g)
        return;
    mc_crew_close(&g->crew);
    if (g->crew.n)
        return; /* a rank is stuck and may still read the staging */
    mc_mem_fini(&g->mem);
    free(g);
}

static int step(struct mc_rig *g, struct mc_err *err)
{
    int rc = 0;

    for (int32_t i = 0; i < g->crew.n && rc == 0; i++)
        rc = g->crew.run[i].be->graph_run(g->crew.run[i].stream, g->crew.run[i].forward);
    if (rc == 0)
        rc = mc_crew_wait(&g->crew, mc_crew_mark(&g->crew));
    return rc < 0 ? mc_fail(err, rc, "a step failed: %s", mc_code_text(rc)) : 0;
}

int mc_rig_step(struct mc_rig *g, int n, double *seconds, struct mc_err *err)
{
    double *took = calloc((size_t)n, sizeof *took);
    int rc = took ? step(g, err) : mc_fail(err, MC_ENOMEM, "no memory for %d times", n);

    for (int i = 0; i < n && rc == 0; i++) {
        double t0 = mc_now();

        rc = step(g, err);
        took[i] = mc_now() - t0;
    }
    if (rc == 0)
        *seconds = mc_median(took, n);
    free(took);
    return rc;
}

int mc_rig_check(struct mc_rig *g, int n, double *seconds, struct mc_err *err)
{
    const struct mc_run *run = &g->crew.run[0];
    const struct mc_page_check_p p = {.rows = run->dev.rows, .kv = run->dev.kv,
                                      .slots = run->dev.slots};
    double t0 = mc_now();
    int rc = 0;

    for (int i = 0; i < n && rc == 0; i++)
        rc = mc_k_page_check(run->be, run->stream, &p);
    if (rc == 0)
        rc = run->be->wait(run->stream, run->be->mark(run->stream));
    *seconds = (mc_now() - t0) / n;
    return rc < 0 ? mc_fail(err, rc, "page_check failed: %s", mc_code_text(rc)) : 0;
}

/* "Referenced" of the mappings that make up [base, base+bytes), or -1. */
static double referenced(const void *base, size_t bytes)
{
    uintptr_t lo = (uintptr_t)base, hi = lo + bytes;
    unsigned long from, to, kb;
    double sum = 0;
    bool inside = false, any = false;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "r");

    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            inside = from < hi && to > lo;
        } else if (inside && sscanf(line, "Referenced: %lu kB", &kb) == 1) {
            sum += (double)kb * 1024;
            any = true;
        }
    }
    if (f)
        fclose(f);
    return any ? sum : -1;
}

/* The kernel leaves translations that processors hold as they are, and a page read through
   one of them isn't marked again: taking the pool's access away and back drops them. */
static bool forget_references(const struct mc_kv *kv)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    bool done = f && fputs("1", f) >= 0;
    void *from;
    size_t bytes = memory_pages(kv, &from);

    return f && fclose(f) == 0 && done && mprotect(from, bytes, PROT_NONE) == 0 &&
           mprotect(from, bytes, PROT_READ | PROT_WRITE) == 0;
}

/* The most of three passes: a reclaiming kernel clears references too. */
int mc_rig_touched(struct mc_rig *g, double *bytes, struct mc_err *err)
{
    const struct mc_kv *kv = &g->crew.run[0].dev.kv;
    int rc = 0;

    *bytes = -1;
    for (int i = 0; i < 3 && rc == 0; i++) {
        bool counts = pool_bytes(kv) >= OWN && forget_references(kv);
        double now;

        rc = step(g, err);
        now = counts ? referenced(kv->base, pool_bytes(kv)) : -1;
        *bytes = now > *bytes ? now : *bytes;
    }
    return rc;
}

const struct mc_kv *mc_rig_kv(const struct mc_rig *g)
{
    return &g->crew.run[0].dev.kv;
}

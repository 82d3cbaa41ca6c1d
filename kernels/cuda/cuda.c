/* cuda.c - the CUDA backend: device, memory, streams, tickets, graphs.
 *
 * Owns what struct mc_cu says. Device memory is the driver's; staging is pinned and
 * mapped, so that kernels read it where it is. Every kernel is found at open: a lazily
 * loaded one could deadlock against a collective that spins. THREAD: opening, closing:
 * one; a stream: its pusher, save wait and done: any. A thread makes the context its own
 * at each call that needs it, which is cheap when it is. INVARIANTS: event[t % EVENTS]
 * was last recorded for a ticket >= t, for each ticket t that mark has returned: waiting
 * for it waits for t. With MC_CUDA_SHARE in the environment ranks that have no device share
 * the first one: for tests on one card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda.h"

static const struct {
    const char *name;
    uint32_t threads;
} kernels[MC_N_KERNEL] = {
#define K(name, threads, params) {#name, threads},
    MC_KERNELS(K)
#undef K
};

enum {
    SMEM_80 = 160 << 10, /* it has 163 */
    SMEM_90 = 227 << 10,
    EVENTS = 64,
    SLICE_MS = 50
};

struct mc_stream {
    struct mc_cu *cu;
    void *stream;
    void *event[EVENTS]; /* of ticket % EVENTS; a later one covers an earlier */
    uint64_t ticket;
};

static struct mc_cu *of(struct mc_backend *b)
{
    return (struct mc_cu *)b;
}

/* ---- memory ------------------------------------------------------------------------ */

static void *dev_alloc(struct mc_backend *b, size_t bytes)
{
    struct mc_cu *cu = of(b);
    mc_cu_ptr p = 0;

    cu->api.CtxSetCurrent(cu->ctx);
    bytes = bytes ? bytes : 1;
    if (cu->api.MemAlloc(&p, bytes) != 0)
        return NULL;
    if (cu->api.MemsetD8(p, 0, bytes) != 0) {
        cu->api.MemFree(p);
        return NULL;
    }
    return (void *)(uintptr_t)p;
}

static void dev_release(struct mc_backend *b, void *p, size_t bytes)
{
    struct mc_cu *cu = of(b);

    (void)bytes;
    if (!p)
        return;
    cu->api.CtxSetCurrent(cu->ctx);
    cu->api.MemFree((mc_cu_ptr)(uintptr_t)p);
}

static void *host_alloc(struct mc_backend *b, size_t bytes)
{
    struct mc_cu *cu = of(b);
    void *p = NULL;

    cu->api.CtxSetCurrent(cu->ctx);
    bytes = bytes ? bytes : 1;
    if (cu->api.MemHostAlloc(&p, bytes, MC_CU_HOST_PORTABLE | MC_CU_HOST_DEVICEMAP) != 0)
        return NULL;
    return memset(p, 0, bytes);
}

static void host_release(struct mc_backend *b, void *p, size_t bytes)
{
    struct mc_cu *cu = of(b);

    (void)bytes;
    if (!p)
        return;
    cu->api.CtxSetCurrent(cu->ctx);
    cu->api.MemFreeHost(p);
}

static int upload(struct mc_backend *b, void *dst, const void *src, size_t bytes)
{
    struct mc_cu *cu = of(b);

    cu->api.CtxSetCurrent(cu->ctx);
    return cu->api.MemcpyHtoD((mc_cu_ptr)(uintptr_t)dst, src, bytes) == 0
               ? 0
               : MC_K_EINTERNAL;
}

/* ---- streams ----------------------------------------------------------------------- */

static void stream_free(struct mc_stream *s)
{
    if (!s)
        return;
    s->cu->api.CtxSetCurrent(s->cu->ctx);
    if (s->stream) {
        s->cu->api.StreamSynchronize(s->stream);
        s->cu->api.StreamDestroy(s->stream);
    }
    for (int i = 0; i < EVENTS; i++)
        if (s->event[i])
            s->cu->api.EventDestroy(s->event[i]);
    free(s);
}

/* low: its blocks are scheduled when no other stream has any that wait. */
static int stream_open(struct mc_backend *b, bool low, struct mc_stream **out)
{
    struct mc_cu *cu = of(b);
    struct mc_stream *s = calloc(1, sizeof *s);
    int least = 0, greatest = 0;

    *out = NULL;
    if (!s)
        return MC_K_ENOMEM;
    s->cu = cu;
    cu->api.CtxSetCurrent(cu->ctx);
    if (cu->api.CtxGetStreamPriorityRange(&least, &greatest) != 0 ||
        cu->api.StreamCreate(&s->stream, MC_CU_STREAM_NON_BLOCKING,
                             low ? least : greatest) != 0)
        goto fail;
    for (int i = 0; i < EVENTS; i++)
        if (cu->api.EventCreate(&s->event[i], MC_CU_EVENT_NO_TIMING) != 0)
            goto fail;
    *out = s;
    return 0;
fail:
    stream_free(s);
    return MC_K_EINTERNAL;
}

static int stream_new(struct mc_backend *b, struct mc_stream **out)
{
    return stream_open(b, false, out);
}

static int stream_low(struct mc_backend *b, struct mc_stream **out)
{
    return stream_open(b, true, out);
}

/* A failed record shows in wait: the driver's errors stick to the context. */
static uint64_t mark(struct mc_stream *s)
{
    uint64_t t = ++s->ticket;

    s->cu->api.CtxSetCurrent(s->cu->ctx);
    s->cu->api.EventRecord(s->event[t % EVENTS], s->stream);
    return t;
}

static bool done(struct mc_stream *s, uint64_t ticket)
{
    mc_cu_result rc;

    s->cu->api.CtxSetCurrent(s->cu->ctx);
    rc = ticket == 0 ? 0 : s->cu->api.EventQuery(s->event[ticket % EVENTS]);
    if (rc != 0 && rc != MC_CU_NOT_READY && s->cu->b.peer.n > 1)
        mc_comm_break(s->cu->b.peer.comm, "rank %d failed: CUDA gave %d",
                      s->cu->b.peer.rank, rc);
    return rc != MC_CU_NOT_READY;
}

/* What became of work that is done. */
static int result(struct mc_stream *s, uint64_t ticket)
{
    struct mc_cu *cu = s->cu;
    int rc = ticket == 0 ? 0 : cu->api.EventSynchronize(s->event[ticket % EVENTS]);

    if (cu->b.peer.n > 1 && mc_cu_parted(cu) < 0)
        return MC_K_ERANK;
    return rc != 0 || __atomic_load_n(&cu->words->fault, __ATOMIC_RELAXED)
               ? MC_K_EINTERNAL
               : 0;
}

static int wait_ms(struct mc_stream *s, uint64_t ticket, uint32_t ms)
{
    for (uint32_t i = 0; i < ms && !done(s, ticket); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (done(s, ticket))
        return result(s, ticket);
    if (s->cu->b.peer.n > 1)
        mc_cu_waited(s->cu, ms);
    return 1;
}

/* One of several ranks may wait for the others: then somebody has to look after them. */
static int wait(struct mc_stream *s, uint64_t ticket)
{
    int rc = 1;

    s->cu->api.CtxSetCurrent(s->cu->ctx);
    if (s->cu->b.peer.n < 2)
        return result(s, ticket);
    while (rc == 1)
        rc = wait_ms(s, ticket, SLICE_MS);
    return rc;
}

uint32_t *mc_cu_fault(struct mc_stream *s)
{
    return &s->cu->words->fault;
}

struct mc_backend *mc_cu_backend(struct mc_stream *s)
{
    return &s->cu->b;
}

uint32_t mc_cu_smem(struct mc_stream *s)
{
    return s->cu->smem;
}

int mc_cu_launch(struct mc_stream *s, enum mc_kernel_id k, struct mc_cu_grid g,
                 const void *p)
{
    struct mc_cu *cu = s->cu;
    void *args[] = {(void *)(uintptr_t)p};

    if (g.x < 1 || g.x > INT32_MAX || g.y < 1 || g.y > 65535 || g.smem > cu->smem)
        return MC_K_EINTERNAL;
    cu->api.CtxSetCurrent(cu->ctx);
    return cu->api.LaunchKernel(cu->fn[k], (unsigned)g.x, (unsigned)g.y, 1,
                                kernels[k].threads, 1, 1, g.smem, s->stream, args,
                                NULL) == 0
               ? 0
               : MC_K_EINTERNAL;
}

/* ---- graphs ------------------------------------------------------------------------ */

struct mc_graph {
    struct mc_cu *cu;
    void *graph, *exec;
};

static void graph_free(struct mc_graph *g)
{
    if (!g)
        return;
    g->cu->api.CtxSetCurrent(g->cu->ctx);
    if (g->exec)
        g->cu->api.GraphExecDestroy(g->exec);
    if (g->graph)
        g->cu->api.GraphDestroy(g->graph);
    free(g);
}

static int graph_begin(struct mc_stream *s)
{
    s->cu->api.CtxSetCurrent(s->cu->ctx);
    return s->cu->api.StreamBeginCapture(s->stream, MC_CU_CAPTURE_THREAD) == 0
               ? 0
               : MC_K_EINTERNAL;
}

static int graph_end(struct mc_stream *s, struct mc_graph **out)
{
    struct mc_graph *g = calloc(1, sizeof *g);
    void *graph = NULL;
    int rc;

    *out = NULL;
    rc = s->cu->api.StreamEndCapture(s->stream, &graph) == 0 && graph ? 0
                                                                      : MC_K_EINTERNAL;
    if (!g) {
        if (graph)
            s->cu->api.GraphDestroy(graph);
        return MC_K_ENOMEM;
    }
    g->cu = s->cu;
    g->graph = graph;
    if (rc == 0 && s->cu->api.GraphInstantiate(&g->exec, graph, 0) != 0)
        rc = MC_K_EINTERNAL;
    if (rc < 0) {
        graph_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

static int graph_run(struct mc_stream *s, const struct mc_graph *g)
{
    s->cu->api.CtxSetCurrent(s->cu->ctx);
    return s->cu->api.GraphLaunch(g->exec, s->stream) == 0 ? 0 : MC_K_EINTERNAL;
}

/* ---- opening ----------------------------------------------------------------------- */

/* bf16 activations for every weight: quantising them to e4m3 costs accuracy, and on sm_90
 * the 8-bit mma is made of f16 ones anyway. */
static uint16_t act_of(const struct mc_backend *b, uint16_t run_layout)
{
    return run_layout == MC_W_E4M3 && ((const struct mc_cu *)b)->w8a8 ? MC_A_E4M3
                                                                      : MC_A_BF16;
}

static void cu_close(struct mc_backend *b)
{
    struct mc_cu *cu = of(b);

    if (cu->ctx) {
        cu->api.CtxSetCurrent(cu->ctx);
        mc_cu_leave(cu);
        if (cu->words)
            cu->api.MemFreeHost(cu->words);
        for (int i = 0; i < cu->n_module; i++)
            cu->api.ModuleUnload(cu->module[i]);
        cu->api.PrimaryCtxRelease(cu->dev);
    }
    free(cu);
}

static const char *find_kernels(struct mc_cu *cu)
{
    int k, i;

    for (i = 0; i < mc_cu_platform.n_image; i++, cu->n_module++)
        if (cu->api.ModuleLoadData(&cu->module[i], mc_cu_platform.image[i]) != 0)
            return "cuda: the kernels do not load on this device";
    for (k = 0; k < MC_N_KERNEL; k++) {
        for (i = 0; i < cu->n_module && !cu->fn[k]; i++)
            if (cu->api.ModuleGetFunction(&cu->fn[k], cu->module[i], kernels[k].name) !=
                0)
                cu->fn[k] = NULL;
        if (!cu->fn[k])
            return "cuda: a kernel is missing from the images";
        if (cu->api.FuncSetAttribute(cu->fn[k], MC_CU_FUNC_SMEM, (int)cu->smem) != 0)
            return "cuda: the device has less shared memory a block than its kind";
    }
    return NULL;
}

static const char *open_device(struct mc_cu *cu)
{
    int major = 0, minor = 0, sms = 0;
    char name[40] = "";
    const char *no;

    if (cu->api.Init(0) != 0 || cu->api.DeviceGet(&cu->dev, 0) != 0)
        return "cuda: no device";
    if (cu->api.DeviceGet(&cu->dev, cu->b.peer.rank) != 0 &&
        (!getenv("MC_CUDA_SHARE") || cu->api.DeviceGet(&cu->dev, 0) != 0))
        return "cuda: fewer devices than ranks";
    if (cu->api.DeviceGetAttribute(&major, MC_CU_ATTR_MAJOR, cu->dev) != 0 ||
        cu->api.DeviceGetAttribute(&minor, MC_CU_ATTR_MINOR, cu->dev) != 0 ||
        cu->api.DeviceGetAttribute(&sms, MC_CU_ATTR_SMS, cu->dev) != 0 ||
        cu->api.DeviceGetName(name, sizeof name, cu->dev) != 0)
        return "cuda: the device does not answer";
    cu->arch = major * 10 + minor;
    if (cu->arch < 80)
        return "cuda: compute capability below 8.0";
    cu->smem = cu->arch < 90 ? SMEM_80 : SMEM_90;
    if (cu->api.PrimaryCtxRetain(&cu->ctx, cu->dev) != 0 ||
        cu->api.CtxSetCurrent(cu->ctx) != 0)
        return "cuda: no context";
    snprintf(cu->b.what, sizeof cu->b.what, "%s, sm_%d, %d SMs", name, cu->arch, sms);
    if (cu->api.MemHostAlloc((void **)&cu->words, sizeof *cu->words,
                             MC_CU_HOST_PORTABLE | MC_CU_HOST_DEVICEMAP) != 0)
        return "cuda: no pinned memory";
    *cu->words = (struct mc_cu_words){0};
    no = mc_cu_sit(cu);
    return no ? no : find_kernels(cu);
}

struct mc_backend *mc_cuda_open(const struct mc_backend_opts *o, const char **why)
{
    struct mc_cu *cu = calloc(1, sizeof *cu);
    struct mc_backend *b = (struct mc_backend *)cu;
    const char *no;

    if (!cu) {
        *why = "cuda: out of memory";
        return NULL;
    }
    b->peer = o->peer;
    b->alloc = dev_alloc;
    b->release = dev_release;
    if (!mc_cu_platform.load(&cu->api, why)) {
        free(cu);
        return NULL;
    }
    no = open_device(cu);
    if (no) {
        *why = no;
        cu_close(b);
        return NULL;
    }
    b->name = "cuda";
    b->row_dt = MC_BF16;
    b->few_rows = MC_CU_CHUNK;
    b->run_of = mc_cu_run_of;
    b->act_of = act_of;
    b->host_alloc = host_alloc;
    b->host_release = host_release;
    b->upload = upload;
    b->stream_new = stream_new;
    b->stream_low = stream_low;
    b->stream_free = stream_free;
    b->mark = mark;
    b->wait = wait;
    b->wait_ms = wait_ms;
    b->done = done;
    b->graph_begin = graph_begin;
    b->graph_end = graph_end;
    b->graph_run = graph_run;
    b->graph_free = graph_free;
    b->close = cu_close;
#define F(name) b->op[MC_OP_##name] = &mc_cu_##name;
    MC_CU_OPS(F)
#undef F
    return b;
}

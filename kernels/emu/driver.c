/* driver.c - the CUDA driver's functions over the emulator: the platform of mascon-emu.
 *
 * Device memory is the heap's, so that a sanitizer sees its ends; a stream is a queue of
 * kernels/host whose one thread emulates the launches in order; capture records them. The
 * device is a made-up card of sm_90. Owns what the driver would. THREAD: as the driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/params.h"
#include "kernels/emu/emu.h"
#include "kernels/host/host.h"

#define K(name, threads, params)     \
    extern void name(const void *p); \
    _Static_assert(sizeof(struct params) <= MC_REC_BYTES - 64, #name);
MC_KERNELS(K)
#undef K

static const struct kernel {
    const char *name;
    emu_kernel run;
    size_t p_bytes;
} table[MC_N_KERNEL] = {
#define K(name, threads, params) {#name, name, sizeof(struct params)},
    MC_KERNELS(K)
#undef K
};

/* ---- device, modules --------------------------------------------------------------- */

static mc_cu_result e_Init(unsigned flags)
{
    return (int)flags;
}

static mc_cu_result e_DeviceGet(int *dev, int at)
{
    *dev = at;
    return at == 0 ? 0 : 101; /* invalid device */
}

static mc_cu_result e_DeviceGetName(char *name, int len, int dev)
{
    (void)dev;
    snprintf(name, (size_t)len, "emulated");
    return 0;
}

static mc_cu_result e_DeviceGetAttribute(int *value, int attr, int dev)
{
    (void)dev;
    *value = attr == MC_CU_ATTR_MAJOR ? 9 : attr == MC_CU_ATTR_MINOR ? 0 : 1;
    return 0;
}

static mc_cu_result e_PrimaryCtxRetain(void **ctx, int dev)
{
    (void)dev;
    *ctx = (void *)(uintptr_t)&table;
    return 0;
}

static mc_cu_result e_PrimaryCtxRelease(int dev)
{
    return dev;
}

static mc_cu_result e_CtxSetCurrent(void *ctx)
{
    return ctx ? 0 : 201; /* invalid context */
}

static mc_cu_result e_ModuleLoadData(void **module, const void *image)
{
    *module = (void *)(uintptr_t)image;
    return 0;
}

static mc_cu_result e_ModuleUnload(void *module)
{
    (void)module;
    return 0;
}

static mc_cu_result e_ModuleGetFunction(void **fn, void *module, const char *name)
{
    (void)module;
    for (int i = 0; i < MC_N_KERNEL; i++)
        if (strcmp(table[i].name, name) == 0) {
            *fn = (void *)(uintptr_t)&table[i];
            return 0;
        }
    return 500; /* not found */
}

static mc_cu_result e_FuncSetAttribute(void *fn, int attr, int value)
{
    (void)fn;
    return attr == MC_CU_FUNC_SMEM && value <= EMU_SMEM ? 0 : 1;
}

static mc_cu_result e_GetErrorString(mc_cu_result rc, const char **text)
{
    (void)rc;
    *text = "emulated";
    return 0;
}

/* ---- memory ------------------------------------------------------------------------ */

/* Fresh memory is rubbish, as a device's is. */
static void *take(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);

    return p ? memset(p, 0xa5, bytes) : NULL;
}

static mc_cu_result e_MemAlloc(mc_cu_ptr *p, size_t bytes)
{
    *p = (uintptr_t)take(bytes);
    return *p ? 0 : 2;
}

static mc_cu_result e_MemFree(mc_cu_ptr p)
{
    free((void *)(uintptr_t)p);
    return 0;
}

static mc_cu_result e_MemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    *p = take(bytes);
    return *p ? 0 : 2;
}

static mc_cu_result e_MemFreeHost(void *p)
{
    free(p);
    return 0;
}

static mc_cu_result e_MemsetD8(mc_cu_ptr p, unsigned char value, size_t bytes)
{
    memset((void *)(uintptr_t)p, value, bytes);
    return 0;
}

static mc_cu_result e_MemcpyHtoD(mc_cu_ptr to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

/* ---- streams, events --------------------------------------------------------------- */

struct launch {
    const struct kernel *k;
    uint32_t gx, gy, threads, smem;
    _Alignas(16) unsigned char p[MC_REC_BYTES - 64];
};

struct event {
    struct mc_stream *s;
    uint64_t ticket;
};

/* On the stream's own thread. A fault is told once and stops the stream for good. */
static int emulate(struct mc_par *par, const void *p)
{
    const struct launch *l = p;
    struct emu_launch e = {.run = l->k->run,
                           .name = l->k->name,
                           .grid = {l->gx, l->gy, 1},
                           .threads = l->threads,
                           .smem = l->smem,
                           .p = l->p,
                           .p_bytes = (uint32_t)l->k->p_bytes};
    const char *why;

    (void)par;
    if (emu_launch(&e, &why) == 0)
        return 0;
    fprintf(stderr, "emu: %s\n", why);
    return MC_K_EINTERNAL;
}

static mc_cu_result e_LaunchKernel(void *fn, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned smem,
                                   void *stream, void **params, void **extra)
{
    struct launch l = {fn, gx, gy, bx, smem, {0}};

    if (gz != 1 || by != 1 || bz != 1 || extra)
        return 1; /* invalid value */
    memcpy(l.p, params[0], l.k->p_bytes);
    return mc_stream_push(stream, emulate, &l, sizeof l) == 0 ? 0
                                                              : 719; /* launch failed */
}

static mc_cu_result e_StreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    return mc_stream_new(1, &(struct mc_peer){0}, (struct mc_stream **)stream) == 0 ? 0 : 2;
}

static mc_cu_result e_StreamDestroy(void *stream)
{
    mc_stream_free(stream);
    return 0;
}

static mc_cu_result e_StreamSynchronize(void *stream)
{
    return mc_stream_wait(stream, mc_stream_mark(stream)) == 0 ? 0 : 719;
}

static mc_cu_result e_EventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return *event ? 0 : 2;
}

static mc_cu_result e_EventDestroy(void *event)
{
    free(event);
    return 0;
}

static mc_cu_result e_EventRecord(void *event, void *stream)
{
    struct event *e = event;
    uint64_t t = mc_stream_mark(stream);

    __atomic_store_n(&e->ticket, t, __ATOMIC_RELAXED);
    __atomic_store_n(&e->s, stream, __ATOMIC_RELEASE);
    return 0;
}

static mc_cu_result e_EventSynchronize(void *event)
{
    struct event *e = event;
    struct mc_stream *s = __atomic_load_n(&e->s, __ATOMIC_ACQUIRE);

    if (!s)
        return 0;
    return mc_stream_wait(s, __atomic_load_n(&e->ticket, __ATOMIC_RELAXED)) == 0 ? 0
                                                                                 : 719;
}

static mc_cu_result e_EventQuery(void *event)
{
    struct event *e = event;
    struct mc_stream *s = __atomic_load_n(&e->s, __ATOMIC_ACQUIRE);

    if (!s || mc_stream_done(s, __atomic_load_n(&e->ticket, __ATOMIC_RELAXED)))
        return 0;
    return MC_CU_NOT_READY;
}

/* ---- graphs ------------------------------------------------------------------------ */

static mc_cu_result e_StreamBeginCapture(void *stream, int mode)
{
    (void)mode;
    return mc_graph_begin(stream) == 0 ? 0 : 2;
}

static mc_cu_result e_StreamEndCapture(void *stream, void **graph)
{
    return mc_graph_end(stream, (struct mc_graph **)graph) == 0 ? 0 : 2;
}

static mc_cu_result e_GraphInstantiate(void **exec, void *graph, unsigned long long flags)
{
    (void)flags;
    *exec = graph; /* the graph owns it */
    return 0;
}

static mc_cu_result e_GraphLaunch(void *exec, void *stream)
{
    return mc_graph_run(stream, exec) == 0 ? 0 : 719;
}

static mc_cu_result e_GraphExecDestroy(void *exec)
{
    (void)exec;
    return 0;
}

static mc_cu_result e_GraphDestroy(void *graph)
{
    mc_graph_free(graph);
    return 0;
}

static bool load(struct mc_cu_api *api, const char **why)
{
    (void)why;
#define F(name, symbol, args) api->name = e_##name;
    MC_CU_API(F)
#undef F
    return true;
}

static const void *const image[] = {table};

const struct mc_cu_platform mc_cu_platform = {load, image, 1};

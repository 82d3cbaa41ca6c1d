/* driver.c - the CUDA driver's functions over the emulator: the platform of mascon-emu.
 *
 * Device memory is out of the host's reach but while a kernel or a copy runs: a program
 * that follows a device pointer on the host faults here as it would with a card. In
 * sanitizer builds it is the heap's, so that its ends are seen. A stream is a queue of
 * kernels/host whose one thread emulates the launches in order; capture records them. The
 * devices are made-up cards of sm_90, eight of them. Owns what the driver would. THREAD: as
 * the driver.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
    return at < MC_MAX_RANKS ? 0 : 101; /* invalid device */
}

static mc_cu_result e_DeviceCanAccessPeer(int *can, int dev, int peer)
{
    *can = dev != peer;
    return 0;
}

static mc_cu_result e_CtxEnablePeerAccess(void *ctx, unsigned flags)
{
    return ctx ? (int)flags : 201;
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
    (void)dev;
    return 0;
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

enum { ALIGN = 256 };
static const size_t SPACE = (size_t)64 << 30; /* addresses, not memory */

/* What the device reaches: blocks of its own in one range of addresses, which begins anew
 * when the last is freed, and blocks of the host's (first bytes at host[i]). */
static struct {
    pthread_mutex_t lock;
    unsigned char *base;
    size_t used;
    int32_t live, users;
    struct {
        uintptr_t at;
        size_t bytes;
    } host[4096];
    int32_t n_host;
} mem = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* Opens device memory for who runs on the device, by 1, and closes it after, by -1. */
static void reach(int by)
{
    pthread_mutex_lock(&mem.lock);
    mem.users += by;
    if (mem.used > 0 && mem.users == (by > 0 ? 1 : 0))
        mprotect(mem.base, mem.used, by > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_mutex_unlock(&mem.lock);
}

bool emu_reaches(const void *p, uint32_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    bool in = at - (uintptr_t)mem.base < mem.used; /* who runs holds it open: it stays */

    if (in)
        return true;
    pthread_mutex_lock(&mem.lock);
    for (int32_t i = 0; i < mem.n_host && !in; i++)
        in = at >= mem.host[i].at && at + bytes <= mem.host[i].at + mem.host[i].bytes;
    pthread_mutex_unlock(&mem.lock);
    return in;
}

/* Fresh memory is rubbish, as a device's is. */
static void *take(size_t bytes)
{
    void *p = aligned_alloc(ALIGN, up(bytes));

    return p ? memset(p, 0xa5, bytes) : NULL;
}

#ifdef MC_SANITIZE
static void *dev_take(size_t bytes)
{
    return take(bytes);
}

static void dev_give(void *p)
{
    free(p);
}
#else
static void *dev_take(size_t bytes)
{
    unsigned char *p = NULL;

    pthread_mutex_lock(&mem.lock);
    if (!mem.base) {
        mem.base = mmap(NULL, SPACE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mem.base == MAP_FAILED)
            mem.base = NULL;
    }
    if (mem.base && up(bytes) + ALIGN < SPACE - mem.used) {
        p = mem.base + mem.used;
        mem.used += up(bytes) + ALIGN;
        mprotect(mem.base, mem.used, PROT_READ | PROT_WRITE);
        memset(p, 0xa5, bytes);
        mem.live++;
        if (mem.users == 0)
            mprotect(mem.base, mem.used, PROT_NONE);
    }
    pthread_mutex_unlock(&mem.lock);
    return p;
}

static void dev_give(void *p)
{
    pthread_mutex_lock(&mem.lock);
    if (p && --mem.live == 0) {
        madvise(mem.base, mem.used, MADV_DONTNEED);
        mem.used = 0;
    }
    pthread_mutex_unlock(&mem.lock);
}
#endif

static mc_cu_result e_MemAlloc(mc_cu_ptr *p, size_t bytes)
{
    *p = (uintptr_t)dev_take(bytes);
    return *p ? 0 : 2;
}

static mc_cu_result e_MemFree(mc_cu_ptr p)
{
    dev_give((void *)(uintptr_t)p);
    return 0;
}

static mc_cu_result e_MemHostAlloc(void **p, size_t bytes, unsigned flags)
{
    int32_t i = 0;

    (void)flags;
    *p = take(bytes);
    if (!*p)
        return 2;
    pthread_mutex_lock(&mem.lock);
    while (i < mem.n_host && mem.host[i].at)
        i++;
    if (i < 4096) {
        mem.host[i].at = (uintptr_t)*p;
        mem.host[i].bytes = bytes;
        mem.n_host += i == mem.n_host;
    }
    pthread_mutex_unlock(&mem.lock);
    return 0;
}

static mc_cu_result e_MemFreeHost(void *p)
{
    pthread_mutex_lock(&mem.lock);
    for (int32_t i = 0; i < mem.n_host; i++)
        if (mem.host[i].at == (uintptr_t)p)
            mem.host[i].at = mem.host[i].bytes = 0;
    pthread_mutex_unlock(&mem.lock);
    free(p);
    return 0;
}

static mc_cu_result e_MemsetD8(mc_cu_ptr p, unsigned char value, size_t bytes)
{
    reach(1);
    memset((void *)(uintptr_t)p, value, bytes);
    reach(-1);
    return 0;
}

static mc_cu_result e_MemcpyHtoD(mc_cu_ptr to, const void *from, size_t bytes)
{
    reach(1);
    memcpy((void *)(uintptr_t)to, from, bytes);
    reach(-1);
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
    int rc;

    (void)par;
    reach(1);
    rc = emu_launch(&e, &why);
    reach(-1);
    if (rc == 0)
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

static mc_cu_result e_CtxGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return 0;
}

static mc_cu_result e_StreamCreate(void **stream, unsigned flags, int priority)
{
    (void)flags;
    if (priority > 0 || priority < -5)
        return 1; /* invalid value */
    return mc_stream_new(1, &(struct mc_peer){0}, (struct mc_stream **)stream) == 0 ? 0
                                                                                    : 2;
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

    if (s && !mc_stream_done(s, __atomic_load_n(&e->ticket, __ATOMIC_RELAXED)))
        return MC_CU_NOT_READY;
    return e_EventSynchronize(event);
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

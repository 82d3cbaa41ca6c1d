/* cuda.h - between the host files of the CUDA backend, and to the driver under it.
 *
 * The backend speaks to the driver through a table of functions, filled from libcuda at
 * run time (driver.c) or by the emulator (kernels/emu/driver.c): everything above the
 * table, launchers, streams, tickets and graphs, is the same code on a card and without
 * one. The types are the driver API's own, spelled in plain C, so that no toolkit is
 * needed to compile this.
 *
 * OWNS: a backend its context, modules and kernels; a stream its events. */
#ifndef MC_CUDA_CUDA_H
#define MC_CUDA_CUDA_H

#include "kernels/cuda/list.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/params.h"
#include "kernels/kernels.h"

/* CUresult and handles; 0 is success. Names and versions as libcuda exports them. */
typedef int mc_cu_result;
typedef uint64_t mc_cu_ptr;
enum {
    MC_CU_NOT_READY = 600,
    MC_CU_ATTR_MAJOR = 75,
    MC_CU_ATTR_MINOR = 76,
    MC_CU_ATTR_SMS = 16,
    MC_CU_FUNC_SMEM = 8,
    MC_CU_HOST_PORTABLE = 1,
    MC_CU_HOST_DEVICEMAP = 2,
    MC_CU_EVENT_NO_TIMING = 2,
    MC_CU_STREAM_NON_BLOCKING = 1,
    MC_CU_CAPTURE_THREAD = 1
};

#define MC_CU_API(F)                                                               \
    F(Init, cuInit, (unsigned flags))                                              \
    F(DeviceGet, cuDeviceGet, (int *dev, int at))                                  \
    F(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int dev, int peer))   \
    F(CtxEnablePeerAccess, cuCtxEnablePeerAccess, (void *ctx, unsigned flags))     \
    F(DeviceGetName, cuDeviceGetName, (char *name, int len, int dev))              \
    F(DeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attr, int dev))   \
    F(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **ctx, int dev))           \
    F(PrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int dev))                  \
    F(CtxSetCurrent, cuCtxSetCurrent, (void *ctx))                                 \
    F(ModuleLoadData, cuModuleLoadData, (void **module, const void *image))        \
    F(ModuleUnload, cuModuleUnload, (void *module))                                \
    F(ModuleGetFunction, cuModuleGetFunction,                                      \
      (void **fn, void *module, const char *name))                                 \
    F(FuncSetAttribute, cuFuncSetAttribute, (void *fn, int attr, int value))       \
    F(MemAlloc, cuMemAlloc_v2, (mc_cu_ptr * p, size_t bytes))                      \
    F(MemFree, cuMemFree_v2, (mc_cu_ptr p))                                        \
    F(MemHostAlloc, cuMemHostAlloc, (void **p, size_t bytes, unsigned flags))      \
    F(MemFreeHost, cuMemFreeHost, (void *p))                                       \
    F(MemsetD8, cuMemsetD8_v2, (mc_cu_ptr p, unsigned char value, size_t bytes))   \
    F(MemcpyHtoD, cuMemcpyHtoD_v2, (mc_cu_ptr to, const void *from, size_t bytes)) \
    F(CtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange,                      \
      (int *least, int *greatest))                                                 \
    F(StreamCreate, cuStreamCreateWithPriority,                                    \
      (void **stream, unsigned flags, int priority))                               \
    F(StreamDestroy, cuStreamDestroy_v2, (void *stream))                           \
    F(StreamSynchronize, cuStreamSynchronize, (void *stream))                      \
    F(StreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode))       \
    F(StreamEndCapture, cuStreamEndCapture, (void *stream, void **graph))          \
    F(GraphInstantiate, cuGraphInstantiateWithFlags,                               \
      (void **exec, void *graph, unsigned long long flags))                        \
    F(GraphLaunch, cuGraphLaunch, (void *exec, void *stream))                      \
    F(GraphExecDestroy, cuGraphExecDestroy, (void *exec))                          \
    F(GraphDestroy, cuGraphDestroy, (void *graph))                                 \
    F(EventCreate, cuEventCreate, (void **event, unsigned flags))                  \
    F(EventDestroy, cuEventDestroy_v2, (void *event))                              \
    F(EventRecord, cuEventRecord, (void *event, void *stream))                     \
    F(EventSynchronize, cuEventSynchronize, (void *event))                         \
    F(EventQuery, cuEventQuery, (void *event))                                     \
    F(GetErrorString, cuGetErrorString, (mc_cu_result rc, const char **text))      \
    F(LaunchKernel, cuLaunchKernel,                                                \
      (void *fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,  \
       unsigned bz, unsigned smem, void *stream, void **params, void **extra))

struct mc_cu_api {
#define F(name, symbol, args) mc_cu_result (*name) args;
    MC_CU_API(F)
#undef F
};

/* What a program was linked with: a way to the driver, and the kernels' images. In
 * libmascon neither (none.c); the program with kernels and the emulated one bring theirs.
 */
struct mc_cu_platform {
    bool (*load)(struct mc_cu_api *api, const char **why);
    const void *const *image; /* [n_image] fatbins; a kernel is in one of them */
    int n_image;
};
extern const struct mc_cu_platform mc_cu_platform;

bool mc_cu_driver_load(struct mc_cu_api *api, const char **why); /* libcuda, by dlopen */

struct mc_cu {
    struct mc_backend b; /* first: a backend is cast to it */
    struct mc_cu_api api;
    int dev, arch; /* 80, 90, 100 */
    uint32_t smem; /* shared memory that a block may have */
    void *ctx;
    void *module[64];
    int n_module;
    void *fn[MC_N_KERNEL];
    struct mc_cu_words *words; /* pinned; see params.h */
    struct mc_cu_peers peers;  /* of several ranks; seats as they are found */
    size_t seat_bytes;
    struct { /* of the wait for others, the host's: see peer.c */
        uint32_t came, polls[MC_MAX_RANKS], waited;
    } late;
    bool w8a8;       /* e4m3 weights multiply e4m3 activations */
};

uint32_t *mc_cu_fault(struct mc_stream *s);
struct mc_backend *mc_cu_backend(struct mc_stream *s);
uint32_t mc_cu_smem(struct mc_stream *s); /* that a block may have */

/* The device's kernels are launched with one params struct each. */
struct mc_cu_grid {
    int64_t x, y;
    uint32_t smem;
};
int mc_cu_launch(struct mc_stream *s, enum mc_kernel_id k, struct mc_cu_grid g,
                 const void *p);

/* Ranks that meet on their devices, peer.c. Each is called with the context current. */
const char *mc_cu_sit(struct mc_cu *cu); /* NULL, or why there is no seat for it */
void mc_cu_leave(struct mc_cu *cu);
int mc_cu_peers_of(struct mc_stream *s, struct mc_cu_peers *out); /* once all sit */
/* The host waited so long for this rank, in vain; and what became of the ranks: 0 or
 * MC_K_ERANK. */
void mc_cu_waited(struct mc_cu *cu, uint32_t ms);
int mc_cu_parted(struct mc_cu *cu);

/* vocab_mem of vocab.cuh, with room. */
enum { MC_CU_VOCAB_SMEM = 4096 };

/* Ceiling division; at least one block. */
static inline int64_t mc_cu_blocks(int64_t n, int64_t each)
{
    return n <= each ? 1 : (n + each - 1) / each;
}

static inline int mc_cu_refuse(const char **why, const char *text)
{
    if (why)
        *why = text;
    return MC_K_EUNSUP;
}

/* Why a prefill row's own bf16 pages (--prefill-kv bf16) are refused. */
#define MC_CU_NO_FRESH \
    "cuda: prompts attend to what the pages keep (no --prefill-kv bf16)"

/* NULL, or why an activation can't be read or written by kernels. */
const char *mc_cu_act_refuse(const struct mc_act *a);
/* NULL, or why w can't be multiplied with it. */
const char *mc_cu_product_refuse(const struct mc_w *w, const struct mc_act *a);

uint16_t mc_cu_run_of(const struct mc_backend *b, uint16_t disk_fmt);

#define MC_CU_OPS(F)                                                                  \
    F(pack)                                                                           \
    F(page_init) F(page_copy) F(page_check) F(table_apply) F(embed) F(join) F(linear) \
        F(glu) F(quant) F(gqa_prep) F(gqa_attn) F(attn_merge) F(route) F(moe)         \
            F(mla_prep) F(mla_q) F(mla_attn) F(mla_out) F(dsa_prep) F(dsa_topk)       \
                F(mtp_in) F(gather_rows) F(chain) F(sample) F(verify) F(commit)       \
                    F(nll) F(tap) F(tensor) F(agree) F(all_gather) F(all_to_all)      \
                        F(attn_ragged)
#define F(name) extern const struct mc_op mc_cu_##name;
MC_CU_OPS(F)
#undef F

/* Defines mc_cu_<name> from
 *   static int name##_need(const struct mc_<name>_p *, struct mc_need *, const char
 * **why) static int name##_run(struct mc_stream *, const struct mc_<name>_p *) */
#define MC_CU_OP(name)                                                                   \
    static int need_##name(const void *p, struct mc_need *n, const char **why)           \
    {                                                                                    \
        *n = (struct mc_need){0};                                                        \
        return name##_need((const struct mc_##name##_p *)p, n, why);                     \
    }                                                                                    \
    static int run_##name(struct mc_stream *s, const void *p)                            \
    {                                                                                    \
        return name##_run(s, (const struct mc_##name##_p *)p);                           \
    }                                                                                    \
    const struct mc_op mc_cu_##name = {#name, sizeof(struct mc_##name##_p), need_##name, \
                                       NULL, run_##name}

#endif

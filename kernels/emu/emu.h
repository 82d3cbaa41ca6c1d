/* emu.h - running CUDA kernels on the CPU: launches, and what the device vocabulary
 * calls.
 *
 * Each CUDA thread is a fiber; the blocks of a cluster run together, clusters one after
 * another, in an order that the seed shuffles. Barriers and warp operations are where
 * threads meet; what meets wrongly (a divergent barrier, lanes at different operations, a
 * thread that ends while others wait) ends the launch with a text that names the places.
 *
 * Dynamic shared memory is a fresh block for each CUDA block, filled with NaNs between
 * red zones. Asynchronous copies happen at their waits; until then their destination is
 * poisoned. In plain builds the .cu files are compiled with the compiler's memory-access
 * hooks (watch.c): races in shared memory, reads of what nobody wrote, misaligned
 * accesses and accesses outside are found at their line, and traffic is counted. In
 * sanitizer builds the sanitizers look instead.
 *
 * OWNS: each OS thread its own emulator, made at its first launch and freed at its end.
 * THREAD: any; launches of different threads run concurrently, as ranks do. */
#ifndef MC_EMU_EMU_H
#define MC_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/emu/fiber.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMU_THREADS = 1024, /* of a block */
    EMU_CLUSTER = 8,    /* blocks of a cluster */
    EMU_WARPS = EMU_THREADS / 32,
    EMU_COPIES = 64,    /* asynchronous copies in flight, of a thread */
    EMU_RED = 256,      /* bytes of a red zone */
    EMU_SMEM = 227 << 10,
};

typedef void (*emu_kernel)(const void *p);

struct emu_dim {
    uint32_t x, y, z;
};

struct emu_launch {
    emu_kernel run;
    const char *name;
    struct emu_dim grid; /* in blocks */
    uint32_t threads, cluster; /* of a block; blocks along x that run together, 0: 1 */
    uint32_t smem, p_bytes;
    const void *p; /* the kernel's only argument, p_bytes of it */
};

/* 0, or -1 with the fault's text, which lives until this thread's next launch. */
int emu_launch(const struct emu_launch *l, const char **why);
void emu_seed(uint32_t seed); /* of this thread's orders */

/* ---- traffic, counted in plain builds only ----------------------------------------- */

/* Global memory in sectors of 32 bytes a warp's access touches, shared memory in waves (a
 * bank serves one word a wave), each beside what the same bytes need at least; and the
 * sectors that were touched at all, which is what memory moves when the rest comes from
 * L2. Accesses that leave lanes idle count as they are. */
struct emu_traffic {
    uint64_t global_bytes, sectors, sectors_min, touched;
    uint64_t waves, waves_min;
};
bool emu_watches(void);          /* whether this build has the hooks */
void emu_count(bool on);         /* launches from now on; on clears */
struct emu_traffic emu_counted(void);

/* Whether device or pinned memory has those bytes (driver.c). With emu_strict (plain
 * builds only) a kernel that touches any other memory, which a card could not reach,
 * fails. */
bool emu_reaches(const void *p, uint32_t bytes);
void emu_strict(bool (*reaches)(const void *p, uint32_t bytes));

/* ---- the inside: what emu_dev.h and watch.c see ------------------------------------ */

struct emu_place {
    const char *op, *file;
    int line;
};

struct emu_copy { /* cp.async: 16 bytes, of which n are read and the rest zeros */
    void *to;
    const void *from;
    uint32_t n, group;
};

struct emu_block;

struct emu_thread {
    struct emu_dim thread_idx;
    struct emu_block *block;
    uint32_t id, lane, warp;
    bool done;
    struct emu_place at; /* where it waits; op NULL: it runs or is about to */
    struct emu_copy copy[EMU_COPIES];
    uint32_t n_copy, group;
    struct fiber fiber;
};

struct emu_warp {
    void *arg[32];
    uint32_t mask, arrived; /* of the operation that lanes wait at */
    struct emu_place at;
    uint32_t epoch; /* __syncwarps passed */
};

struct emu_block {
    struct emu_dim idx, grid;
    uint32_t n_threads, n_done, n_wait; /* at the barrier */
    uint32_t epoch;                     /* barriers passed */
    struct emu_place at;
    uint32_t rank; /* in its cluster */
    unsigned char *smem; /* between red zones */
    uint32_t smem_bytes;
    struct emu_cell *cell; /* shadow, watch.c */
    struct emu_warp warp[EMU_WARPS];
    struct emu_thread **thread; /* [n_threads] */
    const struct emu_launch *launch;
};

extern __thread struct emu_thread *emu_me;

/* Ends the launch with a text; called on a fiber, never returns. */
void emu_fault(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

void emu_barrier(const char *file, int line);
void emu_cluster_barrier(const char *file, int line);
struct emu_block *emu_cluster_block(uint32_t rank);
uint32_t emu_cluster_size(void);
void emu_yield(void); /* in a spin: lets others run */
void emu_await(void); /* in a spin on what another rank does: bounded by the kernel alone */
uint32_t emu_rnd(void); /* of this thread's orders */

/* Meets the lanes of mask; the last to come calls fn over their args. sync: memory is
 * ordered too (__syncwarp). */
void emu_meet(uint32_t mask, const char *op, const char *file, int line, void *arg,
              void (*fn)(void **arg, uint32_t mask), bool sync);

void emu_copy_async(void *to, const void *from, uint32_t n);
void emu_copy_commit(void);
void emu_copy_wait(uint32_t left); /* until at most so many groups are under way */

/* An access by a wrapper, for watch.c; pc 0: the caller's. */
void emu_touch(const void *p, uint32_t bytes, bool write);
void emu_touch_atomic(const void *p, uint32_t bytes);

/* watch.c */
void emu_watch_block(struct emu_block *b); /* a block begins: its shadow is new */
void emu_watch_end(struct emu_block *b);
void emu_watch_pending(struct emu_block *b, const void *p, uint32_t bytes);
void emu_watch_landed(struct emu_block *b, const void *p, uint32_t bytes);
size_t emu_watch_bytes(uint32_t smem); /* of a shadow */

#ifdef __cplusplus
}
#endif

#endif

/* fiber.c - the switch and the stacks; see fiber.h.
 *
 * A register switch takes some 20 ns; ucontext's makes two system calls and takes 30
 * times that, so it serves only where the fifteen lines of assembly are not written.
 * THREAD: any, each with its own fibers. */
#define _GNU_SOURCE
#include "kernels/emu/fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 512 << 10 }; /* red zones around every local */
#else
#define ASAN 0
enum { STACK = 128 << 10 };
#endif
#if defined(__SANITIZE_THREAD__) || defined(EMU_TSAN)
#define TSAN 1
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
enum { NO_SYNC = 1 }; /* a switch orders nothing: only barriers do */
#else
#define TSAN 0
#endif

enum { GUARD = 4096 };

#if defined(__x86_64__)
/* Saves what a callee must keep, swaps stacks, restores. */
void mc_emu_switch(void **save, void *load);
__asm__(".text\n"
        ".globl mc_emu_switch\n"
        ".type mc_emu_switch, @function\n"
        "mc_emu_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size mc_emu_switch, . - mc_emu_switch\n");
#endif

static __thread struct fiber *running;

/* The first thing on a new stack. */
static void start(void)
{
    struct fiber *f = running;

#if ASAN
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    f->entry(f->arg);
    abort(); /* entry never returns */
}

#if defined(__x86_64__)
void fiber_reset(struct fiber *f)
{
    void **top = (void **)(f->stack + f->bytes);

#if ASAN
    __asan_unpoison_memory_region(f->stack + GUARD, f->bytes - GUARD);
#endif
    top -= 2; /* a call leaves the stack 8 off a multiple of 16 */
    *top = (void *)(uintptr_t)start;
    memset(top - 6, 0, 6 * sizeof *top);
    f->sp = top - 6;
    f->asan = NULL;
}

static void swap(struct fiber *from, struct fiber *to)
{
    mc_emu_switch(&from->sp, to->sp);
}
#else
void fiber_reset(struct fiber *f)
{
    ucontext_t *c = f->sp;

    getcontext(c);
    c->uc_stack.ss_sp = f->stack + GUARD;
    c->uc_stack.ss_size = f->bytes - GUARD;
    makecontext(c, start, 0);
    f->asan = NULL;
}

static void swap(struct fiber *from, struct fiber *to)
{
    swapcontext(from->sp, to->sp);
}
#endif

bool fiber_new(struct fiber *f, void (*entry)(void *arg), void *arg)
{
    *f = (struct fiber){.bytes = GUARD + STACK, .entry = entry, .arg = arg};
    f->stack = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED)
        return false;
    mprotect(f->stack, GUARD, PROT_NONE); /* an overflow stops there */
#if !defined(__x86_64__)
    f->sp = malloc(sizeof(ucontext_t));
#endif
    fiber_reset(f);
#if TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return true;
}

void fiber_free(struct fiber *f)
{
    if (!f->stack)
        return;
#if TSAN
    __tsan_destroy_fiber(f->tsan);
#endif
#if ASAN
    __asan_unpoison_memory_region(f->stack + GUARD, f->bytes - GUARD);
#endif
#if !defined(__x86_64__)
    free(f->sp);
#endif
    munmap(f->stack, f->bytes);
    f->stack = NULL;
}

void fiber_home(struct fiber *f)
{
    memset(f, 0, sizeof *f);
#if !defined(__x86_64__)
    static __thread ucontext_t home;
    f->sp = &home;
#endif
#if TSAN
    f->tsan = __tsan_get_current_fiber();
#endif
#if ASAN
    pthread_attr_t a;
    void *at;

    pthread_getattr_np(pthread_self(), &a);
    pthread_attr_getstack(&a, &at, &f->home_bytes);
    pthread_attr_destroy(&a);
    f->home_at = at;
#endif
    running = f;
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
    running = to;
#if ASAN
    __sanitizer_start_switch_fiber(&from->asan,
                                   to->stack ? to->stack + GUARD : to->home_at,
                                   to->stack ? to->bytes - GUARD : to->home_bytes);
#endif
#if TSAN
    __tsan_switch_to_fiber(to->tsan, NO_SYNC);
#endif
    swap(from, to);
#if ASAN
    __sanitizer_finish_switch_fiber(from->asan, NULL, NULL);
#endif
}

bool fiber_has(const struct fiber *f, const void *p)
{
    return (const char *)p >= f->stack && (const char *)p < f->stack + f->bytes;
}

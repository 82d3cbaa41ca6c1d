/* watch.c - every memory access of a kernel, seen: races, bounds, alignment, traffic.
 *
 * Plain builds compile the .cu files with -fsanitize=thread and link no ThreadSanitizer:
 * the functions that the compiler calls before each access are here. Only shared memory
 * has a shadow, a cell a byte: who wrote it last and when, who read it since, whether a
 * copy is under way to it. Time is the block's barriers passed and the warp's __syncwarps
 * passed: two accesses are ordered by a barrier between them, or within a warp by a
 * __syncwarp; a shuffle orders nothing. Found: accesses that race, reads of what nobody
 * wrote, accesses outside, misaligned ones. Global memory is only counted.
 *
 * OWNS: the counts. THREAD: any; counted launches are one thread's at a time, and who
 * reads the counts has waited for them. */
#define _GNU_SOURCE
#include "kernels/emu/emu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOBODY = 0xffff, ATOMIC = 0xfffe, MANY = 0xfffd, LANES = 32 };

struct emu_cell {
    uint32_t w_block, w_warp; /* when it was written: barriers, __syncwarps */
    uint32_t r_block, r_warp;
    uint16_t writer, reader; /* a thread; reader MANY: several of warp r_of, or of all */
    uint16_t r_of;           /* the readers' warp, MANY: of several */
    bool pending;
};

#if defined(MC_SANITIZE)
bool emu_watches(void)
{
    return false;
}

size_t emu_watch_bytes(uint32_t smem)
{
    (void)smem;
    return 0;
}

void emu_watch_block(struct emu_block *b)
{
    (void)b;
}

void emu_watch_end(struct emu_block *b)
{
    (void)b;
}

void emu_watch_pending(struct emu_block *b, const void *p, uint32_t bytes)
{
    (void)b;
    (void)p;
    (void)bytes;
}

void emu_watch_landed(struct emu_block *b, const void *p, uint32_t bytes)
{
    (void)b;
    (void)p;
    (void)bytes;
}

void emu_touch(const void *p, uint32_t bytes, bool write)
{
    (void)write;
    if (emu_me && (uintptr_t)p % bytes != 0)
        emu_fault("a misaligned access of %u bytes at %p", bytes, p);
}

void emu_touch_atomic(const void *p, uint32_t bytes)
{
    emu_touch(p, bytes, true);
}

void emu_strict(bool (*reaches)(const void *p, uint32_t bytes))
{
    (void)reaches;
}

void emu_count(bool on)
{
    (void)on;
}

struct emu_traffic emu_counted(void)
{
    return (struct emu_traffic){0};
}
#else

bool emu_watches(void)
{
    return true;
}

/* ---- where ------------------------------------------------------------------------- */

/* "file:line" of an address in this program and of who it is inlined in, innermost first,
 * if the tool is there that knows. */
static const char *place_of(const void *pc, char *out, size_t n)
{
    Dl_info in;
    char cmd[600];
    size_t at = 0, i;
    FILE *f;

    snprintf(out, n, "%p", pc);
    if (!dladdr(pc, &in) || !in.dli_fname)
        return out;
    snprintf(cmd, sizeof cmd, "addr2line -i -e '%s' %#zx 2>/dev/null", in.dli_fname,
             (size_t)((const char *)pc - (const char *)in.dli_fbase) - 1);
    f = popen(cmd, "r");
    if (f) {
        at = fread(out, 1, n - 1, f);
        pclose(f);
    }
    if (at > 0)
        out[at - 1] = 0; /* the last newline */
    for (i = 0; i + 1 < at; i++)
        out[i] = out[i] == '\n' ? ' ' : out[i];
    return out;
}

static void fault_at(const char *what, const void *p, uint32_t bytes, const void *pc)
{
    struct emu_block *b = emu_me->block;
    char where[400];

    emu_fault("%s: %u bytes at offset %td of shared memory (%s)", what, bytes,
              (const unsigned char *)p - b->smem, place_of(pc, where, sizeof where));
}

/* ---- traffic ----------------------------------------------------------------------- */

/* The n-th access of a warp at one place, lane by lane. */
struct request {
    const void *addr[LANES];
    uint32_t lanes;
};

struct site {
    const void *pc;
    uint32_t bytes;
    bool shared;
    uint32_t nth[EMU_THREADS * EMU_CLUSTER];
    struct request *req[EMU_WARPS * EMU_CLUSTER];
    uint32_t n_req[EMU_WARPS * EMU_CLUSTER];
};

enum { MAX_SITES = 256 };

struct counts {
    bool on;
    struct emu_traffic sum;
    struct site *site[MAX_SITES];
    uint32_t n_site;
};

static struct counts counts;

/* Sectors seen since counting began: open addressing, at most half full. */
static struct {
    uint64_t *at; /* sector + 1, 0: free */
    size_t cap, n;
} seen;

static bool insert(uint64_t sector)
{
    size_t i = (size_t)(sector * UINT64_C(0x9e3779b97f4a7c15)) & (seen.cap - 1);

    for (; seen.at[i]; i = (i + 1) & (seen.cap - 1))
        if (seen.at[i] == sector + 1)
            return false;
    seen.at[i] = sector + 1;
    seen.n++;
    return true;
}

static void see(uint64_t sector)
{
    uint64_t *old = seen.at;
    size_t cap = seen.cap, i;

    if (2 * (seen.n + 1) > cap) {
        seen.cap = cap ? 2 * cap : 1 << 12;
        seen.at = calloc(seen.cap, sizeof *seen.at);
        if (!seen.at)
            abort();
        seen.n = 0;
        for (i = 0; i < cap; i++)
            if (old[i])
                insert(old[i] - 1);
        free(old);
    }
    counts.sum.touched += insert(sector);
}

static uint32_t distinct(uint64_t *v, uint32_t n)
{
    uint32_t i, j, m = 0;

    for (i = 0; i < n; i++) {
        for (j = 0; j < m && v[j] != v[i]; j++)
            ;
        if (j == m)
            v[m++] = v[i];
    }
    return m;
}

static void add_global(const struct site *s, const struct request *r)
{
    uint64_t sec[2 * LANES], word[LANES * 4];
    uint32_t l, i, n = 0, m = 0;

    for (l = 0; l < LANES; l++) {
        uint64_t a = (uint64_t)(uintptr_t)r->addr[l];

        if (!(r->lanes >> l & 1))
            continue;
        sec[n++] = a / 32;
        sec[n++] = (a + s->bytes - 1) / 32;
        for (i = 0; i < s->bytes && m < LANES * 4; i += 4)
            word[m++] = (a + i) / 4;
    }
    m = distinct(word, m);
    if (s->bytes < 4) { /* words of such lanes are shared */
        counts.sum.global_bytes += (uint64_t)s->bytes * (n / 2);
    } else {
        counts.sum.global_bytes += 4 * (uint64_t)m;
    }
    n = distinct(sec, n);
    counts.sum.sectors += n;
    for (i = 0; i < n; i++)
        see(sec[i]);
    counts.sum.sectors_min += (m + 7) / 8;
}

/* A warp's 16-byte accesses go in quarters, 8-byte ones in halves; each by its banks. */
static void add_shared(const struct site *s, const struct request *r)
{
    uint32_t at_once = s->bytes >= 16 ? 8 : s->bytes >= 8 ? 16 : 32, l, i, b, k;

    for (l = 0; l < LANES; l += at_once) {
        uint64_t word[LANES * 2];
        uint32_t n = 0, bank[32] = {0}, most = 0;

        for (i = l; i < l + at_once; i++)
            for (k = 0; k < (s->bytes + 3) / 4 && r->lanes >> i & 1; k++)
                word[n++] = (uint64_t)(uintptr_t)r->addr[i] / 4 + k;
        n = distinct(word, n);
        for (i = 0; i < n; i++) {
            b = word[i] % 32;
            bank[b]++;
            most = bank[b] > most ? bank[b] : most;
        }
        counts.sum.waves += most;
        counts.sum.waves_min += (n + 31) / 32;
    }
}

static struct site *site_of(const void *pc, uint32_t bytes, bool shared)
{
    struct site *s;
    uint32_t i;

    for (i = 0; i < counts.n_site; i++)
        if (counts.site[i]->pc == pc && counts.site[i]->shared == shared)
            return counts.site[i];
    if (counts.n_site == MAX_SITES)
        return NULL;
    s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (struct site){.pc = pc, .bytes = bytes, .shared = shared};
    counts.site[counts.n_site++] = s;
    return s;
}

static void count(const void *p, uint32_t bytes, const void *pc, bool shared)
{
    struct emu_thread *t = emu_me;
    uint32_t id = t->block->rank * t->block->n_threads + t->id, w = id / LANES, nth;
    struct site *s = site_of(pc, bytes, shared);
    struct request *r;

    if (!s)
        return;
    nth = s->nth[id]++;
    if (nth >= s->n_req[w]) {
        uint32_t n = nth < 16 ? 16 : 2 * nth;

        r = realloc(s->req[w], n * sizeof *r);
        if (!r)
            return;
        memset(r + s->n_req[w], 0, (n - s->n_req[w]) * sizeof *r);
        s->req[w] = r;
        s->n_req[w] = n;
    }
    r = &s->req[w][nth];
    r->addr[t->lane] = p;
    r->lanes |= 1u << t->lane;
}

/* A block's requests are complete when it ends. */
static void count_up(void)
{
    uint32_t i, w, k;

    for (i = 0; i < counts.n_site; i++) {
        struct site *s = counts.site[i];

        for (w = 0; w < EMU_WARPS * EMU_CLUSTER; w++) {
            for (k = 0; k < s->n_req[w] && s->req[w][k].lanes; k++)
                (s->shared ? add_shared : add_global)(s, &s->req[w][k]);
            free(s->req[w]);
        }
        free(s);
    }
    counts.n_site = 0;
}

static bool (*reaches)(const void *p, uint32_t bytes);

void emu_strict(bool (*fn)(const void *p, uint32_t bytes))
{
    reaches = fn;
}

void emu_count(bool on)
{
    counts.on = on;
    if (!on)
        return;
    counts.sum = (struct emu_traffic){0};
    free(seen.at);
    memset(&seen, 0, sizeof seen);
}

struct emu_traffic emu_counted(void)
{
    return counts.sum;
}

/* ---- shadow ------------------------------------------------------------------------ */

size_t emu_watch_bytes(uint32_t smem)
{
    return (size_t)smem * sizeof(struct emu_cell);
}

void emu_watch_block(struct emu_block *b)
{
    uint32_t i;

    for (i = 0; i < b->smem_bytes; i++)
        b->cell[i] = (struct emu_cell){.writer = NOBODY, .reader = NOBODY};
}

void emu_watch_end(struct emu_block *b)
{
    if (counts.on && b->rank == 0)
        count_up();
}

void emu_watch_pending(struct emu_block *b, const void *p, uint32_t bytes)
{
    uint32_t off = (uint32_t)((const unsigned char *)p - b->smem), i;

    emu_touch(p, bytes, true); /* as a write: it may race with readers */
    for (i = off; i < off + bytes; i++)
        b->cell[i].pending = true;
}

void emu_watch_landed(struct emu_block *b, const void *p, uint32_t bytes)
{
    uint32_t off = (uint32_t)((const unsigned char *)p - b->smem), i;
    struct emu_thread *t = emu_me;

    for (i = off; i < off + bytes; i++) {
        b->cell[i].pending = false;
        b->cell[i].writer = (uint16_t)t->id;
        b->cell[i].w_block = b->epoch;
        b->cell[i].w_warp = b->warp[t->warp].epoch;
    }
}

/* Whether an access by thread `who` at that time is before t's now. */
static bool before(const struct emu_block *b, const struct emu_thread *t, uint32_t who,
                   uint32_t block, uint32_t warp)
{
    if (block < b->epoch || who == t->id)
        return true;
    return who < EMU_THREADS && who / LANES == t->warp && warp < b->warp[t->warp].epoch;
}

static bool reads_before(const struct emu_block *b, const struct emu_thread *t,
                         const struct emu_cell *c)
{
    if (c->reader == NOBODY || c->r_block < b->epoch || c->reader == t->id)
        return true;
    return c->r_of == t->warp && c->r_warp < b->warp[t->warp].epoch;
}

static void note_read(const struct emu_block *b, const struct emu_thread *t,
                      struct emu_cell *c)
{
    uint32_t warp = b->warp[t->warp].epoch;

    if (reads_before(b, t, c)) { /* whatever comes after this one is after those */
        c->reader = (uint16_t)t->id;
        c->r_of = (uint16_t)t->warp;
    } else {
        c->reader = c->reader == t->id ? c->reader : MANY;
        c->r_of = c->r_of == t->warp ? c->r_of : MANY;
    }
    c->r_block = b->epoch;
    c->r_warp = warp;
}

static void look(const struct emu_block *b, struct emu_thread *t, uint32_t off,
                 uint32_t bytes, bool write, bool atomic, const void *pc)
{
    uint32_t i;

    for (i = off; i < off + bytes; i++) {
        struct emu_cell *c = &b->cell[i];
        bool safe = c->writer == NOBODY || (atomic && c->writer == ATOMIC) ||
                    before(b, t, c->writer, c->w_block, c->w_warp);

        if (c->pending)
            fault_at("touches what a cp.async still fills", b->smem + off, bytes, pc);
        if (!write && c->writer == NOBODY)
            fault_at("reads what nobody wrote", b->smem + off, bytes, pc);
        if (!safe || (write && !atomic && !reads_before(b, t, c)))
            fault_at(write ? "a write that races" : "a read that races with a write",
                     b->smem + off, bytes, pc);
        if (!write) {
            note_read(b, t, c);
            continue;
        }
        c->writer = atomic ? ATOMIC : (uint16_t)t->id;
        c->w_block = b->epoch;
        c->w_warp = b->warp[t->warp].epoch;
    }
}

/* The block of the cluster, other than b, in whose shared memory p lies; NULL: none. */
static struct emu_block *remote(const struct emu_block *b, const void *p)
{
    uint32_t i;

    for (i = 0; i < emu_cluster_size(); i++) {
        struct emu_block *o = emu_cluster_block(i);

        if (o != b && (size_t)((const unsigned char *)p - o->smem) < o->smem_bytes)
            return o;
    }
    return NULL;
}

static void access_at(const void *p, uint32_t bytes, bool write, bool atomic,
                      const void *pc)
{
    struct emu_thread *t = emu_me;
    struct emu_block *b;
    size_t off;

    if (!t || fiber_has(&t->fiber, p))
        return;
    b = t->block;
    if ((size_t)((const char *)p - (const char *)b->launch->p) < b->launch->p_bytes)
        return;
    if (bytes <= 16 && (uintptr_t)p % bytes != 0) {
        char where[400];

        emu_fault("a misaligned access: %u bytes at %p (%s)", bytes, p,
                  place_of(pc, where, sizeof where));
    }
    off = (size_t)((const unsigned char *)p - b->smem);
    if (emu_cluster_size() > 1 && remote(b, p)) {
        struct emu_block *o = remote(b, p);
        uint32_t at = (uint32_t)((const unsigned char *)p - o->smem);

        for (; write && bytes > 0; bytes--, at++) /* ordered by barriers of the cluster */
            o->cell[at] = (struct emu_cell){.writer = ATOMIC, .w_block = o->epoch,
                                            .reader = NOBODY};
        return;
    }
    if (off < b->smem_bytes && off + bytes <= b->smem_bytes)
        look(b, t, (uint32_t)off, bytes, write, atomic, pc);
    else if (off + EMU_RED < b->smem_bytes + 2 * EMU_RED)
        fault_at("outside of shared memory", p, bytes, pc);
    else if (reaches && !reaches(p, bytes)) {
        char where[400];

        emu_fault("memory that no device reaches: %u bytes at %p (%s)", bytes, p,
                  place_of(pc, where, sizeof where));
    }
    if (counts.on)
        count(p, bytes, pc, off < b->smem_bytes);
}

void emu_touch(const void *p, uint32_t bytes, bool write)
{
    access_at(p, bytes, write, false, __builtin_return_address(0));
}

void emu_touch_atomic(const void *p, uint32_t bytes)
{
    access_at(p, bytes, true, true, __builtin_return_address(0));
}

/* ---- what the compiler calls ------------------------------------------------------- */

#define HOOK(name, bytes, write)                                        \
    void __tsan_##name(void *p);                                        \
    void __tsan_##name(void *p)                                         \
    {                                                                   \
        access_at(p, bytes, write, false, __builtin_return_address(0)); \
    }
HOOK(read1, 1, false)
HOOK(read2, 2, false)
HOOK(read4, 4, false)
HOOK(read8, 8, false)
HOOK(read16, 16, false)
HOOK(write1, 1, true)
HOOK(write2, 2, true)
HOOK(write4, 4, true)
HOOK(write8, 8, true)
HOOK(write16, 16, true)
HOOK(unaligned_read2, 1, false)
HOOK(unaligned_read4, 1, false)
HOOK(unaligned_read8, 1, false)
HOOK(unaligned_read16, 1, false)
HOOK(unaligned_write2, 1, true)
HOOK(unaligned_write4, 1, true)
HOOK(unaligned_write8, 1, true)
HOOK(unaligned_write16, 1, true)

void __tsan_read_range(void *p, unsigned long n);
void __tsan_write_range(void *p, unsigned long n);
void __tsan_init(void);

void __tsan_read_range(void *p, unsigned long n)
{
    access_at(p, (uint32_t)n, false, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, unsigned long n)
{
    access_at(p, (uint32_t)n, true, false, __builtin_return_address(0));
}

void __tsan_init(void)
{
}
#endif

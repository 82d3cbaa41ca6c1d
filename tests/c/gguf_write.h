/* gguf_write.h - puts a GGUF together byte by byte, right or wrong. */
#ifndef MC_TEST_GGUF_WRITE_H
#define MC_TEST_GGUF_WRITE_H

#include <string.h>

struct buf {
    uint8_t p[1 << 16];
    size_t n;
};

static inline void raw(struct buf *b, const void *p, size_t n)
{
    assert_true(b->n + n <= sizeof b->p);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void u8(struct buf *b, uint8_t v)
{
    raw(b, &v, 1);
}

static inline void u32(struct buf *b, uint32_t v)
{
    raw(b, &v, 4);
}

static inline void u64(struct buf *b, uint64_t v)
{
    raw(b, &v, 8);
}

static inline void str(struct buf *b, const char *s)
{
    u64(b, strlen(s));
    raw(b, s, strlen(s));
}

static inline void head(struct buf *b, uint64_t n_tensor, uint64_t n_key)
{
    b->n = 0;
    raw(b, "GGUF", 4);
    u32(b, 3);
    u64(b, n_tensor);
    u64(b, n_key);
}

static inline void key(struct buf *b, const char *name, uint32_t type)
{
    str(b, name);
    u32(b, type);
}

/* A tensor info of two dims. */
static inline void info(struct buf *b, const char *name, uint64_t ne0, uint64_t ne1,
                        uint32_t type, uint64_t offset)
{
    str(b, name);
    u32(b, 2);
    u64(b, ne0);
    u64(b, ne1);
    u32(b, type);
    u64(b, offset);
}

/* One of three dims, f32. */
static inline void info3(struct buf *b, const char *name, uint64_t ne0, uint64_t ne1,
                         uint64_t ne2, uint64_t offset)
{
    str(b, name);
    u32(b, 3);
    u64(b, ne0);
    u64(b, ne1);
    u64(b, ne2);
    u32(b, 0);
    u64(b, offset);
}

static inline void pad(struct buf *b, size_t align)
{
    while (b->n % align)
        u8(b, 0);
}

#endif

/* xxhash.h - stands in for xxhash where there is none: keys of the prefix cache need a
 * hash that is the same in one process, no more. FNV-1a in two lanes. */
#ifndef MC_BARE_XXHASH_H
#define MC_BARE_XXHASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t low64, high64;
} XXH128_hash_t;

static inline uint64_t bare_fnv(const void *p, size_t n, uint64_t h)
{
    const unsigned char *c = p;

    for (size_t i = 0; i < n; i++)
        h = (h ^ c[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 29;
}

static inline uint64_t XXH3_64bits(const void *p, size_t n)
{
    return bare_fnv(p, n, UINT64_C(0xcbf29ce484222325));
}

static inline XXH128_hash_t XXH3_128bits_withSeed(const void *p, size_t n, uint64_t seed)
{
    XXH128_hash_t h = {bare_fnv(p, n, seed ^ UINT64_C(0xcbf29ce484222325)),
                       bare_fnv(p, n, seed ^ UINT64_C(0x9e3779b97f4a7c15))};

    return h;
}

static inline XXH128_hash_t XXH3_128bits(const void *p, size_t n)
{
    return XXH3_128bits_withSeed(p, n, 0);
}

#endif

/* sha256.c - see sha256.h. */
#include "core/serve/sha256.h"

#include <nettle/sha2.h>
#include <stdio.h>

void mc_sha256(const void *data, size_t n, uint8_t out[MC_SHA256])
{
    struct sha256_ctx c;

    sha256_init(&c);
    sha256_update(&c, n, data);
    sha256_digest(&c, MC_SHA256, out);
}

void mc_sha256_hex(const uint8_t sum[MC_SHA256], char out[MC_SHA256_HEX])
{
    for (int i = 0; i < MC_SHA256; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

/* sha256.h - SHA-256 (FIPS 180-4) of a whole message, by nettle. OWNS nothing. THREAD:
 * any. */
#ifndef MC_SERVE_SHA256_H
#define MC_SERVE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { MC_SHA256 = 32, MC_SHA256_HEX = 65 };

void mc_sha256(const void *data, size_t n, uint8_t out[MC_SHA256]);
void mc_sha256_hex(const uint8_t sum[MC_SHA256], char out[MC_SHA256_HEX]);

#endif

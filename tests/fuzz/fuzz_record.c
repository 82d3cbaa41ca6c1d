/* fuzz_record.c - recordings read back: any bytes give a recording or an error.
 *
 * The seeds hold one plain frame; what the mutator changes is packed again, so that it gets
 * past zstd's checks. */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "core/engine/record.h"

int mc_fuzz(const uint8_t *data, size_t n);

int mc_fuzz(const uint8_t *data, size_t n)
{
    size_t cap = ZSTD_compressBound(n), got;
    char *packed = malloc(8 + cap);
    struct mc_recording r;
    struct mc_err err = {0};

    if (!packed)
        return 0;
    memcpy(packed, "MASCREC2", 8);
    got = ZSTD_compress(packed + 8, cap, data, n, 1);
    if (!ZSTD_isError(got) && mc_recording_parse(packed, 8 + got, &r, &err) == 0)
        mc_recording_free(&r);
    if (mc_recording_parse(data, n, &r, &err) == 0)
        mc_recording_free(&r);
    free(packed);
    return 0;
}

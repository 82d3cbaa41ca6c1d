/* fuzz_msgpack.c - any bytes as msgpack: the scan never reads past them, what is read can be
 * written and read again. */
#include <stdint.h>
#include <stdlib.h>

#include "core/serve/wire.h"

int mc_fuzz(const uint8_t *data, size_t n);

int mc_fuzz(const uint8_t *data, size_t n)
{
    json_t *v = NULL, *again = NULL;
    struct mc_err err;
    size_t len = 0, out;
    char *text;
    int rc = mc_wire_scan(data, n, MC_WIRE_MAX, &len, &err);

    if (rc > 0 && len > n)
        abort();
    if (mc_wire_read(data, n, n & 1, &v, &err) < 0)
        return 0;
    text = mc_wire_write(v, &out);
    if (text && mc_wire_read(text, out, true, &again, &err) < 0)
        abort();
    json_decref(v);
    json_decref(again);
    free(text);
    return 0;
}

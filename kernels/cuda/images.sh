#!/bin/sh
# images.sh FATBIN... - the platform of mascon-cuda, as C: the embedded fatbins by the names
# that ld gives them, and libcuda as the driver.
set -eu
echo '#include "kernels/cuda/cuda.h"'
names=
for f in "$@"; do
    s=_binary_$(printf %s "$f" | tr -c 'A-Za-z0-9' _)_start
    echo "extern const unsigned char $s[];"
    names="$names$s, "
done
echo "static const void *const image[] = {$names};"
echo "const struct mc_cu_platform mc_cu_platform = {mc_cu_driver_load, image, $#};"

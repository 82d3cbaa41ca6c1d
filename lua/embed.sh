#!/bin/sh
# embed.sh cdef FILE        C source of a string constant holding FILE (the ffi.cdef)
# embed.sh files FILE...    C source of a table {path, bytes, size} of the Lua files
set -eu
bytes() { od -An -v -tx1 "$1" | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'; }
mode=$1
shift
if [ "$mode" = cdef ]; then
    echo 'static const char mc_cdef_text[] = {'
    bytes "$1"
    echo '0};'
    exit 0
fi
echo '#include "lua/host/embed.h"'
n=0
for f in "$@"; do
    echo "static const char f$n[] = {"
    bytes "$f"
    echo '0};'
    n=$((n + 1))
done
echo 'const struct mc_embed mc_embedded[] = {'
n=0
for f in "$@"; do
    echo "    {\"$f\", f$n, sizeof f$n - 1},"
    n=$((n + 1))
done
echo '    {0, 0, 0},'
echo '};'

#!/bin/sh
# model.sh MODEL - builds the program and holds a small model against the short ones of its
# golden files: residual streams, experts and index sets, drafts; on ref, in f32.
set -eu
make -s build/mascon
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for f in layers.safetensors mtp.safetensors; do
    [ ! -f "tests/models/$1/golden/$f" ] || ln -s "$PWD/tests/models/$1/golden/$f" "$dir/$f"
done
build/mascon eval "tests/models/$1" --golden "$dir" --backend ref

#!/bin/sh
# run.sh test|bench - builds for the card that is here, and runs; "emu" after it: the same
# programs over the emulator. Needs CUDA, a C compiler and libc, nothing else.
set -eu
what=$1 on=${2:-card}
jobs=$(nproc)
case $on in
emu) set -- B=build-bare BARE=1 EMU=1 ;;
card)
    if ! nvidia-smi >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; then
        echo "$what-gpu: no NVIDIA card here (no nvidia-smi, no /dev/nvidia0); make check runs"
        echo "the kernels emulated, make $what-gpu-emu these programs"
        exit 1
    fi
    cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
    case ${cap:-90} in
    8*) arch=80 ;;
    9*) arch=90a ;;
    *) arch=100a ;;
    esac
    set -- B=build-gpu BARE=1 NVARCH=$arch NVPTX=
    LONG=1
    export LONG # all golden models
    ;;
esac
export MC_CUDA_SHARE=1 # ranks may share the card that there is
t0=$(date +%s)
make --no-print-directory -s -j"$jobs" "$@" gpu-"$what"-programs
echo "$what-gpu: built in $(($(date +%s) - t0)) s"
dir=build-gpu
[ "$on" = emu ] && dir=build-bare
bad=0
if [ "$what" = bench ]; then
    "$dir/bench_gpu" --json "$dir/bench.json" || bad=1
    exit $bad
fi
for t in "$dir"/gpu_test_*; do
    case $t in *.*) continue ;; esac
    "$t" || bad=1
done
tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ "$on" = card ] && [ -x "$tool" ]; then
    for t in "$dir"/gpu_test_cuda_mla "$dir"/gpu_test_cuda_moe; do
        echo "compute-sanitizer $t"
        timeout 60 "$tool" --tool memcheck --error-exitcode 1 "$t" >"$dir/sanitizer.log" 2>&1 ||
            { tail -20 "$dir/sanitizer.log"; bad=1; }
    done
fi
[ $bad -eq 0 ] && echo "$what-gpu: all passed in $(($(date +%s) - t0)) s"
exit $bad

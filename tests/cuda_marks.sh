#!/bin/sh
# cuda_marks.sh - the marks that the compiled CUDA kernels must meet, as TAP; only where nvcc is.
exec python3 tests/cuda_report.py --tap --occupancy "${B:-build}/occupancy" \
    "${B:-build}"/kernels/cuda/*.sm_90a.cubin

/* occupancy.c - blocks that an H200's multiprocessor holds, by CUDA's own rules: reads
 * lines of registers, threads and dynamic shared memory, writes a number for each. Owns
 * nothing. */
#include <stdio.h>

#include <cuda_occupancy.h>

int main(void)
{
    const cudaOccDeviceProp dev = {.computeMajor = 9,
                                   .maxThreadsPerBlock = 1024,
                                   .maxThreadsPerMultiprocessor = 2048,
                                   .regsPerBlock = 65536,
                                   .regsPerMultiprocessor = 65536,
                                   .warpSize = 32,
                                   .sharedMemPerBlock = 48 << 10,
                                   .sharedMemPerMultiprocessor = 228 << 10,
                                   .numSms = 132,
                                   .sharedMemPerBlockOptin = 227 << 10,
                                   .reservedSharedMemPerBlock = 1024};
    cudaOccDeviceState state = {.cacheConfig = CACHE_PREFER_SHARED,
                                .carveoutConfig = 100};
    int regs, threads, smem;

    while (scanf("%d %d %d", &regs, &threads, &smem) == 3) {
        cudaOccFuncAttributes f = {.maxThreadsPerBlock = threads,
                                   .numRegs = regs,
                                   .partitionedGCConfig = PARTITIONED_GC_OFF,
                                   .shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
                                   .maxDynamicSharedSizeBytes = 227 << 10};
        cudaOccResult r;

        if (cudaOccMaxActiveBlocksPerMultiprocessor(&r, &dev, &f, &state, threads,
                                                    (size_t)smem) != CUDA_OCC_SUCCESS)
            r.activeBlocksPerMultiprocessor = 0;
        printf("%d\n", r.activeBlocksPerMultiprocessor);
    }
    return 0;
}

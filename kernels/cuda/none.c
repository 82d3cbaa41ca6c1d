/* none.c - the platform of a program that was linked without kernels. Owns nothing. */
#include "kernels/cuda/cuda.h"

static bool load(struct mc_cu_api *api, const char **why)
{
    (void)api;
    *why = "this build has no CUDA kernels (make cuda builds mascon-cuda, with nvcc)";
    return false;
}

const struct mc_cu_platform mc_cu_platform = {load, NULL, 0};

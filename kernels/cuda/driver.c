/* driver.c - libcuda's functions, found at run time: a program with kernels starts on a
 * machine without a driver and says so when asked for them. Owns nothing: the library
 * stays loaded. THREAD: any. */
#include <dlfcn.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

bool mc_cu_driver_load(struct mc_cu_api *api, const char **why)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *f;

    if (!lib) {
        *why = "no NVIDIA driver here (libcuda.so.1)";
        return false;
    }
#define F(name, symbol, args)                                     \
    f = dlsym(lib, #symbol);                                      \
    if (!f) {                                                     \
        *why = "the NVIDIA driver is too old: it lacks " #symbol; \
        return false;                                             \
    }                                                             \
    memcpy(&api->name, &f, sizeof f);
    MC_CU_API(F)
#undef F
    return true;
}

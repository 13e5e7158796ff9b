/* SPDX-License-Identifier: BSD-3-Clause */
#include "nvml_real.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "locate.h"

static nvmlReturn_t no_library(void)
{
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

static nvmlReturn_t no_function(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/*
 * Unlike libcuda, libnvidia-ml is not linked -Bsymbolic: its calls to its own functions would come to this library,
 * which is ahead of it, and what we change would be changed twice. RTLD_DEEPBIND makes it prefer itself. (Sanitizers
 * refuse that flag; their runs use the simulated NVML, which does not need it.)
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL)
#else
#define OPEN_FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND)
#endif

/* Without a lock, as in real.c and for the same reason: whoever comes twice stores the same addresses. */
bool gs_nvml_load(void)
{
    static int state; /* 0: not opened yet, 1: there, -1: there is none */
    int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (known != 0)
        return known > 0;
    char *path = NULL;
    void *handle = gs_locate("GPUSHARE_NVML", "libnvidia-ml.so.1", "gpushare_nvml_shim", OPEN_FLAGS, &path);
    nvmlReturn_t (*lacking)(void) = handle != NULL ? no_function : no_library;
    for (size_t i = 0; i < GS_NVML_COUNT; i++) {
        void *function = handle != NULL ? dlsym(handle, gs_nvml_names[i]) : NULL;
        __atomic_store_n(&gs_nvml_table[i], function != NULL ? function : (void *)lacking, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&state, handle != NULL ? 1 : -1, __ATOMIC_RELEASE);
    free(path);
    return handle != NULL;
}

bool gs_nvml_has(enum gs_nvml_index function)
{
    (void)gs_nvml_load();
    void *entry = __atomic_load_n(&gs_nvml_table[function], __ATOMIC_RELAXED);
    return entry != (void *)no_function && entry != (void *)no_library;
}

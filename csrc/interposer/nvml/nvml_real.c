/* SPDX-License-Identifier: BSD-3-Clause */
#include "nvml/nvml_real.h"

#include <dlfcn.h>
#include <stddef.h>

#include "loader/locate.h"

static nvmlReturn_t no_library(void)
{
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

static nvmlReturn_t no_function(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

/* Takes no lock, for the same reason as real.c: if two threads do this, they store the same addresses. */
bool gs_nvml_load(void)
{
    static int state; /* 0: not opened yet, 1: open, -1: there is none */
    int known = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (known != 0)
        return known > 0;
    void *handle = gs_locate_nvml();
    nvmlReturn_t (*lacking)(void) = handle != NULL ? no_function : no_library;
    for (size_t i = 0; i < GS_NVML_COUNT; i++) {
        void *function = handle != NULL ? dlsym(handle, gs_nvml_names[i]) : NULL;
        __atomic_store_n(&gs_nvml_table[i], function != NULL ? function : (void *)lacking, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&state, handle != NULL ? 1 : -1, __ATOMIC_RELEASE);
    return handle != NULL;
}

bool gs_nvml_has(enum gs_nvml_index function)
{
    (void)gs_nvml_load();
    void *entry = __atomic_load_n(&gs_nvml_table[function], __ATOMIC_RELAXED);
    return entry != (void *)no_function && entry != (void *)no_library;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuGetProcAddress: returns the newest version of a function that is not newer than requested. symbols.def has the CUDA
 * version in which each exported symbol was introduced.
 */
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

struct symbol {
    const char *base;
    int since;
    bool per_thread;
    const char *name;
};

static const struct symbol symbols[] = {
#define SYMBOL(base, since, per_thread, name) {#base, since, per_thread, #name},
#include "symbols.def"
#undef SYMBOL
};

/* Whether the function has a variant for per-thread default streams. */
static bool has_variants(const char *base)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        if (symbols[i].per_thread && strcmp(symbols[i].base, base) == 0)
            return true;
    return false;
}

/* Functions that an old driver does not have; the library cannot hide them from dlsym. */
static bool is_unknown(const char *name)
{
    struct sim_driver driver;
    sim_config_driver(&driver);
    return driver.major < SIM_DRIVER_CHECKPOINTS && strncmp(name, "cuCheckpoint", strlen("cuCheckpoint")) == 0;
}

static void *own(const char *name)
{
    static void *handle;
    if (handle == NULL) {
        Dl_info info;
        if (dladdr((void *)(uintptr_t)own, &info) == 0)
            return NULL;
        /* By the file's name, because another library may be loaded with this SONAME. */
        handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        if (handle == NULL)
            return NULL;
    }
    return dlsym(handle, name);
}

CUresult cuGetProcAddress_v2(const char *name, void **address, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)
{
    SIM_REQUIRE(name != NULL && address != NULL);
    SIM_REQUIRE((flags & ~(cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                                       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) == 0);
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 && has_variants(name);
    const struct symbol *best = NULL;
    bool known = false;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        const struct symbol *symbol = &symbols[i];
        if (symbol->per_thread != per_thread || strcmp(symbol->base, name) != 0 || is_unknown(name))
            continue;
        known = true;
        if (symbol->since <= version && (best == NULL || symbol->since > best->since))
            best = symbol;
    }
    *address = best == NULL ? NULL : own(best->name);
    if (status != NULL)
        *status = *address != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known          ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **address, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, address, version, flags, NULL);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A libcuda.so.1 with a few functions, some of which report the arguments that reached them. It lacks most of the
 * driver, as an old one does, and has one function that no header knows, as a new one does.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, SYMBOL_NOT_FOUND = 1, WRONG_ARGUMENTS = 999 };

EXPORT int cuInit(unsigned int flags)
{
    return flags == 0 ? SUCCESS : WRONG_ARGUMENTS;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = 13050;
    return SUCCESS;
}

EXPORT int cuParamSetf(void *function, int offset, float value)
{
    return function == (void *)0x11 && offset == 22 && value == 3.5f ? SUCCESS : WRONG_ARGUMENTS;
}

EXPORT int cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *function, void *sizes, size_t dynamic,
                                                     int limit, unsigned int flags)
{
    *grid = 1;
    *block = 2;
    return function == (void *)3 && sizes == (void *)4 && dynamic == 5 && limit == 6 && flags == 7 ? SUCCESS
                                                                                                   : WRONG_ARGUMENTS;
}

EXPORT int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                          unsigned int by, unsigned int bz, unsigned int shared, void *stream, void **parameters,
                          void **extra)
{
    int right = function == (void *)1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 &&
                shared == 8 && stream == (void *)9 && parameters == (void *)10 && extra == (void *)11;
    return right ? SUCCESS : WRONG_ARGUMENTS;
}

EXPORT int cuMulticastCreate(void *handle, const void *properties)
{
    return handle == (void *)1 && properties == (void *)2 ? SUCCESS : WRONG_ARGUMENTS;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = 1000 * device + attribute;
    return SUCCESS;
}

/* One address for two symbols. */
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream)
{
    return to == 1 && from == 2 && size == 3 && stream == (void *)4 ? SUCCESS : WRONG_ARGUMENTS;
}
EXPORT int cuMemcpyAsync_ptsz(uint64_t to, uint64_t from, size_t size, void *stream)
    __attribute__((alias("cuMemcpyAsync")));

EXPORT int cuBrandNew(void)
{
    return SUCCESS;
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **pointer, int version, uint64_t flags, int *status)
{
    (void)version;
    static const struct {
        const char *symbol;
        void *function;
    } known[] = {
        {"cuInit", cuInit},
        {"cuParamSetf", cuParamSetf},
        {"cuLaunchKernel", cuLaunchKernel},
        {"cuMemcpyAsync", cuMemcpyAsync},
        {"cuBrandNew", cuBrandNew},
        {"cuGetProcAddress", cuGetProcAddress_v2},
    };
    (void)flags;
    *pointer = NULL;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(symbol, known[i].symbol) == 0)
            *pointer = known[i].function;
    if (status != NULL)
        *status = *pointer != NULL ? SUCCESS : SYMBOL_NOT_FOUND;
    return SUCCESS;
}

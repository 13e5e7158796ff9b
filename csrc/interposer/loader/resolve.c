/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuGetProcAddress. The real function knows which version of a function a caller of some CUDA version needs. The
 * interposer calls it, and returns its own function in place of the driver's. An address that is not in the table
 * belongs to a function that is newer than the headers of this build. It is not returned, so that no unclassified
 * function bypasses the gate. Callers have to handle drivers without it anyway.
 */
#include "base/print.h"
#include "loader/real.h"

static bool translate(const char *symbol, void **pointer, cuuint64_t flags)
{
    if (pointer == NULL || *pointer == NULL || symbol == NULL)
        return true;
    void *own = gs_real_translate(*pointer, symbol, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    *pointer = own;
    if (own != NULL)
        return true;
    static int printed;
    if (__atomic_exchange_n(&printed, 1, __ATOMIC_RELAXED) == 0)
        gs_print("this driver's %s is newer than this version of gpushare, so programs cannot use it (reported once)",
                 symbol);
    return false;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    CUresult result = GS_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && !translate(symbol, pfn, flags))
        return CUDA_ERROR_NOT_FOUND;
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    CUresult result = GS_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus);
    /* The driver's answer for an unknown name: success, NULL and the status. */
    if (result == CUDA_SUCCESS && !translate(symbol, pfn, flags) && symbolStatus != NULL)
        *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}

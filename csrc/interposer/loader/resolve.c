/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cuGetProcAddress: the real one knows which version of a function a caller of some CUDA version gets; we ask it and
 * hand out our function in place of the one at the address that it returns. An address that is none of the table's
 * belongs to a function newer than our headers. It is not handed out: nothing that nobody classified gets past the
 * gate, and callers have to cope with drivers that lack it anyway.
 */
#include "base/say.h"
#include "loader/real.h"

static bool translate(const char *symbol, void **pointer, cuuint64_t flags)
{
    if (pointer == NULL || *pointer == NULL || symbol == NULL)
        return true;
    void *ours = gs_real_translate(*pointer, symbol, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    *pointer = ours;
    if (ours != NULL)
        return true;
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) == 0)
        gs_say("this driver's %s is newer than this version of gpushare and is kept from programs (said once)", symbol);
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
    /* As the driver does it for a name that it does not know: success, NULL and the status. */
    if (result == CUDA_SUCCESS && !translate(symbol, pfn, flags) && symbolStatus != NULL)
        *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "backends/choose.h"

#include "backends/managed.h"
#include "backends/swap.h"
#include "backends/vmm.h"
#include "base/print.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/vmm.h"
#include "protocol.h"

#include <stdlib.h>
#include <string.h>

static int attribute(CUdevice_attribute which, CUdevice ordinal)
{
    int value = 0;
    return GS_REAL(cuDeviceGetAttribute)(&value, which, ordinal) == CUDA_SUCCESS ? value : 0;
}

bool gs_backend_choose(uint32_t *backend, const char **why)
{
    const char *wanted = getenv("GPUSHARE_BACKEND");
    bool may_manage = !gs_backing_managed_forbidden();
    bool can_swap = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
    bool can_manage = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    *backend = GPUSHARE_BACKEND_PLAIN;
    if (wanted == NULL || *wanted == '\0' || strcmp(wanted, "auto") == 0) {
        if (can_swap)
            *backend = GPUSHARE_BACKEND_SWAP;
        else if (can_manage && may_manage)
            *backend = GPUSHARE_BACKEND_MANAGED;
    } else if (strcmp(wanted, "swap") == 0) {
        *backend = GPUSHARE_BACKEND_SWAP;
        if (!can_swap)
            *why = "the driver has no virtual memory management, which the backend swap needs";
    } else if (strcmp(wanted, "managed") == 0) {
        *backend = GPUSHARE_BACKEND_MANAGED;
        if (!may_manage)
            *why = "the backend managed is disabled by GPUSHARE_FORBID_MANAGED=1";
        else if (!can_manage)
            *why = "the device cannot migrate managed memory on demand, which the backend managed needs";
    } else if (strcmp(wanted, "plain") != 0) {
        gs_print("GPUSHARE_BACKEND=%s is not a backend; running without sharing. Use auto, swap, managed or plain",
                 wanted);
        *why = "GPUSHARE_BACKEND does not name a backend";
        return false;
    }
    if (*why != NULL) {
        gs_print("%s; running without sharing", *why);
        return false;
    }
    const struct gs_backing backing = {.usual = *backend == GPUSHARE_BACKEND_SWAP      ? gs_backend_swap
                                                : *backend == GPUSHARE_BACKEND_MANAGED ? gs_backend_managed
                                                                                       : NULL,
                                       .swap = gs_backend_swap,
                                       .managed = gs_backend_managed};
    gs_backing_set(&backing);
    gs_vmm_set_backend(&gs_backend_vmm);
    return true;
}

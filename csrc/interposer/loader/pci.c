/* SPDX-License-Identifier: BSD-3-Clause */
#include "loader/pci.h"

#include "base/lock.h"
#include "loader/machine.h"
#include "loader/real.h"

#include <stdio.h>
#include <string.h>

struct place {
    uint8_t uuid[16];
    struct gs_pci_address address;
};

static struct {
    bool moved;
    struct gs_mutex lock;
    struct place places[GPUSHARE_MAX_GPUS];
    unsigned count;
} pci = {.lock = GS_MUTEX(GS_RANK_PCI)};

void gs_pci_moved(void)
{
    __atomic_store_n(&pci.moved, true, __ATOMIC_RELAXED);
}

void gs_pci_after_fork(void)
{
    gs_mutex_after_fork(&pci.lock);
}

static bool has_moved(void)
{
    return __atomic_load_n(&pci.moved, __ATOMIC_RELAXED);
}

/* Called with the lock held. The address of a device does not change, so each is queried once. */
static const struct gs_pci_address *look_up(const uint8_t uuid[16])
{
    for (unsigned i = 0; i < pci.count; i++)
        if (memcmp(pci.places[i].uuid, uuid, 16) == 0)
            return &pci.places[i].address;
    struct place *place = &pci.places[pci.count];
    if (pci.count == GPUSHARE_MAX_GPUS || !gs_machine_address(uuid, &place->address))
        return NULL;
    memcpy(place->uuid, uuid, 16);
    pci.count++;
    return &place->address;
}

static bool find(CUdevice device, struct gs_pci_address *address)
{
    CUuuid uuid;
    if (GS_REAL(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS)
        return false;
    gs_mutex_lock(&pci.lock);
    const struct gs_pci_address *found = look_up((const uint8_t *)uuid.bytes);
    if (found != NULL)
        *address = *found;
    gs_mutex_unlock(&pci.lock);
    return found != NULL;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    struct gs_pci_address at;
    CUresult result = GS_REAL(cuDeviceGetPCIBusId)(pciBusId, len, dev);
    if (result == CUDA_SUCCESS && has_moved() && find(dev, &at))
        snprintf(pciBusId, (size_t)len, "%04X:%02X:%02X.%X", at.domain, at.bus, at.device, at.function);
    return result;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    struct gs_pci_address wanted, at;
    int count = 0;
    CUresult result = GS_REAL(cuDeviceGetByPCIBusId)(dev, pciBusId);
    if (dev == NULL || pciBusId == NULL || !has_moved() || !gs_pci_address_read(pciBusId, &wanted) ||
        GS_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return result;
    for (CUdevice device = 0; device < count; device++) {
        if (!find(device, &at))
            return result;
        if (at.domain == wanted.domain && at.bus == wanted.bus && at.device == wanted.device) {
            *dev = device;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

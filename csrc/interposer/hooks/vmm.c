/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on the application's own virtual memory management. They call the driver if this process is not attached, or if
 * the interposer does not manage the handle or address.
 */
#include "memory/vmm.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/enter.h"
#include "gate/work.h"
#include "hooks/ipc.h"
#include "loader/real.h"
#include "memory/memory.h"
#include "memory/reservations.h"
#include "memory/view.h"

#include <stdlib.h>

/*
 * Addresses outside the application's own mappings are passed to the driver, except those of the interposer's
 * allocations. There the driver would let the application take the allocation apart, while without the interposer it
 * would refuse.
 */
static bool is_allocation(CUdeviceptr address, size_t size)
{
    struct gs_memory_view ignored;
    return gs_session_attached() && (gs_memory_any(address, size) || gs_ipc_find(address, &ignored));
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                             unsigned long long flags)
{
    CUresult result = gs_session_attached() ? gs_vmm_create(handle, size, properties, flags) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemCreate)(handle, size, properties, flags);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = gs_session_attached() ? gs_vmm_release(handle) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemRelease)(handle);
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result =
        gs_session_attached() && handle != NULL ? gs_vmm_retain(handle, (CUdeviceptr)address) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_NOT_FOUND && is_allocation((CUdeviceptr)address, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemRetainAllocationHandle)(handle, address);
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                        CUmemGenericAllocationHandle handle)
{
    CUresult result =
        gs_session_attached() && properties != NULL ? gs_vmm_properties(properties, handle) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result
                                          : GS_REAL(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
                                     unsigned long long flags)
{
    CUresult result = GS_REAL(cuMemAddressReserve)(address, size, alignment, wish, flags);
    if (result == CUDA_SUCCESS && gs_session_attached())
        gs_reservation_add(*address, size);
    return result;
}

/* While the memory is evicted, the driver would free addresses that are needed for the restore. */
CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size)
{
    if (!gs_session_attached())
        return GS_REAL(cuMemAddressFree)(address, size);
    if (gs_vmm_any(address, size) || is_allocation(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    bool lost;
    struct gs_reservation *reservation = gs_reservation_take(address, &lost);
    CUresult result = lost ? CUDA_SUCCESS : GS_REAL(cuMemAddressFree)(address, size);
    gs_reservation_taken(reservation, result == CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
    if (is_allocation(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_session_attached() ? gs_vmm_map(address, size, offset, handle, flags)
                                 : GS_REAL(cuMemMap)(address, size, offset, handle, flags);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size)
{
    CUresult result = gs_session_attached() && size != 0 ? gs_vmm_unmap(address, size) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_NOT_FOUND && is_allocation(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemUnmap)(address, size);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = gs_session_attached() ? gs_vmm_set_access(address, size, access, count) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_NOT_FOUND && is_allocation(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemSetAccess)(address, size, access, count);
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    CUresult result = gs_session_attached() && flags != NULL && location != NULL
                          ? gs_vmm_get_access(flags, location, address)
                          : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_NOT_FOUND && is_allocation(address, 1))
        return CUDA_ERROR_INVALID_VALUE;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemGetAccess)(flags, location, address);
}

/* --- Memory that others hold, and that must not move any more --- */

CUresult CUDAAPI cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags)
{
    CUmemGenericAllocationHandle real = handle;
    CUresult result = gs_session_attached() ? gs_vmm_make_unevictable(handle, &real) : CUDA_ERROR_NOT_FOUND;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
        return result;
    return GS_REAL(cuMemExportToShareableHandle)(shareable, real, type, flags);
}

/* Makes unevictable what is mapped into arrays, and replaces the handles by the driver's. */
static CUresult translate(CUarrayMapInfo *infos, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        if (infos[i].memHandleType != CU_MEM_HANDLE_TYPE_GENERIC)
            continue;
        CUmemGenericAllocationHandle *handle = &infos[i].memHandle.memHandle;
        CUresult result = gs_vmm_make_unevictable(*handle, handle);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_FOUND)
            return result;
    }
    return CUDA_SUCCESS;
}

static CUresult map_array(CUarrayMapInfo *infos, unsigned int count, CUstream stream, enum gs_stream_kind kind,
                          CUresult (*real)(CUarrayMapInfo *, unsigned int, CUstream))
{
    CUarrayMapInfo *copy = NULL;
    if (gs_session_attached() && infos != NULL && count != 0) {
        copy = malloc(count * sizeof(*copy));
        if (copy == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        for (unsigned int i = 0; i < count; i++)
            copy[i] = infos[i];
    }
    struct gs_slot *entered;
    CUresult result = gs_gate_enter(&entered, stream, kind, GS_WORK_ORDER);
    if (result == CUDA_SUCCESS) {
        if (copy != NULL)
            result = translate(copy, count);
        if (result == CUDA_SUCCESS)
            result = real(copy != NULL ? copy : infos, count, stream);
        gs_gate_leave(entered);
    }
    free(copy);
    return result;
}

CUresult CUDAAPI cuMemMapArrayAsync(CUarrayMapInfo *infos, unsigned int count, CUstream stream)
{
    return map_array(infos, count, stream, GS_STREAM_LEGACY, GS_REAL(cuMemMapArrayAsync));
}

CUresult CUDAAPI cuMemMapArrayAsync_ptsz(CUarrayMapInfo *infos, unsigned int count, CUstream stream)
{
    return map_array(infos, count, stream, GS_STREAM_PTSZ, GS_REAL(cuMemMapArrayAsync_ptsz));
}

/*
 * --- Multicast: the switch would write to evicted memory. cuDeviceGetAttribute reports that it is not supported. ---
 */

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    if (!gs_session_attached())
        return GS_REAL(cuMulticastCreate)(handle, properties);
    gs_print(
        "multicast objects are not supported while the GPU is shared. NCCL falls back by itself; if it does not, set "
        "NCCL_NVLS_ENABLE=0");
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Memory can be bound to an object that another process has created and exported. Bound memory becomes unevictable. */
static CUresult bound(CUmemGenericAllocationHandle *memory)
{
    CUresult result = gs_session_attached() ? gs_vmm_make_unevictable(*memory, memory) : CUDA_SUCCESS;
    return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                    unsigned long long flags)
{
    CUresult result = bound(&memory);
    return result != CUDA_SUCCESS ? result
                                  : GS_REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, size, flags);
}

CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                       CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
                                       unsigned long long flags)
{
    CUresult result = bound(&memory);
    if (result != CUDA_SUCCESS)
        return result;
    return GS_REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, size, flags);
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address,
                                     size_t size, unsigned long long flags)
{
    CUresult result = gs_session_attached() ? gs_memory_make_unevictable(address, size) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result : GS_REAL(cuMulticastBindAddr)(object, offset, address, size, flags);
}

CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                        CUdeviceptr address, size_t size, unsigned long long flags)
{
    CUresult result = gs_session_attached() ? gs_memory_make_unevictable(address, size) : CUDA_SUCCESS;
    return result != CUDA_SUCCESS ? result
                                  : GS_REAL(cuMulticastBindAddr_v2)(object, device, offset, address, size, flags);
}

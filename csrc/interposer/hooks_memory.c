/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on device memory that we manage: allocation, free, and what the application may ask about an address.
 * They forward where this process is not attached, and where the memory is not ours.
 */
#include "capture.h"
#include "client.h"
#include "memory.h"
#include "real.h"
#include "say.h"
#include "unevictable.h"

#include <stdlib.h>
#include <string.h>

/* The alignment of a row that the driver documents as enough for every texture and 2D copy. */
enum { PITCH_ALIGNMENT = 512 };

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    if (!gs_client_attached())
        return GS_REAL(cuMemAlloc_v2)(pointer, size);
    return gs_memory_alloc(pointer, size);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                    unsigned int element)
{
    if (!gs_client_attached())
        return GS_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT, size;
    if (row < width || __builtin_mul_overflow(row, height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gs_memory_alloc(pointer, size);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult result = gs_client_attached() && pointer != 0 ? gs_memory_free(pointer) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemFree_v2)(pointer);
}

/* The application's own managed memory migrates by itself; it shows as foreign use. */
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    const char *forbid = getenv("GPUSHARE_FORBID_MANAGED");
    if (forbid != NULL && strcmp(forbid, "1") == 0) {
        gs_say("managed memory was asked for, but GPUSHARE_FORBID_MANAGED=1 rules it out");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return GS_REAL(cuMemAllocManaged)(pointer, size, flags);
}

/* --- Stream-ordered allocation: our allocations are usable at once, which is stricter than what is asked for. --- */

/* In a capture it becomes a node of the graph, whose memory the driver owns. */
static bool ours(CUstream stream, enum gs_stream_kind kind)
{
    return gs_client_attached() && !gs_capture_includes(stream, kind);
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return ours(stream, GS_STREAM_LEGACY) ? gs_memory_alloc(pointer, size)
                                          : GS_REAL(cuMemAllocAsync)(pointer, size, stream);
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return ours(stream, GS_STREAM_PTSZ) ? gs_memory_alloc(pointer, size)
                                        : GS_REAL(cuMemAllocAsync_ptsz)(pointer, size, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return ours(stream, GS_STREAM_LEGACY) && !gs_pool_is_forwarded(pool)
               ? gs_memory_alloc(pointer, size)
               : GS_REAL(cuMemAllocFromPoolAsync)(pointer, size, pool, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return ours(stream, GS_STREAM_PTSZ) && !gs_pool_is_forwarded(pool)
               ? gs_memory_alloc(pointer, size)
               : GS_REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, size, pool, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CUresult result =
        ours(stream, GS_STREAM_LEGACY) ? gs_memory_free_async(pointer, stream, false) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemFreeAsync)(pointer, stream);
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    CUresult result = ours(stream, GS_STREAM_PTSZ) ? gs_memory_free_async(pointer, stream, true) : CUDA_ERROR_NOT_FOUND;
    return result != CUDA_ERROR_NOT_FOUND ? result : GS_REAL(cuMemFreeAsync_ptsz)(pointer, stream);
}

/* --- What the application may ask --- */

CUresult CUDAAPI cuMemGetInfo_v2(size_t *available, size_t *total)
{
    if (!gs_client_attached() || available == NULL || total == NULL)
        return GS_REAL(cuMemGetInfo_v2)(available, total);
    return gs_memory_info(available, total);
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct gs_memory_view view;
    if (!gs_client_attached() || !gs_memory_find(address, &view))
        return GS_REAL(cuMemGetAddressRange_v2)(base, size, address);
    if (base != NULL)
        *base = view.base;
    if (size != NULL)
        *size = view.size;
    return CUDA_SUCCESS;
}

/*
 * An attribute of memory of ours, as cuMemAlloc's would have it, wherever the bytes are now. The driver would answer
 * for the reservation, or not at all while the memory is evicted. Returns false for what only the driver can answer.
 */
static bool answer(const struct gs_memory_view *view, CUpointer_attribute attribute, CUdeviceptr address, void *value,
                   CUresult *result)
{
    *result = CUDA_SUCCESS;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = view->context;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)value = CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)value = address;
        return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *result = CUDA_ERROR_INVALID_VALUE;
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)value = view->id;
        return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned int *)value = 0;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = view->device;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)value = view->base;
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)value = view->size;
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned int *)value = 1;
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)value = 0;
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *)value = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = NULL;
        return true;
    default:
        return false;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct gs_memory_view view;
    CUresult result;
    if (gs_client_attached() && value != NULL && gs_memory_find(address, &view) &&
        answer(&view, attribute, address, value, &result))
        return result;
    return GS_REAL(cuPointerGetAttribute)(value, attribute, address);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                        CUdeviceptr address)
{
    struct gs_memory_view view;
    if (!gs_client_attached() || attributes == NULL || values == NULL || !gs_memory_find(address, &view))
        return GS_REAL(cuPointerGetAttributes)(count, attributes, values, address);
    for (unsigned int i = 0; i < count; i++) {
        CUresult result;
        /* As documented, what does not apply to the pointer is left NULL here, not an error. */
        if (!answer(&view, attributes[i], address, values[i], &result))
            GS_REAL(cuPointerGetAttributes)(1, &attributes[i], &values[i], address);
        else if (result != CUDA_SUCCESS)
            *(void **)values[i] = NULL;
    }
    return CUDA_SUCCESS;
}

/* SYNC_MEMOPS is for peers that write behind the driver's back; memory that moves cannot have such. */
CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct gs_memory_view view;
    if (gs_client_attached() && gs_memory_find(address, &view))
        return attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return GS_REAL(cuPointerSetAttribute)(value, attribute, address);
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct gs_memory_view view;
    if (!gs_client_attached() || !gs_memory_find(address, &view))
        return GS_REAL(cuIpcGetMemHandle)(handle, address);
    gs_say("CUDA IPC needs memory that cannot move; start the program with GPUSHARE_BACKEND=plain to use it");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size,
                                               CUmemRangeHandleType type, unsigned long long flags)
{
    struct gs_memory_view view;
    if (!gs_client_attached() || !gs_memory_find(address, &view))
        return GS_REAL(cuMemGetHandleForAddressRange)(handle, address, size, type, flags);
    gs_say("exporting device memory needs memory that cannot move; start the program with GPUSHARE_BACKEND=plain");
    return CUDA_ERROR_NOT_SUPPORTED;
}

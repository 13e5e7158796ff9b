/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on device memory that the interposer manages: allocation, free, and queries about addresses. They call the
 * driver if this process is not attached, or if the interposer does not manage the memory.
 */
#include "memory/memory.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/failures.h"
#include "gate/work.h"
#include "hibernate/hibernate.h"
#include "hooks/graph_memory.h"
#include "hooks/ipc.h"
#include "hooks/pool.h"
#include "loader/real.h"
#include "memory/devices.h"
#include "memory/view.h"
#include "memory/vmm.h"

#include <stdlib.h>
#include <string.h>

/* The row alignment that the driver documents as enough for every texture and 2D copy. */
enum { PITCH_ALIGNMENT = 512 };

static bool is_attached(void)
{
    bool attached = gs_session_attached();
    if (!attached)
        gs_session_report_fork();
    return attached;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    if (!is_attached())
        return GS_REAL(cuMemAlloc_v2)(pointer, size);
    if (pointer == NULL || size == 0)
        return GS_REAL(cuMemAlloc_v2)(pointer, size);
    *pointer = 0; /* the driver also does this before any check */
    CUresult forbidden = gs_context_ask_captures();
    return forbidden != CUDA_SUCCESS ? forbidden : gs_memory_alloc(pointer, size);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                    unsigned int element)
{
    if (!is_attached())
        return GS_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (pitch == NULL || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT, size;
    if (row < width || __builtin_mul_overflow(row, height, &size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pointer != NULL ? gs_context_ask_captures() : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = gs_memory_alloc(pointer, size);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

/* The driver's call may have changed how much its pools hold. */
static CUresult allocated(CUresult result, bool settle)
{
    if (settle)
        gs_pool_settle();
    return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer)
{
    if (!gs_session_attached() || pointer == 0)
        return GS_REAL(cuMemFree_v2)(pointer);
    CUcontext current = NULL;
    /* For example, a host function of a stream has no context. It must not wait for the stream. */
    if (GS_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == NULL)
        return GS_REAL(cuMemFree_v2)(pointer);
    CUresult forbidden = gs_context_ask_captures();
    if (forbidden != CUDA_SUCCESS)
        return forbidden;
    struct gs_pooled *pooled = gs_pool_take(pointer);
    CUresult result = gs_memory_free(pointer);
    gs_pool_taken(pooled, result == CUDA_SUCCESS);
    return result != CUDA_ERROR_NOT_FOUND ? result : allocated(GS_REAL(cuMemFree_v2)(pointer), true);
}

/* Managed memory of the application migrates by itself, and counts as foreign use. */
CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    const char *forbid = getenv("GPUSHARE_FORBID_MANAGED");
    if (forbid != NULL && strcmp(forbid, "1") == 0) {
        gs_print("managed memory is disabled by GPUSHARE_FORBID_MANAGED=1. Unset the variable to use managed memory");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult result = GS_REAL(cuMemAllocManaged)(pointer, size, flags);
    if (result == CUDA_SUCCESS)
        gs_hibernate_note_managed();
    return result;
}

/* --- Stream-ordered allocation. The interposer's allocations can be used at once, which is more than required. --- */

/* False in a capture, where an allocation becomes a node of the graph, whose memory the driver owns. */
static bool is_intercepted(CUstream stream, enum gs_stream_kind kind)
{
    return is_attached() && !gs_capture_holds(stream, kind);
}

/*
 * An allocation or free in a stream that the program created belongs to the stream's context. The driver accepts this
 * even if another context is current, or none, or a destroyed one. Returns the failure of the stream's context, if any.
 * leave_context() must follow in any case.
 */
static CUresult enter_context_of(CUstream stream, bool *entered)
{
    CUcontext current = NULL, context = NULL;
    *entered = false;
    if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
        GS_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS) {
        CUresult result = GS_REAL(cuStreamGetCtx)(stream, &context);
        if (gs_context_is_lost(result))
            return result;
        if (result == CUDA_SUCCESS && context != current)
            *entered = GS_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    }
    return gs_context_ask_failure();
}

static void leave_context(bool entered)
{
    CUcontext ignored;
    if (entered)
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
}

/* Allocates with the driver; *settle: count the memory afterwards. */
static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream,
                         enum gs_stream_kind kind, bool *settle)
{
    *settle = false;
    if (!is_intercepted(stream, kind)) {
        gs_graph_memory_used();
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_NOT_FOUND; /* the interposer has nothing to manage, and the driver gives the answer */
    *pointer = 0;
    bool entered;
    CUresult result = enter_context_of(stream, &entered);
    if (result == CUDA_SUCCESS)
        result = gs_pool_allocate(pointer, size, pool);
    leave_context(entered);
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    *settle = true;
    result = gs_pool_admit(pool, size);
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    bool settle;
    CUresult result = allocate(pointer, size, NULL, stream, GS_STREAM_LEGACY, &settle);
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    return allocated(GS_REAL(cuMemAllocAsync)(pointer, size, stream), settle);
}

CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    bool settle;
    CUresult result = allocate(pointer, size, NULL, stream, GS_STREAM_PTSZ, &settle);
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    return allocated(GS_REAL(cuMemAllocAsync_ptsz)(pointer, size, stream), settle);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    bool settle;
    CUresult result =
        pool != NULL ? allocate(pointer, size, pool, stream, GS_STREAM_LEGACY, &settle) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    return allocated(GS_REAL(cuMemAllocFromPoolAsync)(pointer, size, pool, stream), settle);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    bool settle;
    CUresult result =
        pool != NULL ? allocate(pointer, size, pool, stream, GS_STREAM_PTSZ, &settle) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_ERROR_NOT_FOUND)
        return result;
    return allocated(GS_REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, size, pool, stream), settle);
}

/* CUDA_ERROR_NOT_FOUND: the driver must free it. */
static CUresult free_ordered(CUdeviceptr pointer, CUstream stream, enum gs_stream_kind kind)
{
    if (!is_intercepted(stream, kind))
        return CUDA_ERROR_NOT_FOUND;
    bool entered;
    CUresult result = enter_context_of(stream, &entered);
    if (result == CUDA_SUCCESS) {
        struct gs_pooled *pooled = gs_pool_take(pointer);
        result = gs_memory_free_async(pointer, stream, kind == GS_STREAM_PTSZ);
        gs_pool_taken(pooled, result == CUDA_SUCCESS);
    }
    leave_context(entered);
    return result;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CUresult result = free_ordered(pointer, stream, GS_STREAM_LEGACY);
    return result != CUDA_ERROR_NOT_FOUND ? result : allocated(GS_REAL(cuMemFreeAsync)(pointer, stream), true);
}

CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    CUresult result = free_ordered(pointer, stream, GS_STREAM_PTSZ);
    return result != CUDA_ERROR_NOT_FOUND ? result : allocated(GS_REAL(cuMemFreeAsync_ptsz)(pointer, stream), true);
}

/* --- Queries of the application --- */

CUresult CUDAAPI cuMemGetInfo_v2(size_t *available, size_t *total)
{
    if (!gs_session_attached() || available == NULL || total == NULL)
        return GS_REAL(cuMemGetInfo_v2)(available, total);
    return gs_memory_info(available, total);
}

/* Looks up allocations, the application's own mappings, and memory of other processes. */
static bool look_up(CUdeviceptr address, struct gs_memory_view *view, unsigned long long *handle_types)
{
    *handle_types = 0;
    return gs_session_attached() &&
           (gs_memory_find(address, view) || gs_vmm_find(address, view, handle_types) || gs_ipc_find(address, view));
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    struct gs_memory_view view;
    unsigned long long ignored;
    CUcontext current = NULL;
    /* The driver requires a current context, but any will do. */
    if (GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL || !look_up(address, &view, &ignored))
        return GS_REAL(cuMemGetAddressRange_v2)(base, size, address);
    if (view.freed || view.hidden)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = view.base;
    if (size != NULL)
        *size = view.size;
    return CUDA_SUCCESS;
}

/*
 * Answers a query about memory that the interposer manages, as for cuMemAlloc, wherever the bytes are now. The driver
 * would answer for the reservation, or not at all while the memory is evicted. Returns false if only the driver can
 * answer.
 */
static bool answer(const struct gs_memory_view *view, unsigned long long handle_types, CUpointer_attribute attribute,
                   CUdeviceptr address, void *value, CUresult *result)
{
    *result = CUDA_SUCCESS;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)value = gs_pool_of(view->base) == NULL ? view->context : NULL;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)value = CU_MEMORYTYPE_DEVICE;
        return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        /* The driver requires a living current context. While the memory is evicted, it knows nothing else about it. */
        *result = GS_REAL(cuPointerGetAttribute)(value, attribute, address);
        if (*result != CUDA_ERROR_INVALID_CONTEXT)
            *result = view->hidden ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        if (*result == CUDA_SUCCESS)
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
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned int *)value = 0;
        return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        /* A mapping has no context. */
        *(unsigned int *)value = view->context != NULL && !view->managed && gs_pool_of(view->base) == NULL &&
                                 gs_device_handle_type(view->device) != CU_MEM_HANDLE_TYPE_NONE;
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
        *(unsigned long long *)value = handle_types;
        return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *)value = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)value = gs_pool_of(view->base);
        return true;
    default:
        return false;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct gs_memory_view view;
    unsigned long long types;
    CUresult result;
    bool known = value != NULL && look_up(address, &view, &types);
    if (known && view.freed)
        return CUDA_ERROR_INVALID_VALUE;
    if (known && answer(&view, types, attribute, address, value, &result))
        return result;
    return GS_REAL(cuPointerGetAttribute)(value, attribute, address);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **values,
                                        CUdeviceptr address)
{
    struct gs_memory_view view;
    unsigned long long types;
    if (attributes == NULL || values == NULL || !look_up(address, &view, &types))
        return GS_REAL(cuPointerGetAttributes)(count, attributes, values, address);
    if (view.freed) /* the driver still has memory there, but none at address 0 */
        return GS_REAL(cuPointerGetAttributes)(count, attributes, values, 0);
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUresult inapplicable;
        /* As documented, an attribute that does not apply to the pointer is set to NULL here, and is not an error. */
        if (!answer(&view, types, attributes[i], address, values[i], &inapplicable))
            result = GS_REAL(cuPointerGetAttributes)(1, &attributes[i], &values[i], address);
        else if (inapplicable != CUDA_SUCCESS)
            *(void **)values[i] = NULL;
    }
    return result;
}

/* SYNC_MEMOPS is used by peers that write without the driver. The memory stays where they find it. */
CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct gs_memory_view view;
    unsigned long long ignored;
    if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value != NULL && look_up(address, &view, &ignored)) {
        if (view.freed)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult result = gs_memory_make_unevictable(address, 1);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return GS_REAL(cuPointerSetAttribute)(value, attribute, address);
}

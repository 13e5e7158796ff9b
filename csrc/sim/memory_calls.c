/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls for device memory and host memory, and queries about pointers. */
#include "capture.h"
#include "context.h"
#include "contexts.h"
#include "graph_memory.h"
#include "inject.h"
#include "memory.h"
#include "peer.h"
#include "pool.h"
#include "ranges.h"
#include "segment/memory.h"
#include "vmm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static CUresult allocate(CUdeviceptr *out, size_t size)
{
    if (out != NULL)
        *out = 0;
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && size > 0);
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_DEVICE, size, &base));
    *out = base;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    SIM_INJECT(cuMemAlloc_v2);
    return allocate(pointer, size);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    SIM_INJECT(cuMemAllocPitch_v2);
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(pointer != NULL && pitch != NULL && width > 0 && height > 0);
    SIM_REQUIRE(element == 4 || element == 8 || element == 16);
    uint64_t row = sim_round_up(width, 512);
    if (row < width || height > UINT64_MAX / row)
        return CUDA_ERROR_OUT_OF_MEMORY;
    SIM_TRY(allocate(pointer, row * height));
    *pitch = row;
    return CUDA_SUCCESS;
}

static bool is_freeable(const struct sim_range *range)
{
    return range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_MANAGED || range->kind == SIM_RANGE_GRAPH ||
           range->pool != NULL;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    SIM_INJECT(cuMemFree_v2);
    SIM_ENTER();
    if (pointer == 0 && sim_context_current == NULL)
        return CUDA_SUCCESS;
    SIM_ENTER_CONTEXT(context);
    if (pointer == 0)
        return CUDA_SUCCESS;
    (void)context;
    SIM_TRY(sim_capture_check_unsafe());
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool valid = range != NULL && range->base == pointer && is_freeable(range) && !range->leaving;
    struct sim_context *owner = valid ? range->context : NULL;
    bool graph = owner != NULL && range->kind == SIM_RANGE_GRAPH;
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (!valid)
        return CUDA_ERROR_INVALID_VALUE;
    if (owner == NULL)
        owner = context;
    sim_context_drain(owner);
    sim_peer_drain(owner);
    CUresult result = graph ? sim_graph_memory_free(pointer) : sim_memory_free(pointer);
    sim_pool_settle();
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    SIM_INJECT(cuMemGetInfo_v2);
    SIM_ENTER_CONTEXT(context);
    struct sim_usage usage;
    sim_segment_usage(context->device, &usage);
    if (total != NULL)
        *total = usage.total;
    if (free_bytes != NULL)
        *free_bytes = usage.used + usage.managed < usage.total ? usage.total - usage.used - usage.managed : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    SIM_INJECT(cuMemGetAddressRange_v2);
    SIM_ENTER_CONTEXT(context);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool found = range != NULL && !range->leaving && !sim_mapping_is_hidden(range, pointer);
    if (found && base != NULL)
        *base = range->base;
    if (found && size != NULL)
        *size = range->size;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult allocate_host(void **out, size_t size, unsigned flags)
{
    if (out != NULL)
        *out = NULL;
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && (flags & ~7u) == 0);
    if (size == 0)
        return CUDA_SUCCESS;
    SIM_TRY(sim_capture_check_unsafe());
    uint64_t base;
    SIM_TRY(sim_memory_allocate(context, SIM_RANGE_HOST, size, &base));
    pthread_rwlock_wrlock(&sim_ranges_lock);
    sim_range_find(base)->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    pthread_rwlock_unlock(&sim_ranges_lock);
    *out = (void *)(uintptr_t)base;
    sim_memory_page_lock(size);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    SIM_INJECT(cuMemHostAlloc);
    return allocate_host(out, size, flags);
}

CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    SIM_INJECT(cuMemAllocHost_v2);
    return allocate_host(out, size, 0);
}

static CUresult free_host(struct sim_context *context, void *pointer, enum sim_range_kind kind, CUresult otherwise)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool found = range != NULL && range->base == (uint64_t)(uintptr_t)pointer && range->kind == kind;
    uint64_t bytes = found ? range->size : 0;
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (!found)
        return otherwise;
    sim_context_drain(context);
    sim_memory_page_unlock(bytes);
    return sim_memory_free((uint64_t)(uintptr_t)pointer);
}

CUresult cuMemFreeHost(void *pointer)
{
    SIM_INJECT(cuMemFreeHost);
    SIM_ENTER_CONTEXT(context);
    return free_host(context, pointer, SIM_RANGE_HOST, CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    SIM_INJECT(cuMemHostRegister_v2);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(pointer != NULL && size > 0 && (flags & ~15u) == 0);
    SIM_TRY(sim_capture_check_unsafe());
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_overlapping((uint64_t)(uintptr_t)pointer, size);
    if (range != NULL)
        result = sim_range_is_device(range) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    else if ((range = sim_range_add_host(SIM_RANGE_REGISTERED, (uint64_t)(uintptr_t)pointer, size)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        range->context = context;
        range->device = context->device;
        range->flags = flags;
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (result == CUDA_SUCCESS)
        sim_memory_page_lock(size);
    return result;
}

CUresult cuMemHostRegister(void *pointer, size_t size, unsigned flags)
{
    return cuMemHostRegister_v2(pointer, size, flags);
}

CUresult cuMemHostUnregister(void *pointer)
{
    SIM_INJECT(cuMemHostUnregister);
    SIM_ENTER_CONTEXT(context);
    return free_host(context, pointer, SIM_RANGE_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(out != NULL && flags == 0);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool host = range != NULL && !sim_range_is_device(range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    SIM_REQUIRE(host);
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(flags != NULL);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find((uint64_t)(uintptr_t)pointer);
    bool host = range != NULL && range->kind == SIM_RANGE_HOST;
    if (host)
        *flags = range->flags;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Called with the lock held. `range` is NULL for ordinary host memory. */
static CUresult attribute(void *data, CUpointer_attribute which, CUdeviceptr pointer, struct sim_range *range)
{
    bool device = sim_address_is_device(pointer);
    const struct sim_mapping_view view = sim_mapping_view(range, pointer);
    struct sim_context *current;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (range->kind == SIM_RANGE_RESERVATION || range->pool != NULL)
            *(CUcontext *)data = NULL;
        else
            *(CUcontext *)data = (CUcontext)range->context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (sim_context_resolve(NULL, &current) != CUDA_SUCCESS)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (sim_mapping_is_hidden(range, pointer))
            return CUDA_ERROR_INVALID_VALUE;
        *(CUdeviceptr *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (device && range->kind != SIM_RANGE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(unsigned long long *)data = range->id;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(int *)data = range->kind == SIM_RANGE_MANAGED;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = view.host ? CU_DEVICE_CPU : (int)(view.size != 0 ? view.device : range->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = range->kind == SIM_RANGE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = range->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)data = range->kind != SIM_RANGE_RESERVATION || view.size != 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = view.handle_types;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(int *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = (CUmemoryPool)range->pool;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = range->kind == SIM_RANGE_RESERVATION ? view.size : range->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = range->kind == SIM_RANGE_RESERVATION ? view.base : range->base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = range->kind == SIM_RANGE_RESERVATION ? view.id : range->id;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr pointer)
{
    SIM_INJECT(cuPointerGetAttribute);
    SIM_ENTER();
    SIM_REQUIRE(data != NULL && which >= CU_POINTER_ATTRIBUTE_CONTEXT);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    CUresult result =
        range == NULL || range->leaving ? CUDA_ERROR_INVALID_VALUE : attribute(data, which, pointer, range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

static size_t attribute_size(CUpointer_attribute which)
{
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return 4;
    default:
        return 8;
    }
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **data, CUdeviceptr pointer)
{
    SIM_INJECT(cuPointerGetAttributes);
    SIM_ENTER();
    SIM_REQUIRE(count > 0 && which != NULL && data != NULL);
    CUresult result = CUDA_SUCCESS;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        memset(data[i], 0, attribute_size(which[i]));
        if (range != NULL && !range->leaving) {
            CUresult one = attribute(data[i], which[i], pointer, range);
            if (one == CUDA_ERROR_NOT_SUPPORTED)
                result = one;
        } else if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            *(int *)data[i] = CU_DEVICE_INVALID;
        }
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr pointer)
{
    SIM_ENTER();
    SIM_REQUIRE(value != NULL && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool device = range != NULL && !range->leaving && sim_range_is_device(range);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stream-ordered allocation. A pool keeps nothing: memory is taken at the call and given back when the stream reaches
 * the free, as with the real driver's default release threshold of 0.
 */
#include "graph.h"
#include "memory.h"
#include "segment.h"

#include <stdlib.h>
#include <string.h>

#define POOL_MAGIC UINT64_C(0x53494d504f4f4c31)

struct sim_pool {
    uint64_t magic;
    unsigned device;
    bool built_in;
    uint64_t threshold, used, used_high;
    int reuse[3];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_pool *defaults[SIM_MAX_DEVICES], *currents[SIM_MAX_DEVICES];

static struct sim_pool *pool_new(unsigned device, bool built_in)
{
    struct sim_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL)
        *pool = (struct sim_pool){.magic = POOL_MAGIC, .device = device, .built_in = built_in, .reuse = {1, 1, 1}};
    return pool;
}

static CUresult default_pool(CUmemoryPool *out, CUdevice device, bool current)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL);
    if (device < 0 || (unsigned)device >= sim_segment_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (defaults[device] == NULL)
        defaults[device] = currents[device] = pool_new((unsigned)device, true);
    *out = (CUmemoryPool)(current ? currents[device] : defaults[device]);
    pthread_mutex_unlock(&lock);
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult find(CUmemoryPool handle, struct sim_pool **pool)
{
    SIM_ENTER();
    *pool = (struct sim_pool *)handle;
    return handle != NULL && (*pool)->magic == POOL_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return default_pool(pool, device, false);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return default_pool(pool, device, true);
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle)
{
    struct sim_pool *pool;
    CUmemoryPool ignored;
    SIM_TRY(find(handle, &pool));
    SIM_TRY(default_pool(&ignored, device, false));
    SIM_REQUIRE(pool->device == (unsigned)device);
    pthread_mutex_lock(&lock);
    currents[device] = pool;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult check_kind(const CUmemLocation *location, CUmemAllocationType type)
{
    SIM_REQUIRE(location != NULL);
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_TRY(check_kind(location, type));
    return default_pool(pool, location->id, false);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_TRY(check_kind(location, type));
    return default_pool(pool, location->id, true);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    SIM_TRY(check_kind(location, type));
    return cuDeviceSetMemPool(location->id, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && properties != NULL);
    SIM_TRY(check_kind(&properties->location, properties->allocType));
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->location.id < 0 || (unsigned)properties->location.id >= sim_segment_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    struct sim_pool *pool = pool_new((unsigned)properties->location.id, false);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(!pool->built_in);
    pthread_mutex_lock(&lock);
    if (currents[pool->device] == pool)
        currents[pool->device] = defaults[pool->device];
    pthread_mutex_unlock(&lock);
    /* The structure stays: allocations that outlive the pool still name it. */
    pool->magic = 0;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    struct sim_pool *pool;
    (void)keep;
    return find(handle, &pool);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(map != NULL || count == 0);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(flags != NULL && location != NULL);
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && (unsigned)location->id == pool->device
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static uint64_t *counter(struct sim_pool *pool, CUmemPool_attribute attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(value != NULL);
    uint64_t *found = counter(pool, attribute);
    if (found != NULL)
        *(uint64_t *)value = *found;
    else if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
             attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        *(int *)value = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(value != NULL);
    if (attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
        attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
        pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pool->threshold = *(uint64_t *)value;
        return CUDA_SUCCESS;
    }
    SIM_REQUIRE(attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    SIM_REQUIRE(*(uint64_t *)value == 0);
    pool->used_high = pool->used;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream_handle,
                         enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_pool *pool;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_REQUIRE(out != NULL && size > 0);
    if (handle == NULL)
        SIM_TRY(default_pool(&handle, (CUdevice)stream->context->device, true));
    SIM_TRY(find(handle, &pool));
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    uint64_t base;
    SIM_TRY(sim_memory_allocate(stream->context, SIM_RANGE_POOL, size, &base));
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(base);
    range->pool = pool;
    pool->used += range->mapped;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    pthread_rwlock_unlock(&sim_ranges_lock);
    *out = base;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuMemAllocAsync, _ptsz, (CUdeviceptr * pointer, size_t size, CUstream stream),
         allocate(pointer, size, NULL, stream, meant))
SIM_PAIR(cuMemAllocFromPoolAsync, _ptsz, (CUdeviceptr * pointer, size_t size, CUmemoryPool pool, CUstream stream),
         pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(pointer, size, pool, stream, meant))

static CUresult run_free(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    uint64_t base = *(uint64_t *)op->payload;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(base);
    if (range != NULL && range->pool != NULL)
        range->pool->used -= range->mapped;
    pthread_rwlock_unlock(&sim_ranges_lock);
    sim_memory_free(base);
    return CUDA_SUCCESS;
}

static CUresult free_async(CUdeviceptr pointer, CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (pointer == 0)
        return CUDA_SUCCESS;
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_rwlock_rdlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool valid =
        range != NULL && range->base == pointer && (range->kind == SIM_RANGE_POOL || range->kind == SIM_RANGE_DEVICE);
    pthread_rwlock_unlock(&sim_ranges_lock);
    SIM_REQUIRE(valid);
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, sizeof(uint64_t), run_free);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->despite_error = true;
    *(uint64_t *)op->payload = pointer;
    return sim_stream_submit(stream, op, NULL);
}

SIM_PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), free_async(pointer, stream, meant))

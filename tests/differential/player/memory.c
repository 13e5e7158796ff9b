/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocations of all kinds, pools, mappings and arrays. */
#include "player.h"

#include <string.h>

enum { PAGE = 2 << 20 };

struct block *used_block(struct self *self, unsigned long long slot)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &self->space->blocks[(slot + i) % BLOCKS];
        if (block->kind != EMPTY)
            return block;
    }
    return NULL;
}

/* Device or host memory that can be touched. */
struct block *reachable_block(struct self *self, unsigned long long slot)
{
    struct block *block = used_block(self, slot);
    return block == NULL || (block->kind == MAPPED && !block->has_access) ? NULL : block;
}

void forget_block(struct block *block)
{
    block->kind = EMPTY;
    block->generation++;
    block->defined = 0;
}

static struct block *fresh_block(struct self *self, unsigned long long slot)
{
    struct block *block = NULL;
    for (unsigned i = 0; i < BLOCKS && block == NULL; i++)
        if (self->space->blocks[(slot + i) % BLOCKS].kind == EMPTY)
            block = &self->space->blocks[(slot + i) % BLOCKS];
    if (block == NULL || self->current < 0)
        return NULL;
    self->space->allocated[self->current] = true;
    *block = (struct block){.generation = block->generation + 1,
                            .context = (unsigned)self->current,
                            .last = NOTHING_PENDING,
                            .captured_by = NOTHING_PENDING};
    return block;
}

static unsigned long long bounded(unsigned long long size)
{
    return size % (LARGEST + 1);
}

/* alloc BLOCK SIZE */
static void op_alloc(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    if (block == NULL || capture_refuses(self))
        return;
    block->size = bounded(n[1]);
    if (CALL(self, cuMemAlloc, &block->at, block->size) == CUDA_SUCCESS)
        block->kind = PLAIN;
}

/* allocpitch BLOCK WIDTH HEIGHT */
static void op_allocpitch(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    if (block == NULL || capture_refuses(self))
        return;
    size_t pitch = 0, width = n[1] % 4096, height = n[2] % 256;
    if (CALL(self, cuMemAllocPitch, &block->at, &pitch, width, height, 4) != CUDA_SUCCESS)
        return;
    note(self, " pitch=%zu", pitch);
    block->kind = PITCHED;
    block->size = pitch * height;
}

/* allocasync BLOCK SIZE STREAM */
static void op_allocasync(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    struct stream *stream = open_stream(self, n[2]);
    if (block == NULL || stream == NULL || (strict && capture_refuses_in(self, (unsigned)(n[2] % STREAMS))) ||
        is_capturing(self, (unsigned)(n[2] % STREAMS)))
        return;
    block->size = bounded(n[1]);
    block->context = context_of(self, (unsigned)(n[2] % STREAMS));
    if (CALL(self, cuMemAllocAsync, &block->at, block->size, stream->handle) != CUDA_SUCCESS)
        return;
    block->kind = ASYNC;
    used_by(self, block, (unsigned)(n[2] % STREAMS));
}

/* mkpool POOL */
static void op_mkpool(struct self *self, const unsigned long long *n)
{
    CUmemoryPool *pool = &self->space->pools[n[0] % POOLS];
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    if (*pool == NULL && CALL(self, cuMemPoolCreate, pool, &properties) != CUDA_SUCCESS)
        *pool = NULL;
}

/* allocpool BLOCK SIZE STREAM POOL */
static void op_allocpool(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    struct stream *stream = open_stream(self, n[2]);
    CUmemoryPool pool = self->space->pools[n[3] % POOLS];
    if (block == NULL || stream == NULL || pool == NULL ||
        (strict && capture_refuses_in(self, (unsigned)(n[2] % STREAMS))) ||
        is_capturing(self, (unsigned)(n[2] % STREAMS)))
        return;
    unsigned context = context_of(self, (unsigned)(n[2] % STREAMS));
    if (context == 2)
        return;
    /* How a pool counts what is not whole pages is not the same everywhere. */
    block->size = (bounded(n[1]) + 4095) / 4096 * 4096;
    block->context = context;
    if (CALL(self, cuMemAllocFromPoolAsync, &block->at, block->size, pool, stream->handle) != CUDA_SUCCESS)
        return;
    block->kind = POOLED;
    block->pool = (unsigned)(n[3] % POOLS);
    used_by(self, block, (unsigned)(n[2] % STREAMS));
}

/* rmpool POOL: also with allocations that live on */
static void op_rmpool(struct self *self, const unsigned long long *n)
{
    CUmemoryPool *pool = &self->space->pools[n[0] % POOLS];
    if (*pool == NULL)
        return;
    CALL(self, cuMemPoolDestroy, *pool);
    *pool = NULL;
}

static CUmemoryPool pool_or_default(struct self *self, unsigned long long slot)
{
    CUmemoryPool pool = NULL;
    if (slot % (POOLS + 1) < POOLS)
        return self->space->pools[slot % (POOLS + 1)];
    CALL(self, cuDeviceGetDefaultMemPool, &pool, 0);
    return pool;
}

/* trim POOL BYTES */
static void op_trim(struct self *self, const unsigned long long *n)
{
    CUmemoryPool pool = pool_or_default(self, n[0]);
    if (pool != NULL && !(strict && capture_refuses(self)))
        CALL(self, cuMemPoolTrimTo, pool, bounded(n[1]));
}

/* threshold POOL BYTES */
static void op_threshold(struct self *self, const unsigned long long *n)
{
    CUmemoryPool pool = pool_or_default(self, n[0]);
    cuuint64_t value = bounded(n[1]);
    if (pool == NULL)
        return;
    CALL(self, cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    value = 0;
    if (CALL(self, cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value) == CUDA_SUCCESS)
        note(self, " threshold=%llu", (unsigned long long)value);
}

/* poolused POOL: what is in use once all work is done */
static void op_poolused(struct self *self, const unsigned long long *n)
{
    static const struct {
        CUmemPool_attribute attribute;
        const char *name;
    } attributes[] = {{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, "used"},
                      {CU_MEMPOOL_ATTR_USED_MEM_HIGH, "used_high"},
                      {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, "reserved"},
                      {CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, "reserved_high"}};
    if (self->space->capture.open)
        return;
    CUmemoryPool pool = self->space->pools[n[0] % POOLS];
    if (pool == NULL)
        return;
    synchronize_all(self);
    for (unsigned i = 0; i < 4; i++) {
        cuuint64_t value = 0;
        if (CALL(self, cuMemPoolGetAttribute, pool, attributes[i].attribute, &value) == CUDA_SUCCESS)
            note(self, " %s=%llu", attributes[i].name, (unsigned long long)value);
    }
}

/* allochost BLOCK SIZE FLAGS */
static void op_allochost(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    void *at = NULL;
    if (block == NULL)
        return;
    block->size = bounded(n[1]) % (1 << 20);
    if (CALL(self, cuMemHostAlloc, &at, block->size, (unsigned)(n[2] % 8)) != CUDA_SUCCESS)
        return;
    block->kind = HOST;
    block->at = (CUdeviceptr)(uintptr_t)at;
    CUdeviceptr device = 0;
    unsigned flags = 0;
    if (CALL(self, cuMemHostGetDevicePointer, &device, at, 0) == CUDA_SUCCESS)
        note(self, " same=%d", device == block->at);
    /*
     * On an H100, small allocations said to be portable or not depending on what other threads had allocated, in two
     * runs of the bare driver as well.
     */
    if (CALL(self, cuMemHostGetFlags, &flags, at) == CUDA_SUCCESS)
        note(self, " flags=%u", real && !alone ? flags & ~(unsigned)CU_MEMHOSTALLOC_PORTABLE : flags);
}

static unsigned device_of(const struct self *self, unsigned context)
{
    return self->space->contexts[context]->device;
}

static CUmemAllocationProp memory_of(unsigned device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device}};
}

static CUresult give_access(struct self *self, struct block *block, CUmemAccess_flags flags)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device_of(self, block->context)}, .flags = flags};
    CUresult result = CALL(self, cuMemSetAccess, block->at, block->bytes, &access, 1);
    if (result == CUDA_SUCCESS)
        block->has_access = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return result;
}

/* map BLOCK PAGES RELEASE: reserves, creates, maps and gives access; may release the handle at once */
static void op_map(struct self *self, const unsigned long long *n)
{
    struct block *block = fresh_block(self, n[0]);
    if (block == NULL)
        return;
    block->bytes = (n[1] % 3 + 1) * PAGE;
    const CUmemAllocationProp properties = memory_of(device_of(self, block->context));
    if (CALL(self, cuMemAddressReserve, &block->at, block->bytes, 0, 0, 0) != CUDA_SUCCESS)
        return;
    if (CALL(self, cuMemCreate, &block->handle, block->bytes, &properties, 0) == CUDA_SUCCESS)
        block->has_handle = true;
    if (block->has_handle && CALL(self, cuMemMap, block->at, block->bytes, 0, block->handle, 0) == CUDA_SUCCESS)
        block->is_mapped = true;
    if (block->is_mapped)
        give_access(self, block, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    block->kind = MAPPED;
    block->size = block->bytes;
    if (n[2] % 2 != 0 && block->has_handle && CALL(self, cuMemRelease, block->handle) == CUDA_SUCCESS)
        block->has_handle = false;
}

static struct block *mapped_block(struct self *self, unsigned long long slot)
{
    struct block *block = used_block(self, slot);
    return block == NULL || block->kind != MAPPED || self->space->capture.open ? NULL : block;
}

/* unmap BLOCK: also where nothing is mapped */
static void op_unmap(struct self *self, const unsigned long long *n)
{
    struct block *block = mapped_block(self, n[0]);
    if (block == NULL || !settle_block(self, block))
        return;
    if (CALL(self, cuMemUnmap, block->at, block->bytes) != CUDA_SUCCESS)
        return;
    if (!block->has_handle)
        block->defined = 0;
    block->is_mapped = block->has_access = false;
    block->generation++;
}

/* remap BLOCK: the handle again, with or without access; also where something is mapped */
static void op_remap(struct self *self, const unsigned long long *n)
{
    struct block *block = mapped_block(self, n[0]);
    if (block == NULL || !block->has_handle || !settle_block(self, block))
        return;
    if (CALL(self, cuMemMap, block->at, block->bytes, 0, block->handle, 0) == CUDA_SUCCESS)
        block->is_mapped = true;
    if (n[1] % 2 != 0)
        give_access(self, block, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* access BLOCK WHICH: also where nothing is mapped */
static void op_access(struct self *self, const unsigned long long *n)
{
    struct block *block = mapped_block(self, n[0]);
    if (block == NULL || !settle_block(self, block))
        return;
    give_access(self, block, n[1] % 2 != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE);
    unsigned long long flags = 99;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device_of(self, block->context)};
    if (CALL(self, cuMemGetAccess, &flags, &location, block->at) == CUDA_SUCCESS)
        note(self, " access=%llu", flags);
}

/* release BLOCK: the handle of a mapped block, whose memory lives on while it is mapped */
static void op_release(struct self *self, const unsigned long long *n)
{
    struct block *block = mapped_block(self, n[0]);
    if (block == NULL || !block->has_handle)
        return;
    if (CALL(self, cuMemRelease, block->handle) == CUDA_SUCCESS)
        block->has_handle = false;
    if (!block->is_mapped)
        block->defined = 0;
}

/* retain BLOCK OFFSET: of memory of any kind; only mapped memory has a handle */
static void op_retain(struct self *self, const unsigned long long *n)
{
    struct block *block = used_block(self, n[0]);
    if (block == NULL || block->size == 0)
        return;
    CUmemGenericAllocationHandle handle = 0;
    void *at = (void *)(uintptr_t)(block->at + n[1] % block->size);
    if (CALL(self, cuMemRetainAllocationHandle, &handle, at) != CUDA_SUCCESS)
        return;
    CUmemAllocationProp properties = {0};
    if (CALL(self, cuMemGetAllocationPropertiesFromHandle, &properties, handle) == CUDA_SUCCESS)
        note(self, " type=%d at=%d:%d", (int)properties.type, (int)properties.location.type, properties.location.id);
    note(self, " same=%d", block->has_handle && handle == block->handle);
    CALL(self, cuMemRelease, handle);
}

static void free_mapped(struct self *self, struct block *block)
{
    if (block->is_mapped)
        CALL(self, cuMemUnmap, block->at, block->bytes);
    if (block->has_handle)
        CALL(self, cuMemRelease, block->handle);
    CALL(self, cuMemAddressFree, block->at, block->bytes);
}

uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

bool is_pool_memory(const struct block *block)
{
    return block->kind == ASYNC || block->kind == POOLED;
}

static bool is_used_in_own_context(struct self *self, const struct block *block)
{
    if (block->last == NOTHING_PENDING)
        return true;
    if (block->last == UNKNOWN_STREAM)
        return false;
    unsigned context = block->last < FIRST_OWN ? block->last_context : self->space->streams[block->last].context;
    return context == block->context;
}

/* As is usual for its kind, and waiting. */
static void free_block(struct self *self, struct block *block)
{
    if (block == NULL || (block->kind == MAPPED && self->space->capture.open) || capture_refuses(self))
        return;
    /* The driver waits by itself for the work on plain memory, but only for that of the memory's context. */
    bool plain = block->kind == PLAIN || block->kind == PITCHED;
    if (!(plain && is_used_in_own_context(self, block)) && !settle_block(self, block))
        return;
    close_elsewhere(self, block);
    CUresult result = CUDA_SUCCESS;
    switch (block->kind) {
    case HOST:
        result = CALL(self, cuMemFreeHost, (void *)(uintptr_t)block->at);
        break;
    case MAPPED:
        free_mapped(self, block);
        break;
    default:
        result = CALL(self, cuMemFree, block->at);
    }
    if (result == CUDA_SUCCESS)
        forget_block(block);
}

/* free BLOCK */
static void op_free(struct self *self, const unsigned long long *n)
{
    free_block(self, used_block(self, n[0]));
}

/* freebusy BLOCK: one that work is under way on, if there is one */
static void op_freebusy(struct self *self, const unsigned long long *n)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &self->space->blocks[(n[0] + i) % BLOCKS];
        if ((block->kind == PLAIN || block->kind == PITCHED) && block->last != NOTHING_PENDING) {
            free_block(self, block);
            return;
        }
    }
}

/* freeasync BLOCK STREAM */
static void op_freeasync(struct self *self, const unsigned long long *n)
{
    struct block *block = used_block(self, n[0]);
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (block == NULL || stream == NULL || !is_pool_memory(block) || (strict && capture_refuses_in(self, slot)) ||
        is_capturing(self, slot) || !order(self, block, slot))
        return;
    if (CALL(self, cuMemFreeAsync, block->at, stream->handle) == CUDA_SUCCESS)
        forget_block(block);
}

/* freetwice BLOCK STREAM HOW: the second free must fail, and must not free what comes later */
static void op_freetwice(struct self *self, const unsigned long long *n)
{
    struct block *block = used_block(self, n[0]);
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (block == NULL || stream == NULL || block->kind == MAPPED || capture_refuses_in(self, slot) ||
        is_capturing(self, slot) || !order(self, block, slot) || !settle_block(self, block))
        return;
    close_elsewhere(self, block);
    CUresult result;
    if (block->kind == HOST) {
        result = CALL(self, cuMemFreeHost, (void *)(uintptr_t)block->at);
        CALL(self, cuMemFreeHost, (void *)(uintptr_t)block->at);
    } else if (is_pool_memory(block) && n[2] % 3 != 0) {
        result = CALL(self, cuMemFreeAsync, block->at, stream->handle);
        if (n[2] % 3 == 1)
            CALL(self, cuMemFreeAsync, block->at, stream->handle);
        else
            CALL(self, cuMemFree, block->at);
    } else {
        result = CALL(self, cuMemFree, block->at);
        CALL(self, cuMemFree, block->at);
    }
    if (result == CUDA_SUCCESS)
        forget_block(block);
}

/* freeinside BLOCK OFFSET STREAM: an address inside a block cannot be freed */
static void op_freeinside(struct self *self, const unsigned long long *n)
{
    struct block *block = used_block(self, n[0]);
    struct stream *stream = open_stream(self, n[2]);
    if (block == NULL || stream == NULL || block->size < 2 || capture_refuses_in(self, (unsigned)(n[2] % STREAMS)) ||
        is_capturing(self, (unsigned)(n[2] % STREAMS)))
        return;
    CUdeviceptr inside = block->at + 1 + n[1] % (block->size - 1);
    CALL(self, cuMemFree, inside);
    if (is_pool_memory(block))
        CALL(self, cuMemFreeAsync, inside, stream->handle);
}

/* mkarray ARRAY WIDTH */
static void op_mkarray(struct self *self, const unsigned long long *n)
{
    struct array *array = &self->space->arrays[n[0] % ARRAYS];
    if (array->handle != NULL || self->current < 0)
        return;
    CUDA_ARRAY_DESCRIPTOR descriptor = {
        .Width = n[1] % 65536, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    *array = (struct array){.context = (unsigned)self->current, .width = descriptor.Width};
    if (CALL(self, cuArrayCreate, &array->handle, &descriptor) != CUDA_SUCCESS)
        array->handle = NULL;
}

/* rmarray ARRAY */
static void op_rmarray(struct self *self, const unsigned long long *n)
{
    struct array *array = &self->space->arrays[n[0] % ARRAYS];
    if (array->handle != NULL && CALL(self, cuArrayDestroy, array->handle) == CUDA_SUCCESS)
        array->handle = NULL;
}

/* writearray ARRAY SEED */
static void op_writearray(struct self *self, const unsigned long long *n)
{
    struct array *array = &self->space->arrays[n[0] % ARRAYS];
    if (array->handle == NULL || array->width == 0)
        return;
    if (CALL(self, cuMemcpyHtoA, array->handle, 0, pattern + n[1] % 4096, array->width) == CUDA_SUCCESS)
        array->defined = true;
}

/* readarray ARRAY OFFSET */
static void op_readarray(struct self *self, const unsigned long long *n)
{
    struct array *array = &self->space->arrays[n[0] % ARRAYS];
    if (array->handle == NULL)
        return;
    CUDA_ARRAY_DESCRIPTOR descriptor = {0};
    if (CALL(self, cuArrayGetDescriptor, &descriptor, array->handle) == CUDA_SUCCESS)
        note(self, " width=%zu height=%zu", descriptor.Width, descriptor.Height);
    static __thread unsigned char bytes[65536];
    if (!array->defined)
        return;
    size_t offset = n[1] % array->width;
    if (CALL(self, cuMemcpyAtoH, bytes, array->handle, offset, array->width - offset) == CUDA_SUCCESS)
        note(self, " bytes=%016llx", (unsigned long long)hash(bytes, array->width - offset));
}

/* arraycopy ARRAY BLOCK BACK */
static void op_arraycopy(struct self *self, const unsigned long long *n)
{
    struct array *array = &self->space->arrays[n[0] % ARRAYS];
    struct block *block = reachable_block(self, n[1]);
    if (array->handle == NULL || block == NULL || block->kind == HOST || !settle_block(self, block))
        return;
    size_t size = array->width < block->size ? array->width : block->size;
    if (n[2] % 2 == 0 && block->defined >= array->width) {
        if (CALL(self, cuMemcpyDtoA, array->handle, 0, block->at, array->width) == CUDA_SUCCESS)
            array->defined = true;
        if (real)
            used_by(self, block, 0);
    } else if (n[2] % 2 != 0 && array->defined) {
        if (CALL(self, cuMemcpyAtoD, block->at, array->handle, 0, size) == CUDA_SUCCESS && block->defined < size)
            block->defined = size;
        if (real)
            used_by(self, block, 0);
    }
}

const struct operation memory_operations[] = {{"alloc", op_alloc, 0},
                                              {"allocpitch", op_allocpitch, 0},
                                              {"allocasync", op_allocasync, 0},
                                              {"allocpool", op_allocpool, 0},
                                              {"mkpool", op_mkpool, 0},
                                              {"rmpool", op_rmpool, WAITS},
                                              {"trim", op_trim, WAITS},
                                              {"threshold", op_threshold, SERIAL},
                                              {"poolused", op_poolused, WAITS | SERIAL},
                                              {"allochost", op_allochost, WAITS},
                                              {"map", op_map, 0},
                                              {"unmap", op_unmap, WAITS},
                                              {"remap", op_remap, WAITS},
                                              {"access", op_access, WAITS},
                                              {"release", op_release, 0},
                                              {"retain", op_retain, 0},
                                              {"free", op_free, WAITS},
                                              {"freebusy", op_freebusy, WAITS},
                                              {"freeasync", op_freeasync, 0},
                                              {"freetwice", op_freetwice, WAITS | SERIAL},
                                              {"freeinside", op_freeinside, WAITS},
                                              {"mkarray", op_mkarray, 0},
                                              {"rmarray", op_rmarray, WAITS},
                                              {"writearray", op_writearray, WAITS},
                                              {"readarray", op_readarray, WAITS},
                                              {"arraycopy", op_arraycopy, WAITS},
                                              {0}};

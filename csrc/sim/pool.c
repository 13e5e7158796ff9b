/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Stream-ordered allocation. Memory is taken at the call, and is returned when the stream reaches the free. It then
 * stays in the pool's reserve until a stream, an event or a context is synchronised. At that time, memory above the
 * release threshold is returned to the device. Only sizes are kept: the next allocation gets new, poisoned memory.
 */
#include "pool.h"

#include "capture.h"
#include "context.h"
#include "contexts.h"
#include "graph_capture.h"
#include "graph_memory.h"
#include "inject.h"
#include "ipc.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/memory.h"
#include "stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL_MAGIC UINT64_C(0x53494d504f4f4c31)

struct sim_pool {
    uint64_t magic;
    /* the list of all pools, including destroyed ones, because their allocations may still exist */
    struct sim_pool *next;
    CUmemPoolProps properties;
    enum sim_range_kind kind;
    unsigned device; /* for device memory */
    bool built_in, imported;
    uint64_t threshold, used, used_high, reserved, reserved_high;
    int reuse[3];
    unsigned char access[SIM_MAX_DEVICES]; /* CUmemAccess_flags */
    uint64_t id;                           /* also stored by importers */
    int fd;                                /* the file that represents it in other processes, or -1 */
};

/* The contents of that file. */
struct identity {
    uint64_t magic, id;
    unsigned device;
};

/* For each place of memory, the default pool and the current one. */
enum { HOST_PLACE = SIM_MAX_DEVICES, MANAGED_PLACE, PLACES = MANAGED_PLACE + SIM_MAX_DEVICES + 1 };

/* may be taken while the table's lock is held, but not the other way round */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_pool *pools;
static struct sim_pool *defaults[PLACES], *currents[PLACES];
static bool unsettled; /* memory was freed since pools last returned what exceeds their thresholds */
static unsigned next_id = 1;

static bool is_charged(const struct sim_pool *pool)
{
    return pool->kind == SIM_RANGE_POOL && !pool->imported;
}

/* Called with the lock held. */
static void shrink(struct sim_pool *pool, uint64_t keep)
{
    uint64_t least = pool->used > keep ? pool->used : keep;
    if (pool->reserved <= least)
        return;
    if (is_charged(pool))
        sim_segment_refund(pool->device, SIM_CHARGE_MEMORY, pool->reserved - least);
    pool->reserved = least;
}

static CUresult grow(struct sim_pool *pool, uint64_t bytes)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    uint64_t spare = pool->reserved - pool->used;
    uint64_t missing = bytes > spare ? bytes - spare : 0;
    if (missing > 0 && pool->properties.maxSize != 0 && pool->reserved + missing > pool->properties.maxSize)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (missing > 0 && is_charged(pool) && !sim_segment_charge(pool->device, SIM_CHARGE_MEMORY, missing))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        pool->reserved += missing;
        pool->used += bytes;
        if (pool->reserved > pool->reserved_high)
            pool->reserved_high = pool->reserved;
        if (pool->used > pool->used_high)
            pool->used_high = pool->used;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void put_back(struct sim_pool *pool, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    pool->used -= bytes;
    if (pool->magic != POOL_MAGIC)
        shrink(pool, 0);
    __atomic_store_n(&unsettled, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

void sim_pool_take_back(struct sim_range *range)
{
    if (!range->pool->imported)
        put_back(range->pool, range->mapped);
}

void sim_pool_settle(void)
{
    if (!__atomic_load_n(&unsettled, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    unsettled = false;
    for (struct sim_pool *pool = pools; pool != NULL; pool = pool->next)
        shrink(pool, pool->threshold);
    pthread_mutex_unlock(&lock);
}

void sim_pool_trim_device(unsigned device)
{
    pthread_mutex_lock(&lock);
    for (struct sim_pool *pool = pools; pool != NULL; pool = pool->next)
        if (is_charged(pool) && pool->device == device)
            shrink(pool, 0);
    pthread_mutex_unlock(&lock);
}

bool sim_pool_is_accessible(const struct sim_pool *pool, unsigned device)
{
    return pool->access[device] != CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

static bool is_host(CUmemLocationType type)
{
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult find_place(const CUmemLocation *location, CUmemAllocationType type, unsigned *place)
{
    SIM_ENTER();
    SIM_REQUIRE(location != NULL && (type == CU_MEM_ALLOCATION_TYPE_PINNED || type == CU_MEM_ALLOCATION_TYPE_MANAGED));
    bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
        if (location->id < 0 || (unsigned)location->id >= sim_segment_devices())
            return CUDA_ERROR_INVALID_DEVICE;
        *place = (unsigned)location->id + (managed ? MANAGED_PLACE + 1 : 0);
        return CUDA_SUCCESS;
    }
    SIM_REQUIRE(is_host(location->type) || (managed && location->type == CU_MEM_LOCATION_TYPE_NONE));
    *place = managed ? MANAGED_PLACE : HOST_PLACE;
    return CUDA_SUCCESS;
}

/* A destroyed pool without allocations, to be used as a new one: handles are reused. Called with the lock held. */
static struct sim_pool *take_destroyed(void)
{
    struct sim_pool **link = &pools;
    while (*link != NULL && ((*link)->magic != 0 || (*link)->used != 0 || (*link)->reserved != 0))
        link = &(*link)->next;
    struct sim_pool *pool = *link;
    if (pool != NULL)
        *link = pool->next;
    return pool;
}

/* `pool`: the pool to reuse, or NULL. */
static struct sim_pool *pool_new(const CUmemPoolProps *properties, struct sim_pool *pool)
{
    if (pool == NULL)
        pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    *pool = (struct sim_pool){.magic = POOL_MAGIC,
                              .properties = *properties,
                              .kind = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED ? SIM_RANGE_MANAGED
                                      : is_host(properties->location.type)                    ? SIM_RANGE_HOST
                                                                                              : SIM_RANGE_POOL,
                              .reuse = {1, 1, 1},
                              .fd = -1};
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        pool->device = (unsigned)properties->location.id;
    if (pool->kind == SIM_RANGE_POOL)
        pool->access[pool->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool->id = (uint64_t)getpid() << 32 | __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    return pool;
}

/* Called with the lock held. */
static void enlist(struct sim_pool *pool)
{
    pool->next = pools;
    pools = pool;
}

static CUresult pool_of(CUmemoryPool *out, const CUmemLocation *location, CUmemAllocationType type, bool current)
{
    unsigned place;
    SIM_TRY(find_place(location, type, &place));
    SIM_REQUIRE(out != NULL);
    pthread_mutex_lock(&lock);
    if (defaults[place] == NULL) {
        struct sim_pool *pool = pool_new(&(CUmemPoolProps){.allocType = type, .location = *location}, NULL);
        if (pool != NULL) {
            pool->built_in = true;
            enlist(pool);
            defaults[place] = currents[place] = pool;
        }
    }
    *out = (CUmemoryPool)(current ? currents[place] : defaults[place]);
    pthread_mutex_unlock(&lock);
    return *out == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult find(CUmemoryPool handle, struct sim_pool **pool)
{
    SIM_ENTER();
    *pool = (struct sim_pool *)handle;
    return handle != NULL && (*pool)->magic == POOL_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUmemLocation at_device(CUdevice device)
{
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUmemLocation location = at_device(device);
    return pool_of(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, false);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUmemLocation location = at_device(device);
    return pool_of(pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, true);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return pool_of(pool, location, type, false);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return pool_of(pool, location, type, true);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool handle)
{
    struct sim_pool *pool;
    CUmemoryPool ignored;
    unsigned place, own;
    SIM_TRY(find(handle, &pool));
    SIM_TRY(find_place(location, type, &place));
    SIM_TRY(find_place(&pool->properties.location, pool->properties.allocType, &own));
    SIM_REQUIRE(own == place && !pool->imported);
    SIM_TRY(pool_of(&ignored, location, type, false));
    pthread_mutex_lock(&lock);
    currents[place] = pool;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUmemLocation location = at_device(device);
    return cuMemSetMemPool(&location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties)
{
    SIM_INJECT(cuMemPoolCreate);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && properties != NULL);
    unsigned place;
    SIM_TRY(find_place(&properties->location, properties->allocType, &place));
    bool managed = properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
    SIM_REQUIRE(!managed || (properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties->maxSize == 0));
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct sim_pool *pool = pool_new(properties, take_destroyed());
    if (pool != NULL)
        enlist(pool);
    pthread_mutex_unlock(&lock);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    SIM_INJECT(cuMemPoolDestroy);
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(!pool->built_in);
    pthread_mutex_lock(&lock);
    for (unsigned place = 0; place < PLACES; place++)
        if (currents[place] == pool)
            currents[place] = defaults[place];
    pool->magic = 0;
    shrink(pool, 0);
    if (pool->fd >= 0)
        close(pool->fd);
    pool->fd = -1;
    pthread_mutex_unlock(&lock);
    /* The structure stays, because allocations that outlive the pool refer to it. */
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    SIM_INJECT(cuMemPoolTrimTo);
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    if (sim_config.strict)
        SIM_TRY(sim_capture_check_unsafe());
    pthread_mutex_lock(&lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(map != NULL || count == 0);
    for (size_t i = 0; i < count; i++) {
        SIM_REQUIRE(map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE);
        if (map[i].location.id < 0 || (unsigned)map[i].location.id >= sim_segment_devices())
            return CUDA_ERROR_INVALID_DEVICE;
        SIM_REQUIRE(map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                    map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        /* The device with the memory keeps its access. */
        SIM_REQUIRE(pool->kind != SIM_RANGE_POOL || (unsigned)map[i].location.id != pool->device ||
                    map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    for (size_t i = 0; i < count; i++)
        pool->access[map[i].location.id] = (unsigned char)map[i].flags;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(flags != NULL && location != NULL);
    if (is_host(location->type)) {
        *flags = pool->kind == SIM_RANGE_POOL ? CU_MEM_ACCESS_FLAGS_PROT_NONE : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return CUDA_SUCCESS;
    }
    SIM_REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    if (location->id < 0 || (unsigned)location->id >= sim_segment_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = pool->access[location->id];
    return CUDA_SUCCESS;
}

static uint64_t *counter(struct sim_pool *pool, CUmemPool_attribute attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

static int *reuse(struct sim_pool *pool, CUmemPool_attribute attribute)
{
    return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
                   attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
               ? &pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES]
               : NULL;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(value != NULL);
    const uint64_t *found = counter(pool, attribute);
    const int *choice = reuse(pool, attribute);
    pthread_mutex_lock(&lock);
    if (found != NULL)
        *(uint64_t *)value = *found;
    else if (choice != NULL)
        *(int *)value = *choice;
    pthread_mutex_unlock(&lock);
    if (found != NULL || choice != NULL)
        return CUDA_SUCCESS;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
        *(CUmemAllocationType *)value = pool->properties.allocType;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
        *(CUmemAllocationHandleType *)value = pool->properties.handleTypes;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_ID:
        *(int *)value = pool->properties.location.id;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE:
        *(CUmemLocationType *)value = pool->properties.location.type;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
        *(uint64_t *)value = pool->properties.maxSize;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(value != NULL);
    int *choice = reuse(pool, attribute);
    bool high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    SIM_REQUIRE(choice != NULL || high || attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    SIM_REQUIRE(!high || *(uint64_t *)value == 0);
    pthread_mutex_lock(&lock);
    if (choice != NULL)
        *choice = *(int *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        pool->reserved_high = pool->reserved;
    else
        pool->used_high = pool->used;
    __atomic_store_n(&unsettled, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult take(struct sim_context *context, struct sim_pool *pool, size_t size, uint64_t *base)
{
    uint64_t bytes = (size + UINT64_C(4095)) & ~UINT64_C(4095);
    if (bytes < size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = grow(pool, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* pending frees in streams may return enough */
        sim_context_drain(context);
        result = grow(pool, bytes);
    }
    SIM_TRY(result);
    result = sim_memory_allocate(context, pool->kind, size, base);
    if (result != CUDA_SUCCESS) {
        put_back(pool, bytes);
        return result;
    }
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(*base);
    range->pool = pool;
    if (pool->kind == SIM_RANGE_POOL)
        range->device = pool->device;
    if (pool->kind == SIM_RANGE_MANAGED && pool->properties.location.type != CU_MEM_LOCATION_TYPE_NONE)
        range->preferred = is_host(pool->properties.location.type) ? CU_DEVICE_CPU : (int)pool->device;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return CUDA_SUCCESS;
}

/* A bit for each device. */
static unsigned accessible(const struct sim_pool *pool)
{
    unsigned mask = 0;
    for (unsigned device = 0; device < SIM_MAX_DEVICES; device++)
        mask |= (unsigned)sim_pool_is_accessible(pool, device) << device;
    return mask;
}

static CUresult allocate(CUdeviceptr *out, size_t size, CUmemoryPool handle, CUstream stream_handle,
                         enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_pool *pool;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_REQUIRE(out != NULL);
    *out = 0;
    if (size == 0)
        return CUDA_SUCCESS;
    if (handle == NULL)
        SIM_TRY(cuDeviceGetMemPool(&handle, (CUdevice)stream->context->device));
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(!pool->imported);
    if (stream->capture != NULL)
        return sim_capture_allocate(stream, size, &pool->properties, accessible(pool), out);
    if (sim_config.strict)
        SIM_TRY(sim_capture_check_unsafe());
    if (sim_config.strict)
        SIM_TRY(sim_stream_check_legacy(stream));
    uint64_t base;
    SIM_TRY(take(stream->context, pool, size, &base));
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
    sim_memory_free(*(uint64_t *)op->payload);
    return CUDA_SUCCESS;
}

/* The stream did not accept the free, which therefore had no effect. */
static void stay(CUdeviceptr pointer, unsigned long long id)
{
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    if (range != NULL && range->id == id)
        range->leaving = false;
    pthread_rwlock_unlock(&sim_ranges_lock);
}

static CUresult free_async(CUdeviceptr pointer, CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (pointer == 0)
        return CUDA_SUCCESS;
    if (stream->capture != NULL)
        return sim_capture_free(stream, pointer);
    if (sim_config.strict)
        SIM_TRY(sim_capture_check_unsafe());
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    bool graph = range != NULL && range->base == pointer && range->kind == SIM_RANGE_GRAPH;
    bool valid = range != NULL && range->base == pointer && !range->leaving &&
                 (range->pool != NULL || range->kind == SIM_RANGE_DEVICE);
    if (valid && !graph)
        range->leaving = true;
    unsigned long long id = valid ? range->id : 0;
    pthread_rwlock_unlock(&sim_ranges_lock);
    if (graph)
        return sim_graph_memory_free_async(stream, pointer);
    SIM_REQUIRE(valid);
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, sizeof(uint64_t), run_free);
    if (op != NULL) {
        op->despite_error = true;
        *(uint64_t *)op->payload = pointer;
    }
    CUresult result = sim_stream_submit(stream, op, NULL);
    if (result != CUDA_SUCCESS)
        stay(pointer, id);
    return result;
}

SIM_PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), free_async(pointer, stream, meant))

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                          unsigned long long flags)
{
    struct sim_pool *pool;
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(out != NULL && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
                pool->properties.handleTypes == type);
    const struct identity identity = {POOL_MAGIC, pool->id, sim_segment_machine(pool->device)};
    pthread_mutex_lock(&lock);
    if (pool->fd < 0) {
        pool->fd = (int)syscall(SYS_memfd_create, "gpushare-sim-pool", 1u /* MFD_CLOEXEC */);
        if (pool->fd >= 0 && write(pool->fd, &identity, sizeof identity) != sizeof identity) {
            close(pool->fd);
            pool->fd = -1;
        }
    }
    int fd = pool->fd < 0 ? -1 : fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&lock);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *shareable, CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
    SIM_ENTER();
    struct identity identity;
    unsigned device;
    SIM_REQUIRE(out != NULL && flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    SIM_REQUIRE(pread((int)(intptr_t)shareable, &identity, sizeof identity, 0) == sizeof identity &&
                identity.magic == POOL_MAGIC && sim_segment_seen(identity.device, &device));
    struct sim_pool *pool = pool_new(&(CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .handleTypes = type,
                                                       .location = at_device((CUdevice)device)},
                                     NULL);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->imported = true;
    pool->id = identity.id;
    pthread_mutex_lock(&lock);
    enlist(pool);
    pthread_mutex_unlock(&lock);
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr pointer)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_rwlock_wrlock(&sim_ranges_lock);
    struct sim_range *range = sim_range_find(pointer);
    if (range != NULL && range->base == pointer && range->kind == SIM_RANGE_POOL && !range->pool->imported &&
        range->pool->properties.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        result = sim_memory_share(range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        struct sim_shared shared =
            sim_shared_describe(SIM_SHARED_POINTER, range->fd, range->pool->id, range->size, range->device);
        memset(out, 0, sizeof *out);
        memcpy(out->reserved, &shared, sizeof shared);
    }
    pthread_rwlock_unlock(&sim_ranges_lock);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle, CUmemPoolPtrExportData *data)
{
    struct sim_pool *pool;
    SIM_ENTER_CONTEXT(context);
    SIM_TRY(find(handle, &pool));
    SIM_REQUIRE(out != NULL && data != NULL);
    struct sim_shared shared;
    memcpy(&shared, data->reserved, sizeof shared);
    SIM_REQUIRE(pool->imported && shared.id == pool->id);
    int fd = sim_shared_open(SIM_SHARED_POINTER, &shared);
    SIM_REQUIRE(fd >= 0);
    uint64_t base;
    SIM_TRY(sim_shared_map(context, &shared, fd, pool, &base));
    *out = base;
    return CUDA_SUCCESS;
}

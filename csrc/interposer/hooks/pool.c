/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on memory pools (pool.h). */
#include "hooks/pool.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "hooks/peer.h"
#include "loader/real.h"
#include "memory/admission.h"
#include "memory/memory.h"

#include <stdlib.h>

struct pool {
    struct gs_node node; /* by handle */
    uint64_t id;         /* unique, unlike the handle */
    CUdevice device;
    bool emulated, usual;     /* usual: the device's default pool, which cannot be destroyed */
    uint64_t used, most_used; /* for emulated pools */
    uint64_t most;            /* upper limit of the bytes in use; 0: no limit of its own */
    uint64_t counted;         /* for the driver's pools: bytes that are counted as unevictable */
};

struct gs_pooled {
    struct gs_node node; /* by address */
    size_t size;
    CUmemoryPool handle; /* the pool's handle in the application */
    struct pool *pool;   /* NULL: it was destroyed; its memory is still that of a pool */
    uint64_t pool_id;
};

static struct {
    struct gs_mutex lock;
    struct gs_map map, allocations;
    uint64_t last_id;
} pools = {.lock = GS_MUTEX(GS_RANK_POOLS)};

static struct gs_node *find(struct gs_map *map, uint64_t key)
{
    struct gs_node *node = gs_map_floor(map, key);
    return node != NULL && node->key == key ? node : NULL;
}

static struct pool *add_locked(CUmemoryPool handle, CUdevice device, bool emulated)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return NULL;
    *pool = (struct pool){.node.key = (uintptr_t)handle, .id = ++pools.last_id, .device = device, .emulated = emulated};
    gs_map_insert(&pools.map, &pool->node);
    return pool;
}

/* NULL for what is not counted: pools of other processes, of the host, and of managed memory. */
static struct pool *find_locked(CUmemoryPool handle)
{
    GS_LEAVES_CAPTURES_ALONE;
    struct pool *pool = (struct pool *)find(&pools.map, (uintptr_t)handle);
    int count = 0;
    CUmemoryPool usual;
    GS_REAL(cuDeviceGetCount)(&count);
    for (int device = 0; device < count && pool == NULL; device++)
        if (GS_REAL(cuDeviceGetDefaultMemPool)(&usual, device) == CUDA_SUCCESS && usual == handle &&
            (pool = add_locked(handle, device, true)) != NULL)
            pool->usual = true;
    return pool;
}

/* --- Emulated pools --- */

static void forget_locked(CUdeviceptr pointer)
{
    struct gs_pooled *entry = (struct gs_pooled *)gs_map_remove(&pools.allocations, pointer);
    if (entry != NULL && entry->pool != NULL)
        entry->pool->used -= entry->size;
    free(entry);
}

struct gs_pooled *gs_pool_take(CUdeviceptr pointer)
{
    gs_mutex_lock(&pools.lock);
    struct gs_pooled *entry = (struct gs_pooled *)gs_map_remove(&pools.allocations, pointer);
    if (entry != NULL && entry->pool != NULL)
        entry->pool->used -= entry->size;
    gs_mutex_unlock(&pools.lock);
    return entry;
}

/* The pool of an allocation that was in no table for a while. It may have been destroyed, and others created since. */
static struct pool *find_again_locked(const struct gs_pooled *entry)
{
    struct pool *pool = (struct pool *)find(&pools.map, (uintptr_t)entry->handle);
    return pool != NULL && pool->id == entry->pool_id ? pool : NULL;
}

void gs_pool_taken(struct gs_pooled *entry, bool freed)
{
    gs_mutex_lock(&pools.lock);
    if (!freed && entry != NULL && find(&pools.allocations, entry->node.key) == NULL) {
        gs_map_insert(&pools.allocations, &entry->node);
        entry->pool = find_again_locked(entry);
        if (entry->pool != NULL)
            entry->pool->used += entry->size;
        entry = NULL;
    }
    gs_mutex_unlock(&pools.lock);
    free(entry);
}

CUmemoryPool gs_pool_of(CUdeviceptr base)
{
    gs_mutex_lock(&pools.lock);
    struct gs_pooled *entry = (struct gs_pooled *)find(&pools.allocations, base);
    CUmemoryPool pool = entry != NULL ? entry->handle : NULL;
    gs_mutex_unlock(&pools.lock);
    return pool;
}

/* Allocates on that device, whichever device is current. */
static CUresult allocate_on(CUdevice device, CUdeviceptr *pointer, size_t size)
{
    CUdevice current;
    CUresult result = GS_REAL(cuCtxGetDevice)(&current);
    if (result != CUDA_SUCCESS || current == device)
        return result != CUDA_SUCCESS ? result : gs_memory_alloc_of_pool(pointer, size);
    CUcontext other = gs_context_on(device, NULL), ignored;
    if (other == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    result = GS_REAL(cuCtxPushCurrent_v2)(other);
    if (result != CUDA_SUCCESS)
        return result;
    result = gs_memory_alloc_of_pool(pointer, size);
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return result;
}

CUresult gs_pool_allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool handle)
{
    CUdevice device;
    CUresult result = CUDA_SUCCESS;
    if (handle == NULL) {
        result = GS_REAL(cuCtxGetDevice)(&device);
        if (result == CUDA_SUCCESS)
            result = GS_REAL(cuDeviceGetMemPool)(&handle, device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    gs_mutex_lock(&pools.lock);
    struct pool *pool = find_locked(handle);
    bool emulated = pool != NULL && pool->emulated;
    bool fits = emulated && (pool->most == 0 || (size <= pool->most && pool->used <= pool->most - size));
    device = emulated ? pool->device : 0;
    gs_mutex_unlock(&pools.lock);
    if (!emulated)
        return CUDA_ERROR_NOT_FOUND;
    if (!fits)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = allocate_on(device, pointer, size);
    struct gs_pooled *entry = result == CUDA_SUCCESS ? calloc(1, sizeof(*entry)) : NULL;
    if (entry == NULL)
        return result;
    gs_mutex_lock(&pools.lock);
    pool = find_locked(handle);
    if (pool != NULL) {
        forget_locked(*pointer); /* the end of its context freed it */
        *entry =
            (struct gs_pooled){.node.key = *pointer, .size = size, .handle = handle, .pool = pool, .pool_id = pool->id};
        gs_map_insert(&pools.allocations, &entry->node);
        pool->used += size;
        if (pool->used > pool->most_used)
            pool->most_used = pool->used;
        entry = NULL;
    }
    gs_mutex_unlock(&pools.lock);
    free(entry);
    return result;
}

/* Calls visit for all allocations. It may remove the allocation that it is given. */
static void each_allocation(void (*visit)(struct gs_pooled *, struct pool *), struct pool *pool)
{
    struct gs_node *node = gs_map_floor(&pools.allocations, UINT64_MAX);
    while (node != NULL) {
        struct gs_node *next = gs_map_floor(&pools.allocations, node->key - 1);
        visit((struct gs_pooled *)node, pool);
        node = next;
    }
}

static void orphan(struct gs_pooled *entry, struct pool *pool)
{
    if (entry->pool == pool)
        entry->pool = NULL;
}

/* The pool is in no table any more, and its handle may belong to another pool. `pool` may be NULL. */
static void retire_locked(struct pool *pool)
{
    if (pool == NULL)
        return;
    each_allocation(orphan, pool);
    gs_memory_count_unevictable(pool->device, -(int64_t)pool->counted);
    free(pool);
}

/* --- The driver's pools --- */

static uint64_t reserved_by(const struct pool *pool)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t reserved = 0;
    GS_REAL(cuMemPoolGetAttribute)((CUmemoryPool)pool->node.key, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    return reserved;
}

CUresult gs_pool_admit(CUmemoryPool handle, size_t size)
{
    CUdevice current;
    if (handle == NULL && (GS_REAL(cuCtxGetDevice)(&current) != CUDA_SUCCESS ||
                           GS_REAL(cuDeviceGetMemPool)(&handle, current) != CUDA_SUCCESS))
        return CUDA_SUCCESS; /* the driver will report what is wrong */
    gs_mutex_lock(&pools.lock);
    struct pool *pool = find_locked(handle);
    bool counted = pool != NULL && !pool->emulated;
    CUdevice device = counted ? pool->device : 0;
    uint64_t id = counted ? pool->id : 0;
    bool fits = counted && pool->counted < reserved_by(pool) + size;
    gs_mutex_unlock(&pools.lock);
    if (!fits)
        return CUDA_SUCCESS;
    CUresult result = gs_memory_reserve_unevictable(device, size);
    if (result != CUDA_SUCCESS)
        return result;
    gs_mutex_lock(&pools.lock);
    pool = (struct pool *)find(&pools.map, (uintptr_t)handle);
    bool same = pool != NULL && pool->id == id;
    if (same)
        pool->counted += size;
    gs_mutex_unlock(&pools.lock);
    if (!same)
        gs_memory_release_unevictable(device, size);
    return CUDA_SUCCESS;
}

void gs_pool_settle(void)
{
    gs_mutex_lock(&pools.lock);
    for (struct gs_node *node = gs_map_floor(&pools.map, UINT64_MAX); node != NULL;
         node = gs_map_floor(&pools.map, node->key - 1)) {
        struct pool *pool = (struct pool *)node;
        if (pool->emulated)
            continue;
        uint64_t reserved = reserved_by(pool);
        gs_memory_count_unevictable(pool->device, (int64_t)(reserved - pool->counted));
        pool->counted = reserved;
    }
    gs_mutex_unlock(&pools.lock);
}

/* --- Hooks --- */

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties)
{
    CUresult result = GS_REAL(cuMemPoolCreate)(handle, properties);
    if (result != CUDA_SUCCESS || !gs_session_attached() || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return result;
    gs_mutex_lock(&pools.lock);
    retire_locked((struct pool *)gs_map_remove(&pools.map, (uintptr_t)*handle));
    struct pool *pool =
        add_locked(*handle, properties->location.id, properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE);
    if (pool != NULL)
        pool->most = properties->maxSize;
    gs_mutex_unlock(&pools.lock);
    return result;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle)
{
    if (!gs_session_attached())
        return GS_REAL(cuMemPoolDestroy)(handle);
    gs_mutex_lock(&pools.lock);
    struct pool *pool = (struct pool *)find(&pools.map, (uintptr_t)handle);
    if (pool != NULL && pool->usual)
        pool = NULL;
    else if (pool != NULL)
        gs_map_remove(&pools.map, (uintptr_t)handle);
    gs_mutex_unlock(&pools.lock);
    CUresult result = GS_REAL(cuMemPoolDestroy)(handle);
    gs_mutex_lock(&pools.lock);
    if (result == CUDA_SUCCESS)
        retire_locked(pool);
    else if (pool != NULL)
        gs_map_insert(&pools.map, &pool->node);
    gs_mutex_unlock(&pools.lock);
    return result;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    CUresult result = GS_REAL(cuMemPoolTrimTo)(handle, keep);
    if (result == CUDA_SUCCESS && gs_session_attached()) {
        gs_memory_reap();
        gs_pool_settle();
    }
    return result;
}

/* Emulated pools keep no unused memory: what is reserved is in use. */
CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    CUresult result = GS_REAL(cuMemPoolGetAttribute)(handle, attribute, value);
    if (result != CUDA_SUCCESS || !gs_session_attached())
        return result;
    gs_mutex_lock(&pools.lock);
    struct pool *pool = find_locked(handle);
    if (pool != NULL && pool->emulated) {
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
            *(cuuint64_t *)value = pool->used;
        else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
            *(cuuint64_t *)value = pool->most_used;
    }
    gs_mutex_unlock(&pools.lock);
    return result;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    CUresult result = GS_REAL(cuMemPoolSetAttribute)(handle, attribute, value);
    if (result != CUDA_SUCCESS || !gs_session_attached() ||
        (attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH && attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH))
        return result;
    gs_mutex_lock(&pools.lock);
    struct pool *pool = find_locked(handle);
    if (pool != NULL)
        pool->most_used = pool->used;
    gs_mutex_unlock(&pools.lock);
    return result;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = GS_REAL(cuMemPoolSetAccess)(handle, access, count);
    if (result != CUDA_SUCCESS || !gs_session_attached())
        return result;
    gs_mutex_lock(&pools.lock);
    struct pool *pool = find_locked(handle);
    bool emulated = pool != NULL && pool->emulated;
    CUdevice device = emulated ? pool->device : 0;
    gs_mutex_unlock(&pools.lock);
    for (size_t i = 0; i < count && emulated; i++)
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].location.id != device)
            gs_peer_set(NULL, device, NULL, access[i].location.id, access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
    return result;
}

void gs_pool_after_fork(void)
{
    gs_mutex_after_fork(&pools.lock);
}

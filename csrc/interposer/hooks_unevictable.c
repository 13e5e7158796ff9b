/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on memory without an address of its own, or that may be shared: the application's own virtual memory
 * management, arrays, exportable pools. It stays on the GPU; its bytes are admitted before they are taken.
 */
#include "unevictable.h"

#include "client.h"
#include "memory.h"
#include "ordered_map.h"
#include "real.h"

#include <pthread.h>
#include <stdlib.h>

struct held {
    struct gs_node node; /* by handle, or by the address of a mapping */
    size_t bytes;
    CUdevice device;
    unsigned references;                 /* of a physical allocation: handles and mappings */
    CUmemGenericAllocationHandle handle; /* of a mapping */
};

static struct {
    pthread_mutex_t lock;
    struct gs_map physical, mappings, arrays, pools;
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct held *find(struct gs_map *map, uint64_t key)
{
    struct gs_node *node = gs_map_floor(map, key);
    return node != NULL && node->key == key ? (struct held *)node : NULL;
}

static void remember(struct gs_map *map, uint64_t key, size_t bytes, CUmemGenericAllocationHandle handle)
{
    struct held *entry = calloc(1, sizeof(*entry));
    CUdevice device = 0;
    GS_REAL(cuCtxGetDevice)(&device);
    if (entry == NULL)
        return;
    *entry = (struct held){.node.key = key, .bytes = bytes, .device = device, .references = 1, .handle = handle};
    pthread_mutex_lock(&held.lock);
    if (find(map, key) == NULL)
        gs_map_insert(map, &entry->node);
    else
        free(entry);
    pthread_mutex_unlock(&held.lock);
}

/* Takes one reference; the last one gives the bytes back. */
static void forget(struct gs_map *map, uint64_t key)
{
    pthread_mutex_lock(&held.lock);
    struct held *entry = find(map, key);
    bool last = entry != NULL && --entry->references == 0;
    if (last)
        gs_map_remove(map, key);
    pthread_mutex_unlock(&held.lock);
    if (!last)
        return;
    gs_memory_unpin(entry->device, entry->bytes);
    free(entry);
}

static void refer(uint64_t handle)
{
    pthread_mutex_lock(&held.lock);
    struct held *entry = find(&held.physical, handle);
    if (entry != NULL)
        entry->references++;
    pthread_mutex_unlock(&held.lock);
}

static void unpin_current(size_t bytes)
{
    CUdevice device;
    if (GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
        gs_memory_unpin(device, bytes);
}

/* --- The application's own virtual memory management --- */

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                             unsigned long long flags)
{
    bool counted =
        gs_client_attached() && properties != NULL && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = counted ? gs_memory_pin(size) : CUDA_SUCCESS;
    /* Without a current context there is no device to count on: the driver's figures show it as foreign use. */
    if (result == CUDA_ERROR_INVALID_CONTEXT)
        counted = false;
    else if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemCreate)(handle, size, properties, flags);
    if (counted && result == CUDA_SUCCESS)
        remember(&held.physical, *handle, size, 0);
    else if (counted)
        unpin_current(size);
    return result;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = GS_REAL(cuMemRelease)(handle);
    if (result == CUDA_SUCCESS)
        forget(&held.physical, handle);
    return result;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = GS_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        refer(*handle);
    return result;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                                CUmemAllocationHandleType type)
{
    /* The exporter's process counts the bytes. */
    return GS_REAL(cuMemImportFromShareableHandle)(handle, shared, type);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
    CUresult result = GS_REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && gs_client_attached()) {
        refer(handle);
        remember(&held.mappings, pointer, size, handle);
    }
    return result;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    CUresult result = GS_REAL(cuMemUnmap)(pointer, size);
    if (result != CUDA_SUCCESS || !gs_client_attached())
        return result;
    /* One call may unmap several mappings. */
    for (CUdeviceptr end = pointer + size; end > pointer;) {
        pthread_mutex_lock(&held.lock);
        struct held *mapping = (struct held *)gs_map_floor(&held.mappings, end - 1);
        if (mapping != NULL && mapping->node.key >= pointer)
            gs_map_remove(&held.mappings, mapping->node.key);
        else
            mapping = NULL;
        pthread_mutex_unlock(&held.lock);
        if (mapping == NULL)
            break;
        end = mapping->node.key;
        forget(&held.physical, mapping->handle);
        free(mapping);
    }
    return result;
}

/* --- Arrays: opaque layout, no address --- */

static size_t format_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default: /* 32-bit formats; block-compressed ones take less */
        return 4;
    }
}

static size_t at_least_one(size_t extent)
{
    return extent != 0 ? extent : 1;
}

static size_t array3d_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor)
{
    return at_least_one(descriptor->Width) * at_least_one(descriptor->Height) * at_least_one(descriptor->Depth) *
           descriptor->NumChannels * format_bytes(descriptor->Format);
}

/* Admits the bytes; `made` then keeps or returns them. */
static CUresult admit(size_t bytes, bool *counted)
{
    *counted = gs_client_attached();
    return *counted ? gs_memory_pin(bytes) : CUDA_SUCCESS;
}

static CUresult made(CUresult result, const void *handle, size_t bytes, bool counted)
{
    if (counted && result == CUDA_SUCCESS)
        remember(&held.arrays, (uintptr_t)handle, bytes, 0);
    else if (counted)
        unpin_current(bytes);
    return result;
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v2 *descriptor)
{
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = descriptor->Width * at_least_one(descriptor->Height) * descriptor->NumChannels *
                   format_bytes(descriptor->Format);
    bool counted;
    CUresult result = admit(bytes, &counted);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuArrayCreate_v2)(array, descriptor);
    return made(result, *array, bytes, counted);
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor)
{
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = array3d_bytes(descriptor);
    bool counted;
    CUresult result = admit(bytes, &counted);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuArray3DCreate_v2)(array, descriptor);
    return made(result, *array, bytes, counted);
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor,
                                        unsigned int levels)
{
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    /* All levels below the first take at most as much again. */
    size_t bytes = array3d_bytes(descriptor) * (levels > 1 ? 2 : 1);
    bool counted;
    CUresult result = admit(bytes, &counted);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    return made(result, *array, bytes, counted);
}

CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    CUresult result = GS_REAL(cuArrayDestroy)(array);
    if (result == CUDA_SUCCESS)
        forget(&held.arrays, (uintptr_t)array);
    return result;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    CUresult result = GS_REAL(cuMipmappedArrayDestroy)(array);
    if (result == CUDA_SUCCESS)
        forget(&held.arrays, (uintptr_t)array);
    return result;
}

/* --- Pools --- */

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = GS_REAL(cuMemPoolCreate)(pool, properties);
    bool forwarded = properties != NULL && (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
                                            properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE);
    if (result == CUDA_SUCCESS && forwarded)
        remember(&held.pools, (uintptr_t)*pool, 0, 0);
    return result;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    forget(&held.pools, (uintptr_t)pool);
    return GS_REAL(cuMemPoolDestroy)(pool);
}

bool gs_pool_is_forwarded(CUmemoryPool pool)
{
    pthread_mutex_lock(&held.lock);
    bool forwarded = find(&held.pools, (uintptr_t)pool) != NULL;
    pthread_mutex_unlock(&held.lock);
    return forwarded;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on arrays: their layout is the driver's secret and they have no address, so they stay on the GPU, counted.
 */
#include "hooks/array.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/failures.h"
#include "loader/real.h"
#include "memory/admission.h"

#include <stdlib.h>

struct array {
    struct gs_node node; /* by handle */
    size_t bytes;
    CUdevice device;
    CUcontext context;
};

static struct {
    struct gs_mutex lock;
    struct gs_map map;
} arrays = {.lock = GS_MUTEX(GS_RANK_ARRAYS)};

/* Bytes of an element of one channel, or of the whole element where the format says how many channels there are. */
static size_t format_bytes(CUarray_format format, unsigned int channels)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2 * (size_t)channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4 * (size_t)channels;
    default: /* no other format takes more for an element; block-compressed ones take less */
        return 8;
    }
}

static size_t at_least_one(size_t extent)
{
    return extent != 0 ? extent : 1;
}

static size_t estimate(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned int levels)
{
    size_t bytes = at_least_one(descriptor->Width) * at_least_one(descriptor->Height) *
                   at_least_one(descriptor->Depth) * format_bytes(descriptor->Format, descriptor->NumChannels);
    /* All levels below the first take at most as much again. */
    return levels > 1 ? 2 * bytes : bytes;
}

/*
 * What the driver would take, asked of an array of the same kind that has no memory of its own. 0: it cannot tell.
 */
static size_t requirement(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned int levels, CUdevice device)
{
    GS_LEAVES_CAPTURES_ALONE;
    CUDA_ARRAY3D_DESCRIPTOR_v2 deferred = *descriptor;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {.size = 0};
    int can = 0;
    if (GS_REAL(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !can)
        return 0;
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    if (levels == 0) {
        CUarray array;
        if (GS_REAL(cuArray3DCreate_v2)(&array, &deferred) != CUDA_SUCCESS)
            return 0;
        if (GS_REAL(cuArrayGetMemoryRequirements)(&requirements, array, device) != CUDA_SUCCESS)
            requirements.size = 0;
        GS_REAL(cuArrayDestroy)(array);
    } else {
        CUmipmappedArray array;
        if (GS_REAL(cuMipmappedArrayCreate)(&array, &deferred, levels) != CUDA_SUCCESS)
            return 0;
        if (GS_REAL(cuMipmappedArrayGetMemoryRequirements)(&requirements, array, device) != CUDA_SUCCESS)
            requirements.size = 0;
        GS_REAL(cuMipmappedArrayDestroy)(array);
    }
    return requirements.size;
}

/* Admits what the array will take. NULL, and CUDA_SUCCESS, if nothing is to be counted. `levels` is 0 for no mipmaps.
 */
static CUresult admit(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned int levels, struct array **entry)
{
    CUdevice device;
    *entry = NULL;
    /* Without memory of their own: what is mapped into them later is counted by itself. */
    if (!gs_session_attached() || (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0 ||
        GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    /* The driver refuses it. Which reason comes first is the driver's affair: some break a capture off. */
    if (gs_context_ask_failure() != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    size_t bytes = requirement(descriptor, levels, device);
    if (bytes == 0)
        bytes = estimate(descriptor, levels);
    *entry = calloc(1, sizeof(**entry));
    if (*entry == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    **entry = (struct array){.bytes = bytes, .device = device};
    GS_REAL(cuCtxGetCurrent)(&(*entry)->context);
    (*entry)->context = gs_context_owner((*entry)->context);
    CUresult result = gs_memory_pin(device, bytes);
    if (result != CUDA_SUCCESS) {
        free(*entry);
        *entry = NULL;
    }
    return result;
}

/* NULL is fine. */
static void forget(struct array *entry)
{
    if (entry != NULL)
        gs_memory_unpin(entry->device, entry->bytes);
    free(entry);
}

static struct array *take(const void *handle)
{
    gs_mutex_lock(&arrays.lock);
    struct array *entry = (struct array *)gs_map_remove(&arrays.map, (uintptr_t)handle);
    gs_mutex_unlock(&arrays.lock);
    return entry;
}

/* An array of that handle that is still known went without our knowledge. */
static void put(struct array *entry)
{
    gs_mutex_lock(&arrays.lock);
    struct array *stale = (struct array *)gs_map_remove(&arrays.map, entry->node.key);
    gs_map_insert(&arrays.map, &entry->node);
    gs_mutex_unlock(&arrays.lock);
    forget(stale);
}

static CUresult made(CUresult result, const void *handle, struct array *entry)
{
    if (entry == NULL)
        return result;
    if (result == CUDA_SUCCESS) {
        entry->node.key = (uintptr_t)handle;
        put(entry);
    } else {
        forget(entry);
    }
    return result;
}

void gs_array_context_ends(CUcontext context)
{
    gs_mutex_lock(&arrays.lock);
    struct array *entry = (struct array *)gs_map_floor(&arrays.map, UINT64_MAX);
    while (entry != NULL) {
        struct array *next = (struct array *)gs_map_floor(&arrays.map, entry->node.key - 1);
        if (entry->context == context) {
            gs_map_remove(&arrays.map, entry->node.key);
            forget(entry);
        }
        entry = next;
    }
    gs_mutex_unlock(&arrays.lock);
}

void gs_array_after_fork(void)
{
    gs_mutex_after_fork(&arrays.lock);
}

CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v2 *descriptor)
{
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR_v2 same = {.Width = descriptor->Width,
                                             .Height = descriptor->Height,
                                             .Format = descriptor->Format,
                                             .NumChannels = descriptor->NumChannels};
    struct array *entry;
    CUresult result = admit(&same, 0, &entry);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuArrayCreate_v2)(array, descriptor);
    return made(result, *array, entry);
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor)
{
    if (array == NULL || descriptor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct array *entry;
    CUresult result = admit(descriptor, 0, &entry);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuArray3DCreate_v2)(array, descriptor);
    return made(result, *array, entry);
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor,
                                        unsigned int levels)
{
    if (array == NULL || descriptor == NULL || levels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct array *entry;
    CUresult result = admit(descriptor, levels, &entry);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    return made(result, *array, entry);
}

/* Its handle may be another's as soon as the driver has it back. */
static CUresult destroyed(CUresult result, struct array *entry)
{
    if (entry != NULL && result != CUDA_SUCCESS)
        put(entry);
    else
        forget(entry);
    return result;
}

CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    struct array *entry = take(array);
    return destroyed(GS_REAL(cuArrayDestroy)(array), entry);
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct array *entry = take(array);
    return destroyed(GS_REAL(cuMipmappedArrayDestroy)(array), entry);
}

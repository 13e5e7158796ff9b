/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hooks on arrays. Only the driver knows the layout of an array, and it has no address. So arrays stay on the GPU and
 * are counted.
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
    /*
     * An array without memory whose size the driver was asked for, or NULL. Destroying an array waits for the context's
     * work, which may wait for this thread. Therefore the probe is destroyed when the application destroys an array,
     * which waits anyway.
     */
    void *probe;
    bool mipmapped;
    struct array *next_spare;
};

static struct {
    struct gs_mutex lock;
    struct gs_map map;
    struct array *spare; /* probes of arrays whose creation failed */
} arrays = {.lock = GS_MUTEX(GS_RANK_ARRAYS)};

/* Bytes of an element of one channel, or of the whole element if the format includes the number of channels. */
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
    default: /* no other format has larger elements; block-compressed ones are smaller */
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
    /* Together, all levels below the first take at most as much as the first. */
    return levels > 1 ? 2 * bytes : bytes;
}

/* How much the driver would allocate, asked for an array of the same kind without memory. 0: unknown. */
static size_t requirement(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned int levels, struct array *entry)
{
    GS_LEAVES_CAPTURES_ALONE;
    CUDA_ARRAY3D_DESCRIPTOR_v2 deferred = *descriptor;
    CUDA_ARRAY_MEMORY_REQUIREMENTS requirements = {.size = 0};
    CUdevice device = entry->device;
    int can = 0;
    if (GS_REAL(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !can)
        return 0;
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    entry->mipmapped = levels != 0;
    CUresult result;
    if (entry->mipmapped) {
        CUmipmappedArray array;
        if (GS_REAL(cuMipmappedArrayCreate)(&array, &deferred, levels) != CUDA_SUCCESS)
            return 0;
        entry->probe = array;
        result = GS_REAL(cuMipmappedArrayGetMemoryRequirements)(&requirements, array, device);
    } else {
        CUarray array;
        if (GS_REAL(cuArray3DCreate_v2)(&array, &deferred) != CUDA_SUCCESS)
            return 0;
        entry->probe = array;
        result = GS_REAL(cuArrayGetMemoryRequirements)(&requirements, array, device);
    }
    return result == CUDA_SUCCESS ? requirements.size : 0;
}

static void destroy_probe(const struct array *entry)
{
    GS_LEAVES_CAPTURES_ALONE;
    if (entry->probe == NULL)
        return;
    if (entry->mipmapped)
        GS_REAL(cuMipmappedArrayDestroy)((CUmipmappedArray)entry->probe);
    else
        GS_REAL(cuArrayDestroy)((CUarray)entry->probe);
}

/* For an array that was not created, and is no longer counted. */
static void set_aside(struct array *entry)
{
    if (entry->probe == NULL) {
        free(entry);
        return;
    }
    gs_mutex_lock(&arrays.lock);
    entry->next_spare = arrays.spare;
    arrays.spare = entry;
    gs_mutex_unlock(&arrays.lock);
}

/* Removes the probes of a context from the list. */
static struct array *take_spare(CUcontext context)
{
    struct array *taken = NULL;
    gs_mutex_lock(&arrays.lock);
    for (struct array **link = &arrays.spare; *link != NULL;) {
        struct array *entry = *link;
        if (entry->context != context) {
            link = &entry->next_spare;
            continue;
        }
        *link = entry->next_spare;
        entry->next_spare = taken;
        taken = entry;
    }
    gs_mutex_unlock(&arrays.lock);
    return taken;
}

static void drop_spare(CUcontext context, bool lives)
{
    for (struct array *entry = take_spare(context), *next; entry != NULL; entry = next) {
        next = entry->next_spare;
        if (lives)
            destroy_probe(entry);
        free(entry);
    }
}

/*
 * Admits the array's memory. Returns NULL with CUDA_SUCCESS if nothing has to be counted. `levels` is 0 without
 * mipmaps.
 */
static CUresult admit(const CUDA_ARRAY3D_DESCRIPTOR_v2 *descriptor, unsigned int levels, struct array **entry)
{
    CUdevice device;
    *entry = NULL;
    /* These arrays have no memory of their own. What is mapped into them later is counted separately. */
    if (!gs_session_attached() || (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0 ||
        GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    /* The driver refuses the call. It also chooses the error, because some errors invalidate a capture. */
    if (gs_context_ask_failure() != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    struct array *counted = calloc(1, sizeof(*counted));
    if (counted == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    counted->device = device;
    GS_REAL(cuCtxGetCurrent)(&counted->context);
    counted->context = gs_context_owner(counted->context);
    counted->bytes = requirement(descriptor, levels, counted);
    if (counted->bytes == 0)
        counted->bytes = estimate(descriptor, levels);
    CUresult result = gs_memory_reserve_unevictable(device, counted->bytes);
    if (result == CUDA_SUCCESS)
        *entry = counted;
    else
        set_aside(counted);
    return result;
}

/* `entry` may be NULL. */
static void forget(struct array *entry)
{
    if (entry != NULL)
        gs_memory_release_unevictable(entry->device, entry->bytes);
    free(entry);
}

static struct array *take(const void *handle)
{
    gs_mutex_lock(&arrays.lock);
    struct array *entry = (struct array *)gs_map_remove(&arrays.map, (uintptr_t)handle);
    gs_mutex_unlock(&arrays.lock);
    return entry;
}

/* If an array with that handle is still in the table, it was destroyed without the interposer's knowledge. */
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
        gs_memory_release_unevictable(entry->device, entry->bytes);
        set_aside(entry);
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
    drop_spare(context, false);
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

/* As soon as the driver has the handle back, it may belong to another array. */
static CUresult destroyed(CUresult result, struct array *entry)
{
    if (entry != NULL && result != CUDA_SUCCESS) {
        put(entry);
        return result;
    }
    if (entry != NULL) {
        destroy_probe(entry);
        drop_spare(entry->context, true);
    }
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

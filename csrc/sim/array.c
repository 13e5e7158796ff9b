/* SPDX-License-Identifier: BSD-3-Clause */
#include "array.h"

#include "capture.h"
#include "context.h"
#include "contexts.h"
#include "inject.h"
#include "memory.h"
#include "ranges.h"

#include <stdlib.h>
#include <string.h>

#define ARRAY_MAGIC UINT64_C(0x53494d4152525931)
#define MIPMAP_MAGIC UINT64_C(0x53494d4d49504d31)
#define MAX_LEVELS 18
#define PITCH 64
#define ALIGNMENT 65536

struct array {
    uint64_t magic;
    struct array *next; /* in the pool of recycled arrays, so that a stale handle is recognised */
    struct sim_context *context;
    struct sim_array_view view;
    bool level; /* one level of a mipmapped array, which must not be destroyed by itself */
};

struct mipmap {
    uint64_t magic;
    struct mipmap *next;
    unsigned count;
    struct array *levels[MAX_LEVELS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct array *arrays;
static struct mipmap *mipmaps;

unsigned sim_format_size(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    const unsigned known = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                           CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_DEFERRED_MAPPING;
    SIM_REQUIRE(d->Width > 0 && (d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4));
    if (sim_format_size(d->Format) == 0 || (d->Flags & ~known) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    SIM_REQUIRE(d->Height > 0 || d->Depth == 0 || (d->Flags & CUDA_ARRAY3D_LAYERED) != 0);
    SIM_REQUIRE((d->Flags & CUDA_ARRAY3D_LAYERED) == 0 || d->Depth > 0);
    SIM_REQUIRE((d->Flags & CUDA_ARRAY3D_CUBEMAP) == 0 || (d->Width == d->Height && d->Depth > 0 && d->Depth % 6 == 0));
    SIM_REQUIRE(d->Width <= 131072 && d->Height <= 65536 && d->Depth <= 16384);
    return CUDA_SUCCESS;
}

/* An array with deferred mapping has no memory. The simulated driver cannot map memory into it later. */
static bool is_deferred(const struct sim_array_view *view)
{
    return (view->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
}

static CUresult array_new(struct array **out, const CUDA_ARRAY3D_DESCRIPTOR *d, bool level)
{
    SIM_ENTER_CONTEXT(context);
    struct sim_array_view view = {.width = d->Width,
                                  .height = d->Height > 0 ? d->Height : 1,
                                  .depth = d->Depth > 0 ? d->Depth : 1,
                                  .element = d->NumChannels * sim_format_size(d->Format),
                                  .descriptor = *d};
    view.pitch = (view.width * view.element + PITCH - 1) / PITCH * PITCH;
    view.slice = view.pitch * view.height;
    if (!is_deferred(&view))
        SIM_TRY(sim_memory_allocate(context, SIM_RANGE_ARRAY, view.slice * view.depth, &view.base));
    pthread_mutex_lock(&lock);
    struct array *array = arrays;
    if (array != NULL)
        arrays = array->next;
    pthread_mutex_unlock(&lock);
    if (array == NULL)
        array = malloc(sizeof *array);
    if (array == NULL) {
        if (!is_deferred(&view))
            sim_memory_free(view.base);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *array = (struct array){ARRAY_MAGIC, NULL, context, view, level};
    *out = array;
    return CUDA_SUCCESS;
}

static CUresult find(CUarray handle, struct array **array)
{
    SIM_ENTER();
    *array = (struct array *)handle;
    if (handle == NULL || (*array)->magic != ARRAY_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    struct sim_context *context;
    return sim_context_resolve((CUcontext)(*array)->context, &context);
}

static void array_free(struct array *array)
{
    struct array *alive;
    if (find((CUarray)array, &alive) == CUDA_SUCCESS && !is_deferred(&array->view))
        sim_memory_free(array->view.base);
    pthread_mutex_lock(&lock);
    array->magic = 0;
    array->next = arrays;
    arrays = array;
    pthread_mutex_unlock(&lock);
}

CUresult sim_array_view(CUarray handle, struct sim_array_view *view)
{
    struct array *array;
    SIM_TRY(find(handle, &array));
    SIM_REQUIRE(!is_deferred(&array->view));
    *view = array->view;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    SIM_INJECT(cuArray3DCreate_v2);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && descriptor != NULL);
    SIM_TRY(check(descriptor));
    SIM_TRY(sim_capture_check_unsafe());
    return array_new((struct array **)out, descriptor, false);
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
    SIM_INJECT(cuArrayCreate_v2);
    SIM_ENTER();
    SIM_REQUIRE(d != NULL);
    return cuArray3DCreate_v2(
        out, &(CUDA_ARRAY3D_DESCRIPTOR){
                 .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels});
}

CUresult cuArrayDestroy(CUarray handle)
{
    SIM_INJECT(cuArrayDestroy);
    struct array *array;
    SIM_TRY(find(handle, &array));
    if (array->level)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_context_error(array->context));
    SIM_TRY(sim_capture_check_unsafe());
    sim_context_drain(array->context);
    array_free(array);
    return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray handle)
{
    struct array *array;
    SIM_TRY(find(handle, &array));
    SIM_REQUIRE(descriptor != NULL);
    *descriptor = array->view.descriptor;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray handle)
{
    struct array *array;
    SIM_TRY(find(handle, &array));
    const CUDA_ARRAY3D_DESCRIPTOR *d = &array->view.descriptor;
    SIM_REQUIRE(descriptor != NULL && d->Depth == 0);
    *descriptor = (CUDA_ARRAY_DESCRIPTOR){
        .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
    return CUDA_SUCCESS;
}

static CUresult require(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, struct array *const *levels, unsigned count)
{
    SIM_REQUIRE(requirements != NULL && count > 0 && is_deferred(&levels[0]->view));
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.alignment = ALIGNMENT};
    for (unsigned i = 0; i < count; i++)
        requirements->size += levels[i]->view.slice * levels[i]->view.depth;
    return CUDA_SUCCESS;
}

/* Only for arrays with deferred mapping. */
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray handle, CUdevice device)
{
    struct array *array;
    (void)device;
    SIM_TRY(find(handle, &array));
    return require(requirements, &array, 1);
}

/* Only for sparse arrays. */
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray handle)
{
    struct array *array;
    (void)properties;
    SIM_TRY(find(handle, &array));
    return CUDA_ERROR_INVALID_VALUE;
}

/* Only for arrays with planes. */
CUresult cuArrayGetPlane(CUarray *plane, CUarray handle, unsigned index)
{
    struct array *array;
    (void)plane;
    (void)index;
    SIM_TRY(find(handle, &array));
    return CUDA_ERROR_INVALID_VALUE;
}

static size_t half(size_t size, unsigned level)
{
    return size == 0 ? 0 : size >> level > 0 ? size >> level : 1;
}

static unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t most = d->Width > d->Height ? d->Width : d->Height;
    if ((d->Flags & CUDA_ARRAY3D_LAYERED) == 0 && d->Depth > most)
        most = d->Depth;
    unsigned levels = 1;
    while (most >> levels > 0 && levels < MAX_LEVELS)
        levels++;
    return levels;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    SIM_INJECT(cuMipmappedArrayCreate);
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && d != NULL && levels > 0);
    SIM_TRY(check(d));
    SIM_TRY(sim_capture_check_unsafe());
    pthread_mutex_lock(&lock);
    struct mipmap *mipmap = mipmaps;
    if (mipmap != NULL)
        mipmaps = mipmap->next;
    pthread_mutex_unlock(&lock);
    if (mipmap == NULL)
        mipmap = malloc(sizeof *mipmap);
    if (mipmap == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mipmap = (struct mipmap){.magic = MIPMAP_MAGIC};
    unsigned most = most_levels(d);
    CUresult result = CUDA_SUCCESS;
    for (unsigned level = 0; level < levels && level < most && result == CUDA_SUCCESS; level++) {
        CUDA_ARRAY3D_DESCRIPTOR own = *d;
        own.Width = half(d->Width, level);
        own.Height = half(d->Height, level);
        if ((d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
            own.Depth = half(d->Depth, level);
        result = array_new(&mipmap->levels[level], &own, true);
        mipmap->count += result == CUDA_SUCCESS;
    }
    *out = (CUmipmappedArray)mipmap;
    if (result != CUDA_SUCCESS)
        cuMipmappedArrayDestroy(*out);
    return result;
}

static CUresult find_mipmap(CUmipmappedArray handle, struct mipmap **mipmap)
{
    SIM_ENTER();
    *mipmap = (struct mipmap *)handle;
    return handle != NULL && (*mipmap)->magic == MIPMAP_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_mipmap_view(CUmipmappedArray handle, unsigned level, struct sim_array_view *view)
{
    struct mipmap *mipmap;
    SIM_TRY(find_mipmap(handle, &mipmap));
    SIM_REQUIRE(level < mipmap->count);
    return sim_array_view((CUarray)mipmap->levels[level], view);
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned level)
{
    struct mipmap *mipmap;
    SIM_TRY(find_mipmap(handle, &mipmap));
    SIM_REQUIRE(out != NULL && level < mipmap->count);
    *out = (CUarray)mipmap->levels[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
    SIM_INJECT(cuMipmappedArrayDestroy);
    struct mipmap *mipmap;
    SIM_TRY(find_mipmap(handle, &mipmap));
    if (mipmap->count > 0)
        sim_context_drain(mipmap->levels[0]->context);
    for (unsigned i = 0; i < mipmap->count; i++)
        array_free(mipmap->levels[i]);
    pthread_mutex_lock(&lock);
    mipmap->magic = 0;
    mipmap->next = mipmaps;
    mipmaps = mipmap;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray handle,
                                               CUdevice device)
{
    struct mipmap *mipmap;
    (void)device;
    SIM_TRY(find_mipmap(handle, &mipmap));
    return require(requirements, mipmap->levels, mipmap->count);
}

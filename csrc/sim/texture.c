/* SPDX-License-Identifier: BSD-3-Clause */
/* Texture and surface objects. A handle is the address of a description that device code reads (kernel_abi.h). */
#include "array.h"
#include "context.h"
#include "kernel_abi.h"
#include "ranges.h"

#include <stdlib.h>
#include <string.h>

struct object {
    struct gpushare_sim_texture view; /* the target of the handle */
    struct object *next;              /* in the pool of recycled objects */
    unsigned magic;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC resource_view;
    bool has_resource_view;
};

enum { TEXTURE_MAGIC = 0x53545831, SURFACE_MAGIC = 0x53535831 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *pool;

static struct object *object_new(unsigned magic)
{
    pthread_mutex_lock(&lock);
    struct object *object = pool;
    if (object != NULL)
        pool = object->next;
    pthread_mutex_unlock(&lock);
    if (object == NULL)
        object = malloc(sizeof *object);
    if (object != NULL)
        *object = (struct object){.magic = magic};
    return object;
}

static void object_free(struct object *object)
{
    pthread_mutex_lock(&lock);
    memset(&object->view, 0, sizeof object->view); /* a kernel that still uses it faults */
    object->magic = 0;
    object->next = pool;
    pool = object;
    pthread_mutex_unlock(&lock);
}

static CUresult find(unsigned long long handle, unsigned magic, struct object **object)
{
    SIM_ENTER();
    *object = (struct object *)(uintptr_t)handle;
    return handle != 0 && (*object)->magic == magic ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void set_level(struct gpushare_sim_texture *out, unsigned level, const struct sim_array_view *view)
{
    out->levels[level] =
        (struct gpushare_sim_level){(char *)(uintptr_t)view->base, (unsigned)view->width, (unsigned)view->height,
                                    (unsigned)view->depth,         view->pitch,           view->slice};
    out->level_count = level + 1;
    out->format = view->descriptor.Format;
    out->channels = view->descriptor.NumChannels;
    out->channel_size = sim_format_size(view->descriptor.Format);
    out->surface = (view->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) != 0;
}

static CUresult set_memory(struct gpushare_sim_texture *out, CUdeviceptr base, CUarray_format format, unsigned channels,
                           size_t width, size_t height, size_t pitch)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    bool device = sim_range_is_device(sim_range_find(base));
    pthread_rwlock_unlock(&sim_ranges_lock);
    unsigned element = channels * sim_format_size(format);
    SIM_REQUIRE(device && element > 0 && (channels == 1 || channels == 2 || channels == 4) && width > 0);
    SIM_REQUIRE(base % 512 == 0 && pitch % 32 == 0 && pitch >= width * element);
    out->levels[0] =
        (struct gpushare_sim_level){(char *)(uintptr_t)base, (unsigned)width, (unsigned)height, 1, pitch, 0};
    out->level_count = 1;
    out->format = format;
    out->channels = channels;
    out->channel_size = sim_format_size(format);
    return CUDA_SUCCESS;
}

static CUresult set_resource(struct gpushare_sim_texture *out, const CUDA_RESOURCE_DESC *r)
{
    struct sim_array_view view;
    SIM_REQUIRE(r->flags == 0);
    switch (r->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        SIM_TRY(sim_array_view(r->res.array.hArray, &view));
        set_level(out, 0, &view);
        return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        SIM_TRY(sim_mipmap_view(r->res.mipmap.hMipmappedArray, 0, &view));
        for (unsigned level = 0; level < GPUSHARE_SIM_LEVELS; level++)
            if (sim_mipmap_view(r->res.mipmap.hMipmappedArray, level, &view) == CUDA_SUCCESS)
                set_level(out, level, &view);
        return CUDA_SUCCESS;
    case CU_RESOURCE_TYPE_LINEAR: {
        unsigned element = r->res.linear.numChannels * sim_format_size(r->res.linear.format);
        SIM_REQUIRE(element > 0 && r->res.linear.sizeInBytes >= element);
        size_t width = r->res.linear.sizeInBytes / element;
        out->linear = 1;
        return set_memory(out, r->res.linear.devPtr, r->res.linear.format, r->res.linear.numChannels, width, 1,
                          (width * element + 31) / 32 * 32);
    }
    case CU_RESOURCE_TYPE_PITCH2D:
        SIM_REQUIRE(r->res.pitch2D.height > 0);
        return set_memory(out, r->res.pitch2D.devPtr, r->res.pitch2D.format, r->res.pitch2D.numChannels,
                          r->res.pitch2D.width, r->res.pitch2D.height, r->res.pitch2D.pitchInBytes);
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_integer(unsigned format)
{
    return format != CU_AD_FORMAT_FLOAT && format != CU_AD_FORMAT_HALF;
}

static CUresult set_texture(struct gpushare_sim_texture *out, const CUDA_TEXTURE_DESC *t)
{
    for (unsigned i = 0; i < 3; i++) {
        SIM_REQUIRE((unsigned)t->addressMode[i] <= CU_TR_ADDRESS_MODE_BORDER);
        out->address[i] = t->addressMode[i];
    }
    SIM_REQUIRE((unsigned)t->filterMode <= CU_TR_FILTER_MODE_LINEAR);
    out->filter = t->filterMode;
    out->normalized = (t->flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
    out->as_integer = is_integer(out->format) &&
                      ((t->flags & CU_TRSF_READ_AS_INTEGER) != 0 || sim_format_size((CUarray_format)out->format) == 4);
    memcpy(out->border, t->borderColor, sizeof out->border);
    /* Only values that are read as floating-point numbers can be filtered. */
    SIM_REQUIRE(!(out->filter == CU_TR_FILTER_MODE_LINEAR && out->as_integer));
    return CUDA_SUCCESS;
}

static CUresult texture_new(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                            const CUDA_RESOURCE_VIEW_DESC *view)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(out != NULL && resource != NULL && texture != NULL);
    struct object *object = object_new(TEXTURE_MAGIC);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->resource = *resource;
    object->texture = *texture;
    if (view != NULL) {
        object->resource_view = *view;
        object->has_resource_view = true;
    }
    CUresult result = set_resource(&object->view, resource);
    if (result == CUDA_SUCCESS)
        result = set_texture(&object->view, texture);
    if (result != CUDA_SUCCESS) {
        object_free(object);
        return result;
    }
    *out = (CUtexObject)(uintptr_t)object;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *texture,
                           const CUDA_RESOURCE_VIEW_DESC *view)
{
    /* Views with another format, or of a part of the resource, are not simulated. */
    return view != NULL && view->format != CU_RES_VIEW_FORMAT_NONE ? CUDA_ERROR_NOT_SUPPORTED
                                                                   : texture_new(out, resource, texture, view);
}

CUresult cuTexObjectDestroy(CUtexObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, TEXTURE_MAGIC, &object));
    object_free(object);
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, TEXTURE_MAGIC, &object));
    SIM_REQUIRE(resource != NULL);
    *resource = object->resource;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *texture, CUtexObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, TEXTURE_MAGIC, &object));
    SIM_REQUIRE(texture != NULL);
    *texture = object->texture;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, TEXTURE_MAGIC, &object));
    SIM_REQUIRE(view != NULL && object->has_resource_view);
    *view = object->resource_view;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
    SIM_ENTER_CONTEXT(context);
    (void)context;
    SIM_REQUIRE(out != NULL && resource != NULL && resource->resType == CU_RESOURCE_TYPE_ARRAY);
    struct object *object = object_new(SURFACE_MAGIC);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->resource = *resource;
    CUresult result = set_resource(&object->view, resource);
    if (result == CUDA_SUCCESS && !object->view.surface)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
        object_free(object);
        return result;
    }
    *out = (CUsurfObject)(uintptr_t)object;
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, SURFACE_MAGIC, &object));
    object_free(object);
    return CUDA_SUCCESS;
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject handle)
{
    struct object *object;
    SIM_TRY(find(handle, SURFACE_MAGIC, &object));
    SIM_REQUIRE(resource != NULL);
    *resource = object->resource;
    return CUDA_SUCCESS;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies and fills. */
#include "copy.h"
#include "array.h"
#include "base/clock.h"
#include "capture.h"
#include "context.h"
#include "counters.h"
#include "fault.h"
#include "managed.h"
#include "ranges.h"
#include "segment/layout.h"
#include "vmm.h"

#include <string.h>

enum side { HOST, DEVICE, EITHER };

static struct sim_copy linear(uint64_t to, uint64_t from, size_t size)
{
    return (struct sim_copy){.to = to, .from = from, .width = size, .height = 1, .depth = 1};
}

static void copy_now(void *argument)
{
    const struct sim_copy *copy = argument;
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove((void *)(uintptr_t)(copy->to + z * copy->to_slice + y * copy->to_pitch),
                    (const void *)(uintptr_t)(copy->from + z * copy->from_slice + y * copy->from_pitch), copy->width);
}

static bool is_device(uint64_t address)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    bool device = sim_address_is_device(address);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return device;
}

/* Whether it is device memory, or page-locked host memory. */
static bool is_known(uint64_t address)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    bool known = sim_range_find(address) != NULL;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return known;
}

/* The checks when the driver looks up memory: the whole range in a reservation must be mapped. */
static bool is_there(uint64_t address, uint64_t size, enum side side)
{
    if (side == HOST)
        return true;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    const struct sim_range *range = sim_range_find(address);
    bool there =
        range == NULL ? side == EITHER : range->kind != SIM_RANGE_RESERVATION || sim_mapping_covers(address, size);
    if (sim_config.strict && range != NULL && (range->kind == SIM_RANGE_DEVICE || range->kind == SIM_RANGE_POOL))
        there = !range->leaving && address - range->base <= range->size && size <= range->base + range->size - address;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return there;
}

/* The distance from the first byte to the last. */
static uint64_t extent(const struct sim_copy *copy, size_t pitch, size_t slice)
{
    return (copy->depth - 1) * slice + (copy->height - 1) * pitch + copy->width;
}

static CUresult run_copy(struct sim_context *context, struct sim_op *op)
{
    struct sim_copy *copy = (struct sim_copy *)op->payload;
    uint64_t bytes = copy->width * copy->height * copy->depth;
    if (bytes == 0)
        return CUDA_SUCCESS;
    bool from_device = is_device(copy->from), to_device = is_device(copy->to);
    uint64_t until = 0;
    if (from_device != to_device) {
        uint64_t host = to_device ? copy->from : copy->to;
        until = sim_engine_use(context->device, to_device ? SIM_ENGINE_TO_DEVICE : SIM_ENGINE_TO_HOST, bytes,
                               is_known(host) ? sim_config.bandwidth : sim_config.pageable_bandwidth);
        __atomic_add_fetch(to_device ? &sim_counters_now.copied_in : &sim_counters_now.copied_out, bytes,
                           __ATOMIC_RELAXED);
    }
    sim_managed_touch_bytes(context->device, copy->from, extent(copy, copy->from_pitch, copy->from_slice));
    sim_managed_touch_bytes(context->device, copy->to, extent(copy, copy->to_pitch, copy->to_slice));
    CUresult result = sim_fault_guard(copy_now, copy);
    sim_sleep_until(until);
    return result;
}

struct sim_op *sim_op_copy(const struct sim_copy *copy)
{
    struct sim_op *op = sim_op_new(SIM_OP_COPY, sizeof *copy, run_copy);
    if (op != NULL)
        *(struct sim_copy *)op->payload = *copy;
    return op;
}

static void set_now(void *argument)
{
    const struct sim_set *set = argument;
    for (size_t y = 0; y < set->height; y++) {
        unsigned char *row = (unsigned char *)(uintptr_t)(set->to + y * set->pitch);
        if (set->element == 1)
            memset(row, (int)set->value, set->width);
        else if (set->element == 2)
            for (size_t x = 0; x < set->width; x++)
                ((uint16_t *)(void *)row)[x] = (uint16_t)set->value;
        else
            for (size_t x = 0; x < set->width; x++)
                ((uint32_t *)(void *)row)[x] = set->value;
    }
}

static CUresult run_set(struct sim_context *context, struct sim_op *op)
{
    struct sim_set *set = (struct sim_set *)op->payload;
    sim_managed_touch_bytes(context->device, set->to, (set->height - 1) * set->pitch + set->width * set->element);
    return sim_fault_guard(set_now, set);
}

struct sim_op *sim_op_set(const struct sim_set *set)
{
    struct sim_op *op = sim_op_new(SIM_OP_SET, sizeof *set, run_set);
    if (op != NULL)
        *(struct sim_set *)op->payload = *set;
    return op;
}

enum mode { SYNCHRONOUS, ASYNCHRONOUS };

static CUresult submit(struct sim_stream *stream, struct sim_op *op, enum mode mode)
{
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mode == ASYNCHRONOUS)
        return sim_stream_submit(stream, op, NULL);
    CUresult allowed = sim_stream_check_synchronize(stream, true);
    if (allowed == CUDA_SUCCESS && !sim_config.strict)
        allowed = sim_capture_check_unsafe();
    if (allowed != CUDA_SUCCESS) {
        sim_op_release(op);
        return allowed;
    }
    return sim_stream_run(stream, op);
}

static bool are_there(const struct sim_copy *copy, enum side to, enum side from)
{
    return is_there(copy->to, extent(copy, copy->to_pitch, copy->to_slice), to) &&
           is_there(copy->from, extent(copy, copy->from_pitch, copy->from_slice), from);
}

static bool is_set_there(const struct sim_set *set)
{
    return is_there(set->to, (set->height - 1) * set->pitch + set->width * set->element, DEVICE);
}

static CUresult copy_checked(const struct sim_copy *copy, enum side to, enum side from, CUstream handle,
                             enum sim_stream_default meant, enum mode mode)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
        return CUDA_SUCCESS;
    SIM_REQUIRE(copy->to != 0 && copy->from != 0);
    SIM_REQUIRE(to != DEVICE || is_known(copy->to));
    SIM_REQUIRE(from != DEVICE || is_known(copy->from));
    SIM_REQUIRE((stream->capture == NULL && !sim_config.strict) || are_there(copy, to, from));
    /* The driver has read pageable memory before it returns, and has written it when it returns. */
    if (mode == ASYNCHRONOUS && stream->capture == NULL &&
        ((to != DEVICE && !is_known(copy->to)) || (from != DEVICE && !is_known(copy->from)))) {
        struct sim_context *ignored;
        if (sim_context_current != NULL)
            SIM_TRY(sim_context_resolve(NULL, &ignored));
        return sim_stream_run(stream, sim_op_copy(copy));
    }
    return submit(stream, sim_op_copy(copy), mode);
}

static CUresult copy_linear(uint64_t to_address, enum side to, uint64_t from_address, enum side from, size_t size,
                            CUstream stream, enum sim_stream_default meant, enum mode mode)
{
    struct sim_copy copy = linear(to_address, from_address, size);
    return copy_checked(&copy, to, from, stream, meant, mode);
}

/* The driver copies between all devices, with or without peer access. */
static CUresult copy_peer(uint64_t to, CUcontext to_context, uint64_t from, CUcontext from_context, size_t size,
                          CUstream stream, enum sim_stream_default meant, enum mode mode)
{
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(to_context, &context));
    SIM_TRY(sim_context_resolve(from_context, &context));
    return copy_linear(to, DEVICE, from, DEVICE, size, stream, meant, mode);
}

#define AT(pointer) ((uint64_t)(uintptr_t)(pointer))

SIM_PAIR(cuMemcpy, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size),
         copy_linear(to, EITHER, from, EITHER, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr to, const void *from, size_t size),
         copy_linear(to, DEVICE, AT(from), HOST, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyDtoH_v2, _ptds, (void *to, CUdeviceptr from, size_t size),
         copy_linear(AT(to), HOST, from, DEVICE, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr to, CUdeviceptr from, size_t size),
         copy_linear(to, DEVICE, from, DEVICE, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyPeer, _ptds,
         (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size),
         copy_peer(to, to_context, from, from_context, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
         copy_linear(to, EITHER, from, EITHER, size, stream, meant, ASYNCHRONOUS))
SIM_PAIR(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
         copy_linear(to, DEVICE, AT(from), HOST, size, stream, meant, ASYNCHRONOUS))
SIM_PAIR(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t size, CUstream stream),
         copy_linear(AT(to), HOST, from, DEVICE, size, stream, meant, ASYNCHRONOUS))
SIM_PAIR(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
         copy_linear(to, DEVICE, from, DEVICE, size, stream, meant, ASYNCHRONOUS))
SIM_PAIR(cuMemcpyPeerAsync, _ptsz,
         (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size, CUstream stream),
         copy_peer(to, to_context, from, from_context, size, stream, meant, ASYNCHRONOUS))

CUresult sim_copy_submit(const struct sim_copy *copy, CUstream stream, enum sim_stream_default meant, bool synchronous)
{
    return copy_checked(copy, EITHER, EITHER, stream, meant, synchronous ? SYNCHRONOUS : ASYNCHRONOUS);
}

/* One end of a 2D or 3D copy, as described in the call. */
struct end {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z;       /* in bytes, rows, slices */
    size_t pitch, height; /* 0: as in the copy */
};

struct place {
    uint64_t address;
    enum side side;
    size_t pitch, slice;
};

static CUresult find_in_array(const struct end *end, const struct sim_copy *copy, struct place *place)
{
    struct sim_array_view view;
    SIM_TRY(sim_array_view(end->array, &view));
    SIM_REQUIRE(end->x + copy->width <= view.width * view.element && end->y + copy->height <= view.height &&
                end->z + copy->depth <= view.depth && end->x % view.element == 0 && copy->width % view.element == 0);
    *place =
        (struct place){view.base + end->z * view.slice + end->y * view.pitch + end->x, DEVICE, view.pitch, view.slice};
    return CUDA_SUCCESS;
}

static CUresult find_end(const struct end *end, const struct sim_copy *copy, struct place *place)
{
    if (end->type == CU_MEMORYTYPE_ARRAY)
        return find_in_array(end, copy, place);
    SIM_REQUIRE(end->type == CU_MEMORYTYPE_HOST || end->type == CU_MEMORYTYPE_DEVICE ||
                end->type == CU_MEMORYTYPE_UNIFIED);
    place->side = end->type == CU_MEMORYTYPE_HOST ? HOST : end->type == CU_MEMORYTYPE_DEVICE ? DEVICE : EITHER;
    place->pitch = end->pitch != 0 ? end->pitch : copy->width;
    place->slice = place->pitch * (end->height != 0 ? end->height : copy->height);
    SIM_REQUIRE(place->pitch >= copy->width);
    place->address = (end->type == CU_MEMORYTYPE_HOST ? AT(end->host) : end->device) + end->z * place->slice +
                     end->y * place->pitch + end->x;
    return CUDA_SUCCESS;
}

static CUresult find_ends(const struct end *to, const struct end *from, struct sim_copy *copy, enum side *to_side,
                          enum side *from_side)
{
    struct place place;
    SIM_TRY(find_end(to, copy, &place));
    copy->to = place.address;
    copy->to_pitch = place.pitch;
    copy->to_slice = place.slice;
    *to_side = place.side;
    SIM_TRY(find_end(from, copy, &place));
    copy->from = place.address;
    copy->from_pitch = place.pitch;
    copy->from_slice = place.slice;
    *from_side = place.side;
    return CUDA_SUCCESS;
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream stream, enum sim_stream_default meant, enum mode mode)
{
    SIM_ENTER();
    SIM_REQUIRE(c != NULL);
    struct sim_copy copy = {.width = c->WidthInBytes, .height = c->Height, .depth = 1};
    const struct end to = {.type = c->dstMemoryType,
                           .host = c->dstHost,
                           .device = c->dstDevice,
                           .array = c->dstArray,
                           .x = c->dstXInBytes,
                           .y = c->dstY,
                           .pitch = c->dstPitch};
    const struct end from = {.type = c->srcMemoryType,
                             .host = c->srcHost,
                             .device = c->srcDevice,
                             .array = c->srcArray,
                             .x = c->srcXInBytes,
                             .y = c->srcY,
                             .pitch = c->srcPitch};
    enum side to_side, from_side;
    SIM_TRY(find_ends(&to, &from, &copy, &to_side, &from_side));
    return copy_checked(&copy, to_side, from_side, stream, meant, mode);
}

SIM_PAIR(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy_2d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy_2d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
         copy_2d(copy, stream, meant, ASYNCHRONOUS))

static CUresult read_3d(const CUDA_MEMCPY3D *c, struct sim_copy *copy, enum side *to_side, enum side *from_side)
{
    SIM_ENTER();
    SIM_REQUIRE(c != NULL && c->srcLOD == 0 && c->dstLOD == 0);
    *copy = (struct sim_copy){.width = c->WidthInBytes, .height = c->Height, .depth = c->Depth};
    const struct end to = {.type = c->dstMemoryType,
                           .host = c->dstHost,
                           .device = c->dstDevice,
                           .array = c->dstArray,
                           .x = c->dstXInBytes,
                           .y = c->dstY,
                           .z = c->dstZ,
                           .pitch = c->dstPitch,
                           .height = c->dstHeight};
    const struct end from = {.type = c->srcMemoryType,
                             .host = c->srcHost,
                             .device = c->srcDevice,
                             .array = c->srcArray,
                             .x = c->srcXInBytes,
                             .y = c->srcY,
                             .z = c->srcZ,
                             .pitch = c->srcPitch,
                             .height = c->srcHeight};
    return find_ends(&to, &from, copy, to_side, from_side);
}

CUresult sim_copy_3d(const CUDA_MEMCPY3D *description, struct sim_copy *copy)
{
    enum side to, from;
    return read_3d(description, copy, &to, &from);
}

CUresult sim_op_copy_node(struct sim_op **op, const CUDA_MEMCPY3D *description)
{
    struct sim_copy copy;
    enum side to, from;
    SIM_TRY(read_3d(description, &copy, &to, &from));
    SIM_REQUIRE(copy.width > 0 && copy.height > 0 && copy.depth > 0 && are_there(&copy, to, from));
    *op = sim_op_copy(&copy);
    return *op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult sim_op_set_node(struct sim_op **op, const struct sim_set *set)
{
    SIM_REQUIRE(set->width > 0 && set->height > 0 && is_set_there(set));
    *op = sim_op_set(set);
    return *op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void sim_copy_describe(const struct sim_copy *copy, CUDA_MEMCPY3D *description)
{
    *description = (CUDA_MEMCPY3D){.srcMemoryType = is_device(copy->from) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
                                   .dstMemoryType = is_device(copy->to) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
                                   .srcPitch = copy->from_pitch,
                                   .dstPitch = copy->to_pitch,
                                   .srcHeight = copy->from_pitch == 0 ? 0 : copy->from_slice / copy->from_pitch,
                                   .dstHeight = copy->to_pitch == 0 ? 0 : copy->to_slice / copy->to_pitch,
                                   .WidthInBytes = copy->width,
                                   .Height = copy->height,
                                   .Depth = copy->depth};
    if (description->srcMemoryType == CU_MEMORYTYPE_DEVICE)
        description->srcDevice = copy->from;
    else
        description->srcHost = (const void *)(uintptr_t)copy->from;
    if (description->dstMemoryType == CU_MEMORYTYPE_DEVICE)
        description->dstDevice = copy->to;
    else
        description->dstHost = (void *)(uintptr_t)copy->to;
}

static CUresult copy_3d(const CUDA_MEMCPY3D *description, CUstream stream, enum sim_stream_default meant,
                        enum mode mode)
{
    struct sim_copy copy;
    enum side to, from;
    SIM_TRY(read_3d(description, &copy, &to, &from));
    return copy_checked(&copy, to, from, stream, meant, mode);
}

SIM_PAIR(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *copy), copy_3d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
         copy_3d(copy, stream, meant, ASYNCHRONOUS))

/* Addresses are the same in all contexts, so only their validity matters. */
static CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER *c, CUstream stream, enum sim_stream_default meant,
                             enum mode mode)
{
    SIM_ENTER();
    SIM_REQUIRE(c != NULL);
    struct sim_context *context;
    SIM_TRY(sim_context_resolve(c->dstContext, &context));
    SIM_TRY(sim_context_resolve(c->srcContext, &context));
    const CUDA_MEMCPY3D plain = {.srcXInBytes = c->srcXInBytes,
                                 .srcY = c->srcY,
                                 .srcZ = c->srcZ,
                                 .srcLOD = c->srcLOD,
                                 .srcMemoryType = c->srcMemoryType,
                                 .srcHost = c->srcHost,
                                 .srcDevice = c->srcDevice,
                                 .srcArray = c->srcArray,
                                 .srcPitch = c->srcPitch,
                                 .srcHeight = c->srcHeight,
                                 .dstXInBytes = c->dstXInBytes,
                                 .dstY = c->dstY,
                                 .dstZ = c->dstZ,
                                 .dstLOD = c->dstLOD,
                                 .dstMemoryType = c->dstMemoryType,
                                 .dstHost = c->dstHost,
                                 .dstDevice = c->dstDevice,
                                 .dstArray = c->dstArray,
                                 .dstPitch = c->dstPitch,
                                 .dstHeight = c->dstHeight,
                                 .WidthInBytes = c->WidthInBytes,
                                 .Height = c->Height,
                                 .Depth = c->Depth};
    return copy_3d(&plain, stream, meant, mode);
}

SIM_PAIR(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER *copy), copy_3d_peer(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
         copy_3d_peer(copy, stream, meant, ASYNCHRONOUS))

/* Linear copies are for arrays of one dimension. */
static CUresult find_linear(CUarray array, size_t offset, size_t size, uint64_t *address)
{
    struct sim_array_view view;
    SIM_TRY(sim_array_view(array, &view));
    SIM_REQUIRE(view.height == 1 && view.depth == 1 && offset + size <= view.width * view.element);
    *address = view.base + offset;
    return CUDA_SUCCESS;
}

static CUresult copy_to_array(CUarray array, size_t offset, uint64_t from, enum side side, size_t size, CUstream stream,
                              enum sim_stream_default meant, enum mode mode)
{
    uint64_t to;
    SIM_TRY(find_linear(array, offset, size, &to));
    return copy_linear(to, DEVICE, from, side, size, stream, meant, mode);
}

static CUresult copy_from_array(uint64_t to, enum side side, CUarray array, size_t offset, size_t size, CUstream stream,
                                enum sim_stream_default meant, enum mode mode)
{
    uint64_t from;
    SIM_TRY(find_linear(array, offset, size, &from));
    return copy_linear(to, side, from, DEVICE, size, stream, meant, mode);
}

static CUresult copy_arrays(CUarray to_array, size_t to_offset, CUarray from_array, size_t from_offset, size_t size,
                            enum sim_stream_default meant)
{
    uint64_t from;
    SIM_TRY(find_linear(from_array, from_offset, size, &from));
    return copy_to_array(to_array, to_offset, from, DEVICE, size, NULL, meant, SYNCHRONOUS);
}

SIM_PAIR(cuMemcpyDtoA_v2, _ptds, (CUarray to, size_t offset, CUdeviceptr from, size_t size),
         copy_to_array(to, offset, from, DEVICE, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr to, CUarray from, size_t offset, size_t size),
         copy_from_array(to, DEVICE, from, offset, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyHtoA_v2, _ptds, (CUarray to, size_t offset, const void *from, size_t size),
         copy_to_array(to, offset, AT(from), HOST, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyAtoH_v2, _ptds, (void *to, CUarray from, size_t offset, size_t size),
         copy_from_array(AT(to), HOST, from, offset, size, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpyAtoA_v2, _ptds, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t size),
         copy_arrays(to, to_offset, from, from_offset, size, meant))
SIM_PAIR(cuMemcpyHtoAAsync_v2, _ptsz, (CUarray to, size_t offset, const void *from, size_t size, CUstream stream),
         copy_to_array(to, offset, AT(from), HOST, size, stream, meant, ASYNCHRONOUS))
SIM_PAIR(cuMemcpyAtoHAsync_v2, _ptsz, (void *to, CUarray from, size_t offset, size_t size, CUstream stream),
         copy_from_array(AT(to), HOST, from, offset, size, stream, meant, ASYNCHRONOUS))

static CUresult set_checked(uint64_t to, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height,
                            CUstream handle, enum sim_stream_default meant, enum mode mode)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    SIM_REQUIRE(to % element == 0 && is_known(to) && (height == 1 || pitch >= width * element));
    struct sim_set set = {to, pitch, width, height, value, element};
    SIM_REQUIRE((stream->capture == NULL && !sim_config.strict) || is_set_there(&set));
    return submit(stream, sim_op_set(&set), mode);
}

#define SETS(bits, type)                                                                                               \
    SIM_PAIR(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr to, type value, size_t number),                                 \
             set_checked(to, 0, value, bits / 8, number, 1, NULL, meant, SYNCHRONOUS))                                 \
    SIM_PAIR(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr to, type value, size_t number, CUstream stream),              \
             set_checked(to, 0, value, bits / 8, number, 1, stream, meant, ASYNCHRONOUS))                              \
    SIM_PAIR(cuMemsetD2D##bits##_v2, _ptds, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),   \
             set_checked(to, pitch, value, bits / 8, width, height, NULL, meant, SYNCHRONOUS))                         \
    SIM_PAIR(cuMemsetD2D##bits##Async, _ptsz,                                                                          \
             (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream),                 \
             set_checked(to, pitch, value, bits / 8, width, height, stream, meant, ASYNCHRONOUS))

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)

/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies and fills. */
#include "copy.h"
#include "fault.h"
#include "graph.h"
#include "managed.h"
#include "memory.h"
#include "segment.h"

#include <string.h>

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
    bool device = sim_range_is_device(sim_range_find(address));
    pthread_rwlock_unlock(&sim_ranges_lock);
    return device;
}

/* Device memory, or host memory that is pinned. */
static bool is_known(uint64_t address)
{
    pthread_rwlock_rdlock(&sim_ranges_lock);
    bool known = sim_range_find(address) != NULL;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return known;
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
        until = sim_segment_reserve(context->device, to_device ? SIM_ENGINE_TO_DEVICE : SIM_ENGINE_TO_HOST, bytes,
                                    sim_config.bandwidth);
        __atomic_add_fetch(to_device ? &sim_counters_now.copied_in : &sim_counters_now.copied_out, bytes,
                           __ATOMIC_RELAXED);
    }
    sim_managed_touch(context->device, (const uint64_t[]){copy->from, copy->to}, 2);
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
    sim_managed_touch(context->device, &set->to, 1);
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
enum side { HOST, DEVICE, EITHER };

static CUresult submit(struct sim_stream *stream, struct sim_op *op, enum mode mode)
{
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mode == ASYNCHRONOUS)
        return sim_stream_submit(stream, op, NULL);
    CUresult allowed = sim_stream_check_synchronize(stream);
    if (allowed == CUDA_SUCCESS)
        allowed = sim_capture_check_unsafe();
    if (allowed != CUDA_SUCCESS) {
        sim_op_release(op);
        return allowed;
    }
    return sim_stream_run(stream, op);
}

static CUresult copy_checked(const struct sim_copy *copy, enum side to, enum side from, CUstream handle,
                             enum sim_stream_default meant, enum mode mode)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (copy->width == 0 || copy->height == 0 || copy->depth == 0)
        return CUDA_SUCCESS;
    SIM_REQUIRE(copy->to != 0 && copy->from != 0);
    SIM_REQUIRE(to != DEVICE || is_device(copy->to));
    SIM_REQUIRE(from != DEVICE || is_device(copy->from));
    /* The driver reads pageable memory before it returns, and has written it when it returns. */
    if (mode == ASYNCHRONOUS && stream->capture == NULL &&
        ((to != DEVICE && !is_known(copy->to)) || (from != DEVICE && !is_known(copy->from))))
        return sim_stream_run(stream, sim_op_copy(copy));
    return submit(stream, sim_op_copy(copy), mode);
}

static CUresult copy_linear(uint64_t to_address, enum side to, uint64_t from_address, enum side from, size_t size,
                            CUstream stream, enum sim_stream_default meant, enum mode mode)
{
    struct sim_copy copy = linear(to_address, from_address, size);
    return copy_checked(&copy, to, from, stream, meant, mode);
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
         ((void)to_context, (void)from_context, copy_linear(to, DEVICE, from, DEVICE, size, NULL, meant, SYNCHRONOUS)))
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
         ((void)to_context, (void)from_context,
          copy_linear(to, DEVICE, from, DEVICE, size, stream, meant, ASYNCHRONOUS)))

/* What a 2D or 3D description says about one end. Arrays are not modelled. */
static CUresult find_end(CUmemorytype type, const void *host, CUdeviceptr device, size_t offset, uint64_t *address,
                         enum side *side)
{
    switch (type) {
    case CU_MEMORYTYPE_HOST:
        *address = AT(host) + offset;
        *side = HOST;
        return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        *address = device + offset;
        *side = type == CU_MEMORYTYPE_DEVICE ? DEVICE : EITHER;
        return CUDA_SUCCESS;
    case CU_MEMORYTYPE_ARRAY:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream stream, enum sim_stream_default meant, enum mode mode)
{
    SIM_REQUIRE(c != NULL);
    struct sim_copy copy = {.width = c->WidthInBytes,
                            .height = c->Height,
                            .depth = 1,
                            .to_pitch = c->dstPitch != 0 ? c->dstPitch : c->WidthInBytes,
                            .from_pitch = c->srcPitch != 0 ? c->srcPitch : c->WidthInBytes};
    SIM_REQUIRE(copy.to_pitch >= c->WidthInBytes && copy.from_pitch >= c->WidthInBytes);
    enum side to, from;
    SIM_TRY(
        find_end(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstY * copy.to_pitch + c->dstXInBytes, &copy.to, &to));
    SIM_TRY(find_end(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcY * copy.from_pitch + c->srcXInBytes, &copy.from,
                     &from));
    return copy_checked(&copy, to, from, stream, meant, mode);
}

SIM_PAIR(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy_2d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D *copy), copy_2d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
         copy_2d(copy, stream, meant, ASYNCHRONOUS))

CUresult sim_copy_3d(const CUDA_MEMCPY3D *c, struct sim_copy *copy)
{
    SIM_REQUIRE(c != NULL);
    *copy = (struct sim_copy){.width = c->WidthInBytes,
                              .height = c->Height,
                              .depth = c->Depth,
                              .to_pitch = c->dstPitch != 0 ? c->dstPitch : c->WidthInBytes,
                              .from_pitch = c->srcPitch != 0 ? c->srcPitch : c->WidthInBytes};
    SIM_REQUIRE(copy->to_pitch >= c->WidthInBytes && copy->from_pitch >= c->WidthInBytes);
    copy->to_slice = copy->to_pitch * (c->dstHeight != 0 ? c->dstHeight : c->Height);
    copy->from_slice = copy->from_pitch * (c->srcHeight != 0 ? c->srcHeight : c->Height);
    enum side side;
    SIM_TRY(find_end(c->dstMemoryType, c->dstHost, c->dstDevice,
                     c->dstZ * copy->to_slice + c->dstY * copy->to_pitch + c->dstXInBytes, &copy->to, &side));
    return find_end(c->srcMemoryType, c->srcHost, c->srcDevice,
                    c->srcZ * copy->from_slice + c->srcY * copy->from_pitch + c->srcXInBytes, &copy->from, &side);
}

static CUresult copy_3d(const CUDA_MEMCPY3D *description, CUstream stream, enum sim_stream_default meant,
                        enum mode mode)
{
    struct sim_copy copy;
    SIM_TRY(sim_copy_3d(description, &copy));
    return copy_checked(&copy, EITHER, EITHER, stream, meant, mode);
}

SIM_PAIR(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D *copy), copy_3d(copy, NULL, meant, SYNCHRONOUS))
SIM_PAIR(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
         copy_3d(copy, stream, meant, ASYNCHRONOUS))

static CUresult set_checked(uint64_t to, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height,
                            CUstream handle, enum sim_stream_default meant, enum mode mode)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    SIM_REQUIRE(to % element == 0 && is_device(to) && (height == 1 || pitch >= width * element));
    struct sim_set set = {to, pitch, width, height, value, element};
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies with attributes, one or several in a call. */
#include "array.h"
#include "context.h"
#include "copy.h"
#include "stream.h"

static CUresult check_stream(CUstream handle, enum sim_stream_default meant, struct sim_stream **stream)
{
    SIM_TRY(sim_stream_enter(handle, meant, stream));
    SIM_REQUIRE(*stream != (*stream)->context->legacy);
    return CUDA_SUCCESS;
}

static CUresult submit(const struct sim_copy *copy, CUmemcpySrcAccessOrder order, const struct sim_stream *stream,
                       CUstream handle, enum sim_stream_default meant)
{
    bool now = order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL && stream->capture == NULL;
    return sim_copy_submit(copy, handle, meant, now);
}

static bool is_order(CUmemcpySrcAccessOrder order)
{
    return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static CUresult linear(CUdeviceptr to, CUdeviceptr from, size_t size, const CUmemcpyAttributes *attributes,
                       struct sim_copy *copy)
{
    SIM_REQUIRE(to != 0 && from != 0 && size > 0 && attributes != NULL && is_order(attributes->srcAccessOrder) &&
                (attributes->flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) == 0);
    *copy = (struct sim_copy){.to = to, .from = from, .width = size, .height = 1, .depth = 1};
    return CUDA_SUCCESS;
}

static CUresult copy_many(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                          CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count, size_t *failed,
                          CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_copy copy;
    if (failed != NULL)
        *failed = SIZE_MAX;
    SIM_TRY(check_stream(handle, meant, &stream));
    SIM_REQUIRE(to != NULL && from != NULL && sizes != NULL && attributes != NULL && starts != NULL && count > 0 &&
                attribute_count > 0 && attribute_count <= count && starts[0] == 0);
    for (size_t i = 1; i < attribute_count; i++)
        SIM_REQUIRE(starts[i] > starts[i - 1] && starts[i] < count);
    /* All or nothing: first checks every copy. */
    for (int submitting = 0; submitting < 2; submitting++) {
        size_t current = 0;
        for (size_t i = 0; i < count; i++) {
            current += current + 1 < attribute_count && starts[current + 1] == i;
            CUresult result = linear(to[i], from[i], sizes[i], &attributes[current], &copy);
            if (result == CUDA_SUCCESS && submitting)
                result = submit(&copy, attributes[current].srcAccessOrder, stream, handle, meant);
            if (result != CUDA_SUCCESS && failed != NULL)
                *failed = i;
            SIM_TRY(result);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult find_element(const CUmemcpy3DOperand *operand, size_t *element)
{
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER)
        return CUDA_SUCCESS;
    struct sim_array_view view;
    SIM_REQUIRE(operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY);
    SIM_TRY(sim_array_view(operand->op.array.array, &view));
    SIM_REQUIRE(*element == 0 || *element == view.element);
    *element = view.element;
    return CUDA_SUCCESS;
}

static CUresult read_operation(const CUDA_MEMCPY3D_BATCH_OP *op, struct sim_copy *copy)
{
    size_t element = 0;
    SIM_REQUIRE(op->extent.width > 0 && op->extent.height > 0 && op->extent.depth > 0 && is_order(op->srcAccessOrder));
    SIM_TRY(find_element(&op->src, &element));
    SIM_TRY(find_element(&op->dst, &element));
    element += element == 0;
    CUDA_MEMCPY3D plain = {
        .WidthInBytes = op->extent.width * element, .Height = op->extent.height, .Depth = op->extent.depth};
    if (op->src.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
        SIM_REQUIRE(op->src.op.ptr.ptr != 0);
        plain.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        plain.srcDevice = op->src.op.ptr.ptr;
        plain.srcPitch = op->src.op.ptr.rowLength * element;
        plain.srcHeight = op->src.op.ptr.layerHeight;
    } else {
        plain.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        plain.srcArray = op->src.op.array.array;
        plain.srcXInBytes = op->src.op.array.offset.x * element;
        plain.srcY = op->src.op.array.offset.y;
        plain.srcZ = op->src.op.array.offset.z;
    }
    if (op->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER) {
        SIM_REQUIRE(op->dst.op.ptr.ptr != 0);
        plain.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        plain.dstDevice = op->dst.op.ptr.ptr;
        plain.dstPitch = op->dst.op.ptr.rowLength * element;
        plain.dstHeight = op->dst.op.ptr.layerHeight;
    } else {
        plain.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        plain.dstArray = op->dst.op.array.array;
        plain.dstXInBytes = op->dst.op.array.offset.x * element;
        plain.dstY = op->dst.op.array.offset.y;
        plain.dstZ = op->dst.op.array.offset.z;
    }
    return sim_copy_3d(&plain, copy);
}

static CUresult copy_many_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags,
                             CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_copy copy;
    if (failed != NULL)
        *failed = SIZE_MAX;
    SIM_TRY(check_stream(handle, meant, &stream));
    SIM_REQUIRE(ops != NULL && count > 0 && flags == 0);
    for (int submitting = 0; submitting < 2; submitting++) {
        for (size_t i = 0; i < count; i++) {
            CUresult result = read_operation(&ops[i], &copy);
            if (result == CUDA_SUCCESS && submitting)
                result = submit(&copy, ops[i].srcAccessOrder, stream, handle, meant);
            if (result != CUDA_SUCCESS && failed != NULL)
                *failed = i;
            SIM_TRY(result);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult copy_with(CUdeviceptr to, CUdeviceptr from, size_t size, const CUmemcpyAttributes *attributes,
                          CUstream handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_copy copy;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(linear(to, from, size, attributes, &copy));
    return submit(&copy, attributes->srcAccessOrder, stream, handle, meant);
}

static CUresult copy_with_3d(const CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream handle,
                             enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_copy copy;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(op != NULL && flags == 0);
    SIM_TRY(read_operation(op, &copy));
    return submit(&copy, op->srcAccessOrder, stream, handle, meant);
}

SIM_PAIR(cuMemcpyBatchAsync, _ptsz,
         (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
          size_t *starts, size_t attribute_count, size_t *failed, CUstream stream),
         copy_many(to, from, sizes, count, attributes, starts, attribute_count, failed, stream, meant))
SIM_PAIR(cuMemcpyBatchAsync_v2, _ptsz,
         (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes,
          size_t *starts, size_t attribute_count, CUstream stream),
         copy_many(to, from, sizes, count, attributes, starts, attribute_count, NULL, stream, meant))
SIM_PAIR(cuMemcpy3DBatchAsync, _ptsz,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *failed, unsigned long long flags, CUstream stream),
         copy_many_3d(count, ops, failed, flags, stream, meant))
SIM_PAIR(cuMemcpy3DBatchAsync_v2, _ptsz,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream),
         copy_many_3d(count, ops, NULL, flags, stream, meant))
SIM_PAIR(cuMemcpyWithAttributesAsync, _ptsz,
         (CUdeviceptr to, CUdeviceptr from, size_t size, CUmemcpyAttributes *attributes, CUstream stream),
         copy_with(to, from, size, attributes, stream, meant))
SIM_PAIR(cuMemcpy3DWithAttributesAsync, _ptsz, (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream stream),
         copy_with_3d(op, flags, stream, meant))

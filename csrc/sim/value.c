/* SPDX-License-Identifier: BSD-3-Clause */
/* Waits for values in memory, and writes of values, in stream order. */
#include "value.h"

#include "context.h"
#include "fault.h"
#include "ranges.h"

#include <string.h>
#include <unistd.h>

/* A GPU polls continually, but a processor has other work. */
#define LOOK_AGAIN_US 50

struct look {
    const CUstreamBatchMemOpParams *item;
    bool over;
};

static bool is_wide(const CUstreamBatchMemOpParams *item)
{
    return item->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || item->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}

static bool is_wait(const CUstreamBatchMemOpParams *item)
{
    return item->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || item->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}

static bool is_met(const CUstreamBatchMemOpParams *item, uint64_t found)
{
    bool wide = is_wide(item);
    uint64_t wanted = wide ? item->waitValue.value64 : item->waitValue.value;
    switch (item->waitValue.flags & 3u) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (found & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return (wide ? ~(found | wanted) : (uint32_t)~(found | wanted)) != 0;
    default:
        return wide ? (int64_t)(found - wanted) >= 0 : (int32_t)(uint32_t)(found - wanted) >= 0;
    }
}

static void look(void *argument)
{
    struct look *look = argument;
    const CUstreamBatchMemOpParams *item = look->item;
    void *at = (void *)(uintptr_t)item->waitValue.address;
    if (is_wait(item))
        look->over = is_met(item, is_wide(item) ? __atomic_load_n((uint64_t *)at, __ATOMIC_SEQ_CST)
                                                : __atomic_load_n((uint32_t *)at, __ATOMIC_SEQ_CST));
    else if (is_wide(item))
        __atomic_store_n((uint64_t *)at, item->writeValue.value64, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint32_t *)at, item->writeValue.value, __ATOMIC_SEQ_CST);
}

static CUresult run(struct sim_context *context, struct sim_op *op)
{
    const struct sim_batch *batch = (const struct sim_batch *)op->payload;
    for (unsigned i = 0; i < batch->count; i++) {
        struct look looking = {&batch->items[i], !is_wait(&batch->items[i])};
        for (;;) {
            SIM_TRY(sim_fault_guard(look, &looking));
            if (looking.over || sim_context_error(context) != CUDA_SUCCESS)
                break;
            usleep(LOOK_AGAIN_US);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult check(const CUstreamBatchMemOpParams *item)
{
    SIM_REQUIRE(is_wait(item) || item->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ||
                item->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64);
    uint64_t address = item->waitValue.address, size = is_wide(item) ? 8 : 4;
    SIM_REQUIRE(address % size == 0);
    SIM_REQUIRE((item->waitValue.flags & ~(is_wait(item) ? 3u : 0u)) == 0);
    pthread_rwlock_rdlock(&sim_ranges_lock);
    const struct sim_range *range = sim_range_find(address);
    bool valid = range != NULL && !range->leaving && range->pool == NULL && address - range->base <= range->size - size;
    pthread_rwlock_unlock(&sim_ranges_lock);
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult batch_op(struct sim_op **op, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    SIM_REQUIRE(p != NULL && p->paramArray != NULL && p->count > 0 && p->count <= 256 && p->flags == 0);
    for (unsigned i = 0; i < p->count; i++)
        SIM_TRY(check(&p->paramArray[i]));
    size_t size = p->count * sizeof p->paramArray[0];
    *op = sim_op_new(SIM_OP_BATCH, sizeof(struct sim_batch) + size, run);
    if (*op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_batch *batch = (struct sim_batch *)(*op)->payload;
    *batch = (struct sim_batch){.context = p->ctx, .count = p->count};
    memcpy(batch->items, p->paramArray, size);
    return CUDA_SUCCESS;
}

bool sim_op_batch_is_alike(const struct sim_op *a, const struct sim_op *b)
{
    const struct sim_batch *one = (const struct sim_batch *)a->payload, *other = (const struct sim_batch *)b->payload;
    bool alike = one->count == other->count;
    for (unsigned i = 0; i < one->count && alike; i++)
        alike = one->items[i].operation == other->items[i].operation;
    return alike;
}

static CUresult submit(CUstream handle, unsigned count, CUstreamBatchMemOpParams *items, unsigned flags,
                       enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_op *op;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_TRY(batch_op(&op, &(CUDA_BATCH_MEM_OP_NODE_PARAMS){(CUcontext)stream->context, count, items, flags}));
    return sim_stream_submit(stream, op, NULL);
}

static CUresult one(CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address, uint64_t value,
                    unsigned flags, enum sim_stream_default meant)
{
    CUstreamBatchMemOpParams item = {.waitValue = {.operation = operation, .address = address, .flags = flags}};
    if (is_wide(&item))
        item.waitValue.value64 = value;
    else
        item.waitValue.value = (uint32_t)value;
    return submit(stream, 1, &item, 0, meant);
}

SIM_PAIR(cuStreamWaitValue32_v2, _ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
         one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags, meant))
SIM_PAIR(cuStreamWaitValue64_v2, _ptsz, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
         one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags, meant))
SIM_PAIR(cuStreamWriteValue32_v2, _ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags),
         one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags, meant))
SIM_PAIR(cuStreamWriteValue64_v2, _ptsz, (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags),
         one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags, meant))
SIM_PAIR(cuStreamBatchMemOp_v2, _ptsz,
         (CUstream stream, unsigned count, CUstreamBatchMemOpParams *items, unsigned flags),
         submit(stream, count, items, flags, meant))

/* A node without a context uses the current one. */
CUresult sim_op_batch_node(struct sim_op **op, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    struct sim_context *context;
    SIM_REQUIRE(p != NULL);
    SIM_TRY(sim_context_resolve(p->ctx, &context));
    CUDA_BATCH_MEM_OP_NODE_PARAMS whole = *p;
    whole.ctx = (CUcontext)context;
    return batch_op(op, &whole);
}

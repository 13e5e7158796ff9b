/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `managed` backend: the driver's managed memory, moved in bulk by prefetching rather than fault by fault. The old
 * holder is evicted before the new one is prefetched, since the driver's own choice of victims evicts what it is about
 * to need.
 */
#include "block.h"
#include "gate.h"
#include "real.h"

static CUresult reserve(struct gs_block *block)
{
    return GS_REAL(cuMemAllocManaged)(&block->base, block->size, CU_MEM_ATTACH_GLOBAL);
}

static void unreserve(struct gs_block *block)
{
    GS_REAL(cuMemFree_v2)(block->base);
}

/* The one with a device ordinal: every driver that has managed memory has it. */
static CUresult prefetch(struct gs_block *block, unsigned i, CUdevice where, CUstream stream)
{
    return GS_REAL(cuMemPrefetchAsync)(gs_piece_address(block, i), gs_piece_bytes(block, i), where, stream);
}

static CUresult populate(struct gs_block *block, unsigned i, CUstream stream)
{
    CUresult result = prefetch(block, i, block->ordinal, stream);
    if (result == CUDA_SUCCESS) {
        block->pieces[i].state = GS_PIECE_RESIDENT;
    }
    return result;
}

static CUresult start_out(struct gs_block *block, unsigned i, CUstream stream)
{
    return prefetch(block, i, CU_DEVICE_CPU, stream);
}

static CUresult finish_out(struct gs_block *block, unsigned i)
{
    block->pieces[i].state = GS_PIECE_SWAPPED;
    return CUDA_SUCCESS;
}

/* The driver does not know that nothing was written; it has to move the pages all the same. */
static CUresult discard(struct gs_block *block, unsigned i)
{
    CUresult result = prefetch(block, i, CU_DEVICE_CPU, NULL);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuStreamSynchronize)(NULL);
    if (result == CUDA_SUCCESS)
        block->pieces[i].state = GS_PIECE_EMPTY;
    return result;
}

static CUresult start_in(struct gs_block *block, unsigned i, CUstream stream)
{
    return prefetch(block, i, block->ordinal, stream);
}

static void finish_in(struct gs_block *block, unsigned i)
{
    block->pieces[i].passes = UINT64_MAX;
    block->pieces[i].state = GS_PIECE_RESIDENT;
}

static void abort_in(struct gs_block *block, unsigned i)
{
    /* Where the pages are is the driver's business; they are counted as swapped still. */
    (void)block;
    (void)i;
}

static void drop(struct gs_block *block, unsigned i)
{
    block->pieces[i].state = GS_PIECE_EMPTY;
}

const struct gs_backend gs_backend_managed = {
    .id = 2,
    .name = "managed",
    .reserve = reserve,
    .unreserve = unreserve,
    .populate = populate,
    .start_out = start_out,
    .finish_out = finish_out,
    .discard = discard,
    .start_in = start_in,
    .finish_in = finish_in,
    .abort_in = abort_in,
    .drop = drop,
};

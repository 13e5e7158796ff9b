/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `swap` backend: addresses are reserved once; memory is created, mapped and given access when a piece comes in,
 * and copied to the host, unmapped and released when it goes out. Copies run at the speed of the bus; addresses, and so
 * CUDA graphs, stay valid.
 */
#include "block.h"
#include "gate.h"
#include "real.h"

static CUmemAllocationProp properties_of(const struct gs_block *block)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->ordinal}};
}

static CUresult reserve(struct gs_block *block)
{
    return GS_REAL(cuMemAddressReserve)(&block->base, block->size, 0, 0, 0);
}

static void unreserve(struct gs_block *block)
{
    GS_REAL(cuMemAddressFree)(block->base, block->size);
}

static void unmap(struct gs_block *block, unsigned i)
{
    GS_REAL(cuMemUnmap)(gs_piece_address(block, i), gs_piece_bytes(block, i));
    GS_REAL(cuMemRelease)(block->pieces[i].handle);
    block->pieces[i].handle = 0;
}

static CUresult map(struct gs_block *block, unsigned i)
{
    CUmemAllocationProp properties = properties_of(block);
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = gs_piece_address(block, i);
    size_t bytes = gs_piece_bytes(block, i);
    CUmemGenericAllocationHandle *handle = &block->pieces[i].handle;
    CUresult result = GS_REAL(cuMemCreate)(handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemMap)(address, bytes, 0, *handle, 0);
    if (result != CUDA_SUCCESS) {
        GS_REAL(cuMemRelease)(*handle);
        *handle = 0;
        return result;
    }
    result = GS_REAL(cuMemSetAccess)(address, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        unmap(block, i);
    return result;
}

static CUresult populate(struct gs_block *block, unsigned i, CUstream stream)
{
    (void)stream;
    CUresult result = map(block, i);
    if (result == CUDA_SUCCESS) {
        block->pieces[i].state = GS_PIECE_RESIDENT;
    }
    return result;
}

static CUresult start_out(struct gs_block *block, unsigned i, CUstream stream)
{
    struct gs_piece *piece = &block->pieces[i];
    size_t bytes = gs_piece_bytes(block, i);
    piece->host = gs_host_take(bytes);
    if (piece->host == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        GS_REAL(cuMemcpyDtoHAsync_v2)(gs_host_address(piece->host), gs_piece_address(block, i), bytes, stream);
    if (result != CUDA_SUCCESS) {
        gs_host_give(piece->host);
        piece->host = NULL;
    }
    return result;
}

static CUresult finish_out(struct gs_block *block, unsigned i)
{
    unmap(block, i);
    block->pieces[i].state = GS_PIECE_SWAPPED;
    return CUDA_SUCCESS;
}

static CUresult discard(struct gs_block *block, unsigned i)
{
    unmap(block, i);
    block->pieces[i].state = GS_PIECE_EMPTY;
    return CUDA_SUCCESS;
}

static CUresult start_in(struct gs_block *block, unsigned i, CUstream stream)
{
    CUresult result = map(block, i);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemcpyHtoDAsync_v2)(gs_piece_address(block, i), gs_host_address(block->pieces[i].host),
                                           gs_piece_bytes(block, i), stream);
    if (result != CUDA_SUCCESS)
        unmap(block, i);
    return result;
}

static void finish_in(struct gs_block *block, unsigned i)
{
    struct gs_piece *piece = &block->pieces[i];
    gs_host_give(piece->host);
    piece->host = NULL;
    /* Never equal to the gate's count again, so that it counts as written. */
    piece->passes = UINT64_MAX;
    piece->state = GS_PIECE_RESIDENT;
}

static void abort_in(struct gs_block *block, unsigned i)
{
    unmap(block, i);
}

static void drop(struct gs_block *block, unsigned i)
{
    struct gs_piece *piece = &block->pieces[i];
    if (piece->state == GS_PIECE_RESIDENT)
        unmap(block, i);
    if (piece->host != NULL)
        gs_host_give(piece->host);
    piece->host = NULL;
    piece->state = GS_PIECE_EMPTY;
}

const struct gs_backend gs_backend_swap = {
    .id = 1,
    .name = "swap",
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

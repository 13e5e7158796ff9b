/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `managed` backend: the driver's managed memory, moved in bulk by prefetching instead of fault by fault. The
 * process that had the GPU is evicted before the next one is prefetched, because the driver would choose to evict what
 * is needed next. For cases where the driver has to choose nevertheless, each piece has advice:
 *
 *     resident    prefers the device
 *     swapped     prefers the host, and no device is mapped to it
 *     far         prefers the host, and the device is mapped to it: it is used over the bus, instead of faulting in
 *                 and evicting what is needed next
 */
#include "backends/managed.h"

#include "loader/real.h"
#include "protocol.h"

static CUresult reserve(struct gs_block *block)
{
    return GS_REAL(cuMemAllocManaged)(&block->base, block->size, CU_MEM_ATTACH_GLOBAL);
}

static void unreserve(struct gs_block *block)
{
    GS_REAL(cuMemFree_v2)(block->base);
}

/* The variant with a device ordinal, which every driver with managed memory has. */
static CUresult prefetch(struct gs_block *block, unsigned i, CUdevice where, CUstream stream)
{
    return GS_REAL(cuMemPrefetchAsync)(gs_piece_address(block, i), gs_piece_bytes(block, i), where, stream);
}

/* Advice changes only the speed, never the contents. So it is not a failure if the driver refuses it. */
static void advise(struct gs_block *block, unsigned i, CUmem_advise advice, CUdevice where)
{
    GS_REAL(cuMemAdvise)(gs_piece_address(block, i), gs_piece_bytes(block, i), advice, where);
}

static void prefer_device(struct gs_block *block, unsigned i)
{
    advise(block, i, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, block->ordinal);
    if (block->pieces[i].far)
        advise(block, i, CU_MEM_ADVISE_UNSET_ACCESSED_BY, block->ordinal);
}

static void prefer_host(struct gs_block *block, unsigned i, CUmem_advise access)
{
    advise(block, i, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU);
    advise(block, i, access, block->ordinal);
}

/* Moves memory whose contents are not needed: no bytes are copied if the driver supports that. */
static CUresult move_empty(struct gs_block *block, unsigned i, CUmemLocation where, CUstream stream)
{
    CUdeviceptr address = gs_piece_address(block, i);
    size_t bytes = gs_piece_bytes(block, i), first = 0;
    CUresult result = GS_REAL(cuMemDiscardAndPrefetchBatchAsync)(&address, &bytes, 1, &where, &first, 1, 0, stream);
    if (result != CUDA_ERROR_NOT_SUPPORTED)
        return result;
    return prefetch(block, i, where.type == CU_MEM_LOCATION_TYPE_DEVICE ? where.id : CU_DEVICE_CPU, stream);
}

static CUresult populate(struct gs_block *block, unsigned i, CUstream stream)
{
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->ordinal};
    prefer_device(block, i);
    /*
     * Uses a stream of the interposer and waits for it. In the application's stream, data that it writes meanwhile
     * could be discarded.
     */
    CUresult result =
        stream != NULL ? move_empty(block, i, device, stream) : prefetch(block, i, block->ordinal, stream);
    if (result == CUDA_SUCCESS)
        block->pieces[i].state = GS_PIECE_RESIDENT;
    return result;
}

static CUresult start_out(struct gs_block *block, unsigned i, CUstream stream)
{
    return prefetch(block, i, CU_DEVICE_CPU, stream);
}

static CUresult finish_out(struct gs_block *block, unsigned i)
{
    prefer_host(block, i, CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    block->pieces[i].state = GS_PIECE_SWAPPED;
    return CUDA_SUCCESS;
}

/* Uses a stream that no other work waits for. */
static CUresult discard(struct gs_block *block, unsigned i)
{
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUresult result = move_empty(block, i, host, CU_STREAM_PER_THREAD);
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuStreamSynchronize)(CU_STREAM_PER_THREAD);
    if (result != CUDA_SUCCESS)
        return result;
    prefer_host(block, i, CU_MEM_ADVISE_UNSET_ACCESSED_BY);
    block->pieces[i].state = GS_PIECE_EMPTY;
    return CUDA_SUCCESS;
}

static void stay(struct gs_block *block, unsigned i)
{
    prefer_host(block, i, CU_MEM_ADVISE_SET_ACCESSED_BY);
    block->pieces[i].state = GS_PIECE_SWAPPED;
}

static CUresult start_in(struct gs_block *block, unsigned i, CUstream stream)
{
    prefer_device(block, i);
    return prefetch(block, i, block->ordinal, stream);
}

static void finish_in(struct gs_block *block, unsigned i)
{
    block->pieces[i].state = GS_PIECE_RESIDENT;
}

static void abort_in(struct gs_block *block, unsigned i)
{
    /* The driver decides where these pages are. They still count as swapped. */
    prefer_host(block, i, block->pieces[i].far ? CU_MEM_ADVISE_SET_ACCESSED_BY : CU_MEM_ADVISE_UNSET_ACCESSED_BY);
}

static void drop(struct gs_block *block, unsigned i)
{
    block->pieces[i].state = GS_PIECE_EMPTY;
}

static const struct gs_backend managed = {
    .id = GPUSHARE_BACKEND_MANAGED,
    .name = "managed",
    .reserve = reserve,
    .unreserve = unreserve,
    .populate = populate,
    .start_out = start_out,
    .finish_out = finish_out,
    .discard = discard,
    .stay = stay,
    .start_in = start_in,
    .finish_in = finish_in,
    .abort_in = abort_in,
    .drop = drop,
};

const struct gs_backend *const gs_backend_managed = &managed;

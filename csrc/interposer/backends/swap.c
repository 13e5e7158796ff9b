/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The `swap` backend. Addresses are reserved once. When a piece is restored, memory is created, mapped and given
 * access. When it is evicted, it is copied to the host, unmapped and released. Copies run at the speed of the bus.
 * Addresses stay the same, so CUDA graphs stay valid.
 */
#include "backends/swap.h"

#include "backends/mapped.h"
#include "base/print.h"
#include "loader/real.h"
#include "memory/devices.h"
#include "memory/peers.h"
#include "memory/reservations.h"
#include "protocol.h"

static CUmemAllocationProp properties_of(const struct gs_block *block)
{
    /*
     * Shareable from the start, because another process may ask for it later (cuIpcGetMemHandle), and then it cannot be
     * changed.
     */
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = gs_device_handle_type(block->ordinal),
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->ordinal}};
}

static CUresult reserve(struct gs_block *block)
{
    return GS_REAL(cuMemAddressReserve)(&block->base, block->size, 0, 0, 0);
}

static void unreserve(struct gs_block *block)
{
    if (!block->lost)
        GS_REAL(cuMemAddressFree)(block->base, block->size);
}

/*
 * After a checkpoint the driver may refuse to map into addresses that it reserved before. Reserves them again. False if
 * that is not the cause, or if the addresses are taken.
 */
static bool reserve_again(struct gs_block *block, unsigned mapping)
{
    for (unsigned i = 0; i < block->piece_count; i++)
        if (i != mapping && block->pieces[i].handle != 0)
            return false;
    if (!gs_reserve_again(block->base, block->size, &block->lost))
        return false;
    gs_debug("addresses of %zu bytes were reserved again", block->size);
    return true;
}

/* If the driver refuses, the memory stays as it was. */
static CUresult unmap(struct gs_block *block, unsigned i)
{
    CUresult result = GS_REAL(cuMemUnmap)(gs_piece_address(block, i), gs_piece_bytes(block, i));
    if (result != CUDA_SUCCESS)
        return result;
    GS_REAL(cuMemRelease)(block->pieces[i].handle);
    block->pieces[i].handle = 0;
    return CUDA_SUCCESS;
}

static void unmap_if_possible(struct gs_block *block, unsigned i)
{
    unmap(block, i);
}

static CUresult map(struct gs_block *block, unsigned i)
{
    CUmemAllocationProp properties = properties_of(block);
    CUmemAccessDesc access[1 + GPUSHARE_MAX_GPUS] = {
        {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    unsigned accesses = 1 + gs_peer_access(block->context, block->ordinal, access + 1);
    CUdeviceptr address = gs_piece_address(block, i);
    size_t bytes = gs_piece_bytes(block, i);
    CUmemGenericAllocationHandle *handle = &block->pieces[i].handle;
    CUresult result = GS_REAL(cuMemCreate)(handle, bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemMap)(address, bytes, 0, *handle, 0);
    if (result == CUDA_ERROR_INVALID_VALUE && reserve_again(block, i))
        result = GS_REAL(cuMemMap)(address, bytes, 0, *handle, 0);
    if (result != CUDA_SUCCESS) {
        GS_REAL(cuMemRelease)(*handle);
        *handle = 0;
        return result;
    }
    result = GS_REAL(cuMemSetAccess)(address, bytes, access, accesses);
    if (result != CUDA_SUCCESS)
        unmap(block, i);
    return result;
}

/* The piece has a single address, through which it can be copied. */
static CUresult begin_copy(struct gs_block *block, unsigned i, CUdeviceptr *address)
{
    *address = gs_piece_address(block, i);
    return CUDA_SUCCESS;
}

static void end_copy(struct gs_block *block, unsigned i)
{
    (void)block;
    (void)i;
}

static const struct gs_mapped_backend swap = {
    .of_blocks = {.id = GPUSHARE_BACKEND_SWAP, .name = "swap", .reserve = reserve, .unreserve = unreserve, GS_MAPPED},
    .acquire = map,
    .withdraw = unmap,
    .relinquish = unmap_if_possible,
    .begin_copy = begin_copy,
    .end_copy = end_copy,
};

const struct gs_backend *const gs_backend_swap = &swap.of_blocks;

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The backend of memory that the application manages by itself. It works like `swap`, but at the addresses and with the
 * access that vmm.h records: at none, one or several. A piece that no mapping shows to its own GPU is copied through a
 * temporary mapping.
 */
#include "backends/vmm.h"

#include "backends/mapped.h"
#include "loader/real.h"
#include "memory/block.h"
#include "memory/reservations.h"

#include <stdlib.h>

/*
 * The part of the mapping that shows piece i, as an address and bytes. False if the mapping does not reach the piece.
 */
static bool window(const struct gs_block *block, unsigned i, const struct gs_vmm_mapping *mapping, CUdeviceptr *address,
                   size_t *bytes)
{
    size_t offset = (size_t)i * block->piece_size, piece = gs_piece_bytes(block, i);
    if (offset >= mapping->size)
        return false;
    *address = mapping->node.key + offset;
    *bytes = mapping->size - offset < piece ? mapping->size - offset : piece;
    return true;
}

static CUresult map_piece(struct gs_block *block, unsigned i, const struct gs_vmm_mapping *mapping)
{
    CUdeviceptr address;
    size_t bytes;
    if (!window(block, i, mapping, &address, &bytes))
        return CUDA_SUCCESS;
    CUresult result = gs_reservation_map(address, bytes, 0, block->pieces[i].handle, 0);
    if (result != CUDA_SUCCESS || mapping->access_count == 0)
        return result;
    result = GS_REAL(cuMemSetAccess)(address, bytes, mapping->access, mapping->access_count);
    if (result != CUDA_SUCCESS)
        gs_reservation_unmap(address, bytes);
    return result;
}

static CUresult unmap_piece(struct gs_block *block, unsigned i, const struct gs_vmm_mapping *mapping)
{
    CUdeviceptr address;
    size_t bytes;
    return window(block, i, mapping, &address, &bytes) ? gs_reservation_unmap(address, bytes) : CUDA_SUCCESS;
}

/* Unmaps all mappings before `end` in the list. */
static void unmap_until(struct gs_block *block, unsigned i, const struct gs_vmm_mapping *end)
{
    for (const struct gs_vmm_mapping *mapping = block->owner->mappings; mapping != end; mapping = mapping->next)
        unmap_piece(block, i, mapping);
}

static CUresult acquire(struct gs_block *block, unsigned i)
{
    const struct gs_vmm_handle *owner = block->owner;
    struct gs_piece *piece = &block->pieces[i];
    CUresult result = GS_REAL(cuMemCreate)(&piece->handle, gs_piece_bytes(block, i), &owner->properties, owner->flags);
    if (result != CUDA_SUCCESS)
        return result;
    for (const struct gs_vmm_mapping *mapping = owner->mappings; mapping != NULL; mapping = mapping->next) {
        result = map_piece(block, i, mapping);
        if (result != CUDA_SUCCESS) {
            unmap_until(block, i, mapping);
            GS_REAL(cuMemRelease)(piece->handle);
            piece->handle = 0;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static void relinquish(struct gs_block *block, unsigned i)
{
    unmap_until(block, i, NULL);
    GS_REAL(cuMemRelease)(block->pieces[i].handle);
    block->pieces[i].handle = 0;
}

/* Unmaps memory that may be in use. If the driver refuses, the memory stays as it was. */
static CUresult withdraw(struct gs_block *block, unsigned i)
{
    for (const struct gs_vmm_mapping *mapping = block->owner->mappings; mapping != NULL; mapping = mapping->next) {
        CUresult result = unmap_piece(block, i, mapping);
        if (result == CUDA_SUCCESS)
            continue;
        for (const struct gs_vmm_mapping *done = block->owner->mappings; done != mapping; done = done->next)
            map_piece(block, i, done);
        return result;
    }
    GS_REAL(cuMemRelease)(block->pieces[i].handle);
    block->pieces[i].handle = 0;
    return CUDA_SUCCESS;
}

static void end_scratch(struct gs_block *block, unsigned i)
{
    struct gs_piece *piece = &block->pieces[i];
    if (piece->scratch == 0)
        return;
    GS_REAL(cuMemUnmap)(piece->scratch, gs_piece_bytes(block, i));
    GS_REAL(cuMemAddressFree)(piece->scratch, gs_piece_bytes(block, i));
    piece->scratch = 0;
}

/* Returns an address through which a copy can access the whole piece. */
static CUresult begin_copy(struct gs_block *block, unsigned i, CUdeviceptr *address)
{
    struct gs_piece *piece = &block->pieces[i];
    size_t bytes = gs_piece_bytes(block, i), shown;
    end_scratch(block, i); /* left by a copy that failed */
    for (const struct gs_vmm_mapping *mapping = block->owner->mappings; mapping != NULL; mapping = mapping->next) {
        if (!window(block, i, mapping, address, &shown) || shown < bytes)
            continue;
        for (unsigned a = 0; a < mapping->access_count; a++)
            if (mapping->access[a].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                mapping->access[a].location.id == block->ordinal &&
                mapping->access[a].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                return CUDA_SUCCESS;
    }
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = block->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = GS_REAL(cuMemAddressReserve)(address, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuMemMap)(*address, bytes, 0, piece->handle, 0);
    if (result != CUDA_SUCCESS) {
        GS_REAL(cuMemAddressFree)(*address, bytes);
        return result;
    }
    piece->scratch = *address;
    result = GS_REAL(cuMemSetAccess)(*address, bytes, &access, 1);
    if (result != CUDA_SUCCESS)
        end_scratch(block, i);
    return result;
}

static CUresult apply_mapping(struct gs_block *block, const struct gs_vmm_mapping *mapping)
{
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < block->piece_count && result == CUDA_SUCCESS; i++) {
        if (block->pieces[i].state != GS_PIECE_RESIDENT)
            continue;
        result = map_piece(block, i, mapping);
        while (result != CUDA_SUCCESS && i > 0)
            if (block->pieces[--i].state == GS_PIECE_RESIDENT)
                unmap_piece(block, i, mapping);
    }
    return result;
}

static void withdraw_mapping(struct gs_block *block, const struct gs_vmm_mapping *mapping)
{
    for (unsigned i = 0; i < block->piece_count; i++)
        if (block->pieces[i].state == GS_PIECE_RESIDENT)
            unmap_piece(block, i, mapping);
}

static CUresult apply_access(struct gs_block *block, const struct gs_vmm_mapping *mapping,
                             const CUmemAccessDesc *access, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr address;
    size_t bytes;
    for (unsigned i = 0; i < block->piece_count && result == CUDA_SUCCESS; i++)
        if (block->pieces[i].state == GS_PIECE_RESIDENT && window(block, i, mapping, &address, &bytes))
            result = GS_REAL(cuMemSetAccess)(address, bytes, access, count);
    return result;
}

/* --- The backend --- */

static CUresult reserve(struct gs_block *block)
{
    (void)block; /* the application reserves the addresses */
    return CUDA_SUCCESS;
}

static void unreserve(struct gs_block *block)
{
    free(block->owner);
}

static const struct gs_mapped_backend mapped = {
    .of_blocks = {.id = GPUSHARE_BACKEND_SWAP, .name = "vmm", .reserve = reserve, .unreserve = unreserve, GS_MAPPED},
    .acquire = acquire,
    .withdraw = withdraw,
    .relinquish = relinquish,
    .begin_copy = begin_copy,
    .end_copy = end_scratch,
};

const struct gs_vmm_backend gs_backend_vmm = {
    .of_blocks = &mapped.of_blocks,
    .granularity = 2 << 20,
    .apply_mapping = apply_mapping,
    .withdraw_mapping = withdraw_mapping,
    .apply_access = apply_access,
};

/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on peer access (peer.h). */
#include "hooks/peer.h"

#include "backends/swap.h"
#include "base/session.h"
#include "gate/capture.h"
#include "loader/real.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/peers.h"

static bool includes(const CUmemAccessDesc *access, unsigned count, CUdevice device)
{
    while (count > 0)
        if (access[--count].location.id == device)
            return true;
    return false;
}

static void apply(struct gs_block *block, void *argument)
{
    if (block->backend != gs_backend_swap)
        return;
    CUdevice accessor = *(const CUdevice *)argument;
    GS_LEAVES_CAPTURES_ALONE;
    CUmemAccessDesc wanted[GPUSHARE_MAX_GPUS];
    unsigned count = gs_peer_access(block->context, block->ordinal, wanted);
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = accessor},
                                    .flags = includes(wanted, count, accessor) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE};
    for (unsigned i = 0; i < block->piece_count; i++)
        if (block->pieces[i].state == GS_PIECE_RESIDENT)
            GS_REAL(cuMemSetAccess)(gs_piece_address(block, i), gs_piece_bytes(block, i), &access, 1);
}

/* Applies the access to memory that exists already. */
static void apply_to_all(CUcontext owner, CUdevice ordinal, CUdevice accessor)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device != NULL)
        gs_blocks_visit(device, owner, apply, &accessor);
}

void gs_peer_set(CUcontext owner, CUdevice ordinal, CUcontext user, CUdevice accessor, bool allowed)
{
    gs_peer_record(owner, ordinal, user, accessor, allowed);
    apply_to_all(owner, ordinal, accessor);
}

void gs_peer_context_ends(CUcontext context)
{
    struct gs_peer_right right;
    while (gs_peer_take(context, &right))
        if (right.user == context)
            apply_to_all(right.owner, right.device, right.accessor);
}

/* The device of a context that is not current. */
static CUresult device_of(CUcontext context, CUdevice *device)
{
    CUcontext ignored;
    CUresult result = GS_REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuCtxGetDevice)(device);
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return result;
}

static CUresult changed(CUresult result, CUcontext peer, bool allowed)
{
    CUcontext user;
    CUdevice owner, accessor;
    if (result == CUDA_SUCCESS && gs_session_attached() && device_of(peer, &owner) == CUDA_SUCCESS &&
        GS_REAL(cuCtxGetCurrent)(&user) == CUDA_SUCCESS && GS_REAL(cuCtxGetDevice)(&accessor) == CUDA_SUCCESS &&
        owner != accessor)
        gs_peer_set(peer, owner, user, accessor, allowed);
    return result;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    return changed(GS_REAL(cuCtxEnablePeerAccess)(peer, flags), peer, true);
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
    return changed(GS_REAL(cuCtxDisablePeerAccess)(peer), peer, false);
}

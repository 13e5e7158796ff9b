/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on peer access (peer.h). */
#include "peer.h"

#include "blocks.h"
#include "capture.h"
#include "client.h"
#include "context.h"
#include "lock.h"
#include "real.h"

#include <stdlib.h>

/* `accessor` may access the memory of `owner` (NULL: of all contexts) on `device`; `grants` contexts asked for it. */
struct peer {
    CUcontext owner;
    CUdevice device, accessor;
    unsigned grants;
    struct peer *next;
};

static struct {
    struct gs_mutex lock;
    struct peer *first;
} peers = {.lock = GS_MUTEX(GS_RANK_PEERS)};

static bool includes(const CUmemAccessDesc *access, unsigned count, CUdevice device)
{
    while (count > 0)
        if (access[--count].location.id == device)
            return true;
    return false;
}

unsigned gs_peer_access(CUcontext owner, CUdevice device, CUmemAccessDesc access[GPUSHARE_MAX_GPUS])
{
    unsigned count = 0;
    gs_mutex_lock(&peers.lock);
    for (const struct peer *peer = peers.first; peer != NULL && count < GPUSHARE_MAX_GPUS; peer = peer->next)
        if (peer->grants != 0 && peer->device == device && (peer->owner == NULL || peer->owner == owner) &&
            !includes(access, count, peer->accessor))
            access[count++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer->accessor},
                                                .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    gs_mutex_unlock(&peers.lock);
    return count;
}

unsigned gs_peer_accessors(CUcontext owner, CUdevice accessors[GPUSHARE_MAX_GPUS])
{
    unsigned count = 0;
    if (__atomic_load_n(&peers.first, __ATOMIC_ACQUIRE) == NULL)
        return 0;
    gs_mutex_lock(&peers.lock);
    for (const struct peer *peer = peers.first; peer != NULL && count < GPUSHARE_MAX_GPUS; peer = peer->next)
        if (peer->grants != 0 && peer->owner == owner)
            accessors[count++] = peer->accessor;
    gs_mutex_unlock(&peers.lock);
    return count;
}

static void apply(struct gs_block *block, void *argument)
{
    if (block->backend != &gs_backend_swap)
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

void gs_peer_set(CUcontext owner, CUdevice ordinal, CUdevice accessor, bool allowed)
{
    gs_mutex_lock(&peers.lock);
    struct peer *peer = peers.first;
    while (peer != NULL && (peer->owner != owner || peer->device != ordinal || peer->accessor != accessor))
        peer = peer->next;
    if (peer == NULL && allowed && (peer = calloc(1, sizeof(*peer))) != NULL) {
        *peer = (struct peer){.owner = owner, .device = ordinal, .accessor = accessor, .next = peers.first};
        __atomic_store_n(&peers.first, peer, __ATOMIC_RELEASE);
    }
    if (peer != NULL && owner == NULL)
        peer->grants = allowed; /* of a pool: said anew, not counted */
    else if (peer != NULL && (allowed || peer->grants != 0))
        peer->grants += allowed ? 1 : -1u;
    gs_mutex_unlock(&peers.lock);
    struct gs_device *device = gs_device_of(ordinal);
    if (device != NULL)
        gs_blocks_visit(device, owner, apply, &accessor);
}

void gs_peer_context_ends(CUcontext context)
{
    gs_mutex_lock(&peers.lock);
    for (struct peer **link = &peers.first; *link != NULL;) {
        struct peer *peer = *link;
        if (peer->owner == context) {
            *link = peer->next;
            free(peer);
        } else {
            link = &peer->next;
        }
    }
    gs_mutex_unlock(&peers.lock);
}

/* The device of a context, which is not the current one. */
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
    CUdevice owner, accessor;
    if (result == CUDA_SUCCESS && gs_client_attached() && device_of(peer, &owner) == CUDA_SUCCESS &&
        GS_REAL(cuCtxGetDevice)(&accessor) == CUDA_SUCCESS && owner != accessor)
        gs_peer_set(peer, owner, accessor, allowed);
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

void gs_peer_after_fork(void)
{
    gs_mutex_after_fork(&peers.lock);
}

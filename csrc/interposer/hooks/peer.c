/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on peer access (peer.h). */
#include "hooks/peer.h"

#include "base/lock.h"
#include "base/session.h"
#include "hooks/capture.h"
#include "loader/real.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"

#include <stdlib.h>

/*
 * `accessor` may access the memory of `owner` (NULL: of all contexts) on `device` since its context `user` asked for
 * it (NULL: it is a pool's).
 */
struct peer {
    CUcontext owner, user;
    CUdevice device, accessor;
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
        if (peer->device == device && (peer->owner == NULL || peer->owner == owner) &&
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
    for (const struct peer *peer = peers.first; peer != NULL && count < GPUSHARE_MAX_GPUS; peer = peer->next) {
        unsigned i = 0;
        while (i < count && accessors[i] != peer->accessor)
            i++;
        if (peer->owner == owner && i == count)
            accessors[count++] = peer->accessor;
    }
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

/* For what is there already. */
static void apply_to_all(CUcontext owner, CUdevice ordinal, CUdevice accessor)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device != NULL)
        gs_blocks_visit(device, owner, apply, &accessor);
}

void gs_peer_set(CUcontext owner, CUdevice ordinal, CUcontext user, CUdevice accessor, bool allowed)
{
    gs_mutex_lock(&peers.lock);
    struct peer **link = &peers.first, *peer;
    while ((peer = *link) != NULL &&
           (peer->owner != owner || peer->device != ordinal || peer->user != user || peer->accessor != accessor))
        link = &peer->next;
    if (peer != NULL && !allowed) {
        __atomic_store_n(link, peer->next, __ATOMIC_RELEASE);
        free(peer);
    } else if (peer == NULL && allowed && (peer = calloc(1, sizeof(*peer))) != NULL) {
        *peer =
            (struct peer){.owner = owner, .user = user, .device = ordinal, .accessor = accessor, .next = peers.first};
        __atomic_store_n(&peers.first, peer, __ATOMIC_RELEASE);
    }
    gs_mutex_unlock(&peers.lock);
    apply_to_all(owner, ordinal, accessor);
}

/* Takes one out in which the context takes part; NULL: there is none. */
static struct peer *take(CUcontext context)
{
    gs_mutex_lock(&peers.lock);
    struct peer **link = &peers.first, *peer;
    while ((peer = *link) != NULL && peer->owner != context && peer->user != context)
        link = &peer->next;
    if (peer != NULL)
        __atomic_store_n(link, peer->next, __ATOMIC_RELEASE);
    gs_mutex_unlock(&peers.lock);
    return peer;
}

void gs_peer_context_ends(CUcontext context)
{
    struct peer *peer;
    while ((peer = take(context)) != NULL) {
        if (peer->user == context)
            apply_to_all(peer->owner, peer->device, peer->accessor);
        free(peer);
    }
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

void gs_peer_after_fork(void)
{
    gs_mutex_after_fork(&peers.lock);
}

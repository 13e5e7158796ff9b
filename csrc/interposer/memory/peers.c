/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/peers.h"

#include "base/lock.h"

#include <stdlib.h>

/*
 * The device `accessor` may access the memory of `owner` (NULL: of all contexts) on `device`, because its context
 * `user` requested that (NULL: the access belongs to a pool).
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

void gs_peer_record(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed)
{
    gs_mutex_lock(&peers.lock);
    struct peer **link = &peers.first, *peer;
    while ((peer = *link) != NULL &&
           (peer->owner != owner || peer->device != device || peer->user != user || peer->accessor != accessor))
        link = &peer->next;
    if (peer != NULL && !allowed) {
        __atomic_store_n(link, peer->next, __ATOMIC_RELEASE);
        free(peer);
    } else if (peer == NULL && allowed && (peer = calloc(1, sizeof(*peer))) != NULL) {
        *peer =
            (struct peer){.owner = owner, .user = user, .device = device, .accessor = accessor, .next = peers.first};
        __atomic_store_n(&peers.first, peer, __ATOMIC_RELEASE);
    }
    gs_mutex_unlock(&peers.lock);
}

bool gs_peer_take(CUcontext context, struct gs_peer_right *right)
{
    gs_mutex_lock(&peers.lock);
    struct peer **link = &peers.first, *peer;
    while ((peer = *link) != NULL && peer->owner != context && peer->user != context)
        link = &peer->next;
    if (peer != NULL)
        __atomic_store_n(link, peer->next, __ATOMIC_RELEASE);
    gs_mutex_unlock(&peers.lock);
    if (peer != NULL)
        *right = (struct gs_peer_right){
            .owner = peer->owner, .user = peer->user, .device = peer->device, .accessor = peer->accessor};
    bool taken = peer != NULL;
    free(peer);
    return taken;
}

void gs_peers_after_fork(void)
{
    gs_mutex_after_fork(&peers.lock);
}

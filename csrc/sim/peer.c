/* SPDX-License-Identifier: BSD-3-Clause */
#include "peer.h"

#include "contexts.h"
#include "pool.h"
#include "ranges.h"
#include "segment/devices.h"
#include "vmm.h"

#include <stdlib.h>

/* Programs have one or two contexts on each device. */
enum { SIM_MAX_USERS = 4 * SIM_MAX_DEVICES };

/* Contexts are never freed, so a pair with a destroyed context never matches. */
struct pair {
    struct pair *next;
    struct sim_context *context;
    const struct sim_context *peer;
};

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct pair *pairs;

static struct pair **find(const struct sim_context *context, const struct sim_context *peer)
{
    struct pair **place = &pairs;
    while (*place != NULL && ((*place)->context != context || (*place)->peer != peer))
        place = &(*place)->next;
    return place;
}

static bool is_enabled(const struct sim_context *context, const struct sim_context *peer)
{
    pthread_rwlock_rdlock(&lock);
    bool enabled = *find(context, peer) != NULL;
    pthread_rwlock_unlock(&lock);
    return enabled;
}

/* Called with the table's lock held. */
static bool allows(const struct sim_context *context, const struct sim_range *range, uint64_t address)
{
    if (range == NULL || !sim_range_is_device(range) || range->kind == SIM_RANGE_MANAGED)
        return true;
    if (range->kind == SIM_RANGE_RESERVATION)
        return sim_mapping_is_accessible(range, address, context->device);
    if (range->device == context->device || range->context == context)
        return true;
    if (range->kind == SIM_RANGE_GRAPH)
        return (range->flags >> context->device & 1) != 0;
    if (range->pool != NULL)
        return sim_pool_is_accessible(range->pool, context->device);
    return range->context != NULL && is_enabled(context, range->context);
}

bool sim_peer_allows(const struct sim_context *context, const uint64_t *addresses, size_t count)
{
    bool allowed = true;
    if (sim_segment_devices() < 2)
        return true;
    pthread_rwlock_rdlock(&sim_ranges_lock);
    for (size_t i = 0; i < count && allowed; i++)
        allowed = allows(context, sim_range_find(addresses[i]), addresses[i]);
    pthread_rwlock_unlock(&sim_ranges_lock);
    return allowed;
}

void sim_peer_drain(struct sim_context *owner)
{
    struct sim_context *users[SIM_MAX_USERS], *live;
    size_t count = 0;
    pthread_rwlock_rdlock(&lock);
    for (const struct pair *pair = pairs; pair != NULL && count < SIM_MAX_USERS; pair = pair->next)
        if (pair->peer == owner)
            users[count++] = pair->context;
    pthread_rwlock_unlock(&lock);
    while (count > 0)
        if (sim_context_resolve((CUcontext)users[--count], &live) == CUDA_SUCCESS)
            sim_context_drain(live);
}

static CUresult check(CUdevice device, CUdevice peer)
{
    SIM_ENTER();
    CUdevice most = (CUdevice)sim_segment_devices() - 1;
    return device < 0 || peer < 0 || device > most || peer > most ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    SIM_TRY(check(device, peer));
    SIM_REQUIRE(can != NULL);
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)
{
    SIM_TRY(check(device, peer));
    SIM_REQUIRE(value != NULL);
    if (device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* The current context and a peer context that differs from it. */
static CUresult enter(CUcontext handle, struct sim_context **context, struct sim_context **peer)
{
    SIM_TRY(sim_context_enter(context));
    if (handle == NULL || handle == (CUcontext)*context || sim_context_resolve(handle, peer) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags)
{
    struct sim_context *context, *peer;
    SIM_TRY(enter(handle, &context, &peer));
    SIM_REQUIRE(flags == 0);
    if (context->device == peer->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    struct pair *pair = malloc(sizeof *pair);
    if (pair == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&lock);
    bool fresh = *find(context, peer) == NULL;
    if (fresh) {
        *pair = (struct pair){pairs, context, peer};
        pairs = pair;
    }
    pthread_rwlock_unlock(&lock);
    if (fresh)
        return CUDA_SUCCESS;
    free(pair);
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
    struct sim_context *context, *peer;
    SIM_TRY(enter(handle, &context, &peer));
    sim_context_drain(context);
    pthread_rwlock_wrlock(&lock);
    struct pair **place = find(context, peer), *pair = *place;
    if (pair != NULL)
        *place = pair->next;
    pthread_rwlock_unlock(&lock);
    free(pair);
    return pair != NULL ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/context_list.h"

#include "loader/real.h"

struct gs_context_list gs_contexts = {.lock = GS_MUTEX(GS_RANK_CONTEXTS)};

struct gs_context *gs_context_find_locked(CUcontext handle)
{
    struct gs_context *context = gs_contexts.first;
    while (context != NULL && context->handle != handle)
        context = context->next;
    return context;
}

bool gs_context_alive(CUcontext handle)
{
    gs_mutex_lock(&gs_contexts.lock);
    bool alive = gs_context_find_locked(handle) != NULL;
    gs_mutex_unlock(&gs_contexts.lock);
    return alive;
}

CUcontext gs_context_any(void)
{
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_contexts.first;
    while (context != NULL && (context->ending || context->parent != NULL || context->failure != CUDA_SUCCESS))
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    gs_mutex_unlock(&gs_contexts.lock);
    return handle;
}

CUcontext gs_context_owner(CUcontext handle)
{
    gs_mutex_lock(&gs_contexts.lock);
    const struct gs_context *context = gs_context_find_locked(handle);
    CUcontext owner = context != NULL && context->parent != NULL ? context->parent : handle;
    gs_mutex_unlock(&gs_contexts.lock);
    return owner;
}

CUcontext gs_context_on(CUdevice device, CUcontext except)
{
    CUcontext current = NULL, found = NULL;
    GS_REAL(cuCtxGetCurrent)(&current);
    gs_mutex_lock(&gs_contexts.lock);
    /* A context that was not created through the interposer may end unnoticed. */
    for (int others = 0; others < 2 && found == NULL; others++)
        for (struct gs_context *context = gs_contexts.first; context != NULL; context = context->next)
            if (context->device == device && context->handle != except && !context->ending && context->parent == NULL &&
                context->charged == !others && context->failure == CUDA_SUCCESS &&
                (found == NULL || context->handle == current))
                found = context->handle;
    gs_mutex_unlock(&gs_contexts.lock);
    return found;
}

unsigned gs_context_all_on(CUdevice device, CUcontext *found, unsigned most)
{
    unsigned count = 0;
    gs_mutex_lock(&gs_contexts.lock);
    for (struct gs_context *context = gs_contexts.first; context != NULL; context = context->next)
        if (context->device == device && !context->ending && context->failure == CUDA_SUCCESS && count++ < most)
            found[count - 1] = context->handle;
    gs_mutex_unlock(&gs_contexts.lock);
    return count;
}

uint32_t gs_context_removals(void)
{
    return __atomic_load_n(&gs_contexts.removals, __ATOMIC_ACQUIRE);
}

bool gs_context_idle(uint64_t submissions)
{
    return submissions == __atomic_load_n(&gs_contexts.idle, __ATOMIC_ACQUIRE);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/contexts.h"

#include "base/interrupt.h"
#include "base/lock.h"
#include "gate/context_list.h"
#include "gate/drain.h"
#include "gate/failures.h"
#include "protocol.h"

#include <pthread.h>
#include <stdlib.h>

/* The first creation, a reset, or the last release of a device's primary context is in progress. */
static struct {
    struct {
        bool changing;
        unsigned changes;
        CUresult result;
    } of[GPUSHARE_MAX_GPUS];
    pthread_cond_t changed;
} primaries = {.changed = PTHREAD_COND_INITIALIZER};

bool gs_context_add(CUcontext handle, CUdevice device, bool primary, bool admitted, bool *takes)
{
    *takes = false;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    if (context == NULL && (context = calloc(1, sizeof(*context))) != NULL) {
        context->handle = handle;
        context->device = device;
        context->idle = GS_NOT_IDLE;
        context->next = gs_contexts.first;
        gs_contexts.first = context;
        /* A context that was not created through the interposer may already have work. */
        if (!admitted)
            __atomic_store_n(&gs_contexts.idle, GS_NOT_IDLE, __ATOMIC_RELEASE);
    }
    if (context != NULL) {
        *takes = admitted && !context->charged;
        context->charged = context->charged || admitted;
        context->primary = context->primary || primary;
        context->retained += primary;
    }
    gs_mutex_unlock(&gs_contexts.lock);
    return context != NULL;
}

bool gs_context_remove(CUcontext handle, CUdevice *device)
{
    gs_mutex_lock(&gs_contexts.lock);
    gs_context_leave_locked(handle);
    struct gs_context **link = &gs_contexts.first;
    while (*link != NULL && (*link)->handle != handle)
        link = &(*link)->next;
    struct gs_context *gone = *link;
    if (gone != NULL) {
        gs_context_forget_failure_locked(gone);
        *link = gone->next;
    }
    __atomic_add_fetch(&gs_contexts.removals, 1, __ATOMIC_RELEASE);
    gs_mutex_unlock(&gs_contexts.lock);
    bool charged = gone != NULL && gone->charged;
    if (charged)
        *device = gone->device;
    free(gone);
    return charged;
}

bool gs_context_can_be_destroyed(CUcontext handle)
{
    gs_mutex_lock(&gs_contexts.lock);
    const struct gs_context *context = gs_context_find_locked(handle);
    bool can = context != NULL && !context->primary && context->parent == NULL;
    gs_mutex_unlock(&gs_contexts.lock);
    return can;
}

void gs_context_attach(CUcontext handle)
{
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    if (context != NULL)
        context->attached++;
    gs_mutex_unlock(&gs_contexts.lock);
}

bool gs_context_detach(CUcontext handle)
{
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    bool last = context != NULL && !context->primary && context->attached == 0;
    if (context != NULL && context->attached != 0)
        context->attached--;
    gs_mutex_unlock(&gs_contexts.lock);
    return last;
}

/* --- Primary contexts --- */

/* The primary context of a device, if it is known. */
static struct gs_context *primary_locked(CUdevice device)
{
    struct gs_context *context = gs_contexts.first;
    while (context != NULL && !(context->primary && context->device == device))
        context = context->next;
    return context;
}

/*
 * Waits until a change of the primary context is over, and releases the lock meanwhile. Several threads may retain and
 * release the context at once, and only the first has to be admitted. Returns the outcome of the change. A wait that
 * was cancelled is cancelled for all threads.
 */
static CUresult await_primary_locked(CUdevice device)
{
    CUresult result = CUDA_SUCCESS;
    if (device < 0 || device >= GPUSHARE_MAX_GPUS)
        return result; /* the driver will report what is wrong */
    /*
     * The thread that makes the change may be waiting for the scheduler, and an interrupt reaches only the main thread.
     */
    if (primaries.of[device].changing)
        gs_interrupt_watch();
    while (result == CUDA_SUCCESS && primaries.of[device].changing) {
        unsigned change = primaries.of[device].changes;
        while (primaries.of[device].changing && primaries.of[device].changes == change)
            gs_cond_wait(&primaries.changed, &gs_contexts.lock);
        result = primaries.of[device].result;
    }
    return result;
}

static void begin_change_locked(CUdevice device)
{
    if (device >= 0 && device < GPUSHARE_MAX_GPUS)
        primaries.of[device].changing = true;
}

void gs_primary_end_change(CUdevice device, CUresult result)
{
    if (device < 0 || device >= GPUSHARE_MAX_GPUS)
        return;
    gs_mutex_lock(&gs_contexts.lock);
    primaries.of[device].changing = false;
    primaries.of[device].changes++;
    primaries.of[device].result = result;
    pthread_cond_broadcast(&primaries.changed);
    gs_mutex_unlock(&gs_contexts.lock);
}

CUresult gs_primary_begin_retain(CUdevice device, bool *first)
{
    gs_mutex_lock(&gs_contexts.lock);
    CUresult result = await_primary_locked(device);
    *first = result == CUDA_SUCCESS && primary_locked(device) == NULL;
    if (*first)
        begin_change_locked(device);
    gs_mutex_unlock(&gs_contexts.lock);
    return result;
}

CUcontext gs_primary_begin_release(CUdevice device)
{
    CUcontext handle = NULL;
    gs_mutex_lock(&gs_contexts.lock);
    await_primary_locked(device);
    struct gs_context *context = primary_locked(device);
    if (context != NULL && context->retained > 1) {
        context->retained--;
    } else if (context != NULL) {
        handle = context->handle;
        begin_change_locked(device);
    }
    gs_mutex_unlock(&gs_contexts.lock);
    return handle;
}

CUcontext gs_primary_begin_reset(CUdevice device)
{
    gs_mutex_lock(&gs_contexts.lock);
    await_primary_locked(device);
    struct gs_context *context = primary_locked(device);
    CUcontext handle = context != NULL ? context->handle : NULL;
    if (handle != NULL)
        begin_change_locked(device);
    gs_mutex_unlock(&gs_contexts.lock);
    return handle;
}

/* Marks a context that is being emptied or has been emptied. */
static void set_ending(CUcontext handle, bool ending)
{
    gs_mutex_lock(&gs_contexts.lock);
    gs_context_leave_locked(handle);
    struct gs_context *context = gs_context_find_locked(handle);
    if (context != NULL) {
        context->ending = ending;
        context->was_reset = true;
        /* The end of the context destroys its events. */
        context->event = context->mark = context->probe = NULL;
        context->pending = false;
        gs_context_forget_failure_locked(context);
    }
    gs_mutex_unlock(&gs_contexts.lock);
}

void gs_primary_is_reset(CUcontext handle)
{
    set_ending(handle, true);
    __atomic_add_fetch(&gs_contexts.removals, 1, __ATOMIC_RELEASE);
}

void gs_primary_was_reset(CUcontext handle)
{
    set_ending(handle, false);
}

/* --- Green contexts --- */

bool gs_context_set_parent(CUcontext handle, CUcontext primary)
{
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    if (context != NULL)
        context->parent = primary;
    gs_mutex_unlock(&gs_contexts.lock);
    return context != NULL;
}

CUcontext gs_context_green_of(CUcontext primary)
{
    gs_mutex_lock(&gs_contexts.lock);
    const struct gs_context *context = gs_contexts.first;
    while (context != NULL && context->parent != primary)
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    gs_mutex_unlock(&gs_contexts.lock);
    return handle;
}

bool gs_context_is_green(CUcontext handle, CUdevice *device)
{
    gs_mutex_lock(&gs_contexts.lock);
    const struct gs_context *context = gs_context_find_locked(handle);
    bool green = context != NULL && context->parent != NULL;
    if (green)
        *device = context->device;
    gs_mutex_unlock(&gs_contexts.lock);
    return green;
}

void gs_contexts_after_fork(void)
{
    gs_mutex_after_fork(&gs_contexts.lock);
    gs_context_drain_after_fork();
    pthread_cond_init(&primaries.changed, NULL);
    /* These changes were made by threads of the parent. */
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        primaries.of[i].changing = false;
}

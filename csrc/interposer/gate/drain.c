/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/drain.h"

#include "base/lock.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/failures.h"
#include "gate/slots.h"
#include "loader/real.h"

#include <pthread.h>
#include <signal.h>

static struct {
    uint64_t draining; /* number of submissions before the drain; GS_NOT_IDLE: the drain does not cover some work */
    /* If events cannot be recorded, a thread synchronises. */
    bool synchronizes;
    uint64_t drains;
    CUcontext synchronized; /* the context that the thread is synchronising */
    pthread_cond_t left;
} work = {.left = PTHREAD_COND_INITIALIZER};

/* No thread may synchronise a context that ends. */
void gs_context_leave_locked(CUcontext handle)
{
    struct gs_context *context = gs_context_find_locked(handle);
    if (context != NULL)
        context->waits = 0;
    while (work.synchronized == handle && handle != NULL)
        gs_cond_wait(&work.left, &gs_contexts.lock);
}

static struct gs_context *waiting_locked(void)
{
    struct gs_context *context = gs_contexts.first;
    while (context != NULL && context->waits == 0)
        context = context->next;
    return context;
}

/*
 * The thread ends when a capture is open, because synchronising would invalidate it. The next query of the drain starts
 * it again.
 */
static void *synchronize_waiting(void *ignored)
{
    pthread_setname_np(pthread_self(), "gpushare-drain");
    gs_mutex_lock(&gs_contexts.lock);
    for (struct gs_context *context; (context = waiting_locked()) != NULL;) {
        CUcontext handle = work.synchronized = context->handle;
        uint64_t drain = context->waits;
        gs_mutex_unlock(&gs_contexts.lock);
        CUresult result = CUDA_ERROR_NOT_READY;
        if (gs_capture_forbid()) {
            result = GS_REAL(cuCtxSetCurrent)(handle);
            if (result == CUDA_SUCCESS)
                result = GS_REAL(cuCtxSynchronize)();
            gs_capture_allow();
        }
        gs_mutex_lock(&gs_contexts.lock);
        work.synchronized = NULL;
        pthread_cond_broadcast(&work.left);
        if (result == CUDA_ERROR_NOT_READY)
            break;
        context = gs_context_find_locked(handle);
        if (context == NULL)
            continue;
        gs_context_note_failure_locked(context, result);
        if (context->waits == drain)
            context->waits = 0;
    }
    work.synchronizes = false;
    gs_mutex_unlock(&gs_contexts.lock);
    return ignored;
}

/* If the thread cannot be started now, the next query tries again. */
static void synchronize_locked(void)
{
    if (work.synchronizes || waiting_locked() == NULL)
        return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    work.synchronizes = pthread_create(&thread, NULL, synchronize_waiting, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (work.synchronizes)
        pthread_detach(thread);
}

bool gs_context_begin_drain(bool force)
{
    bool begun = true, forbidden = gs_capture_forbid();
    if (!forbidden && !force)
        return false;
    gs_mutex_lock(&gs_contexts.lock);
    work.draining = gs_gate_submissions();
    uint64_t drain = ++work.drains;
    for (struct gs_context *context = gs_contexts.first; context != NULL; context = context->next) {
        context->pending = false;
        context->waits = 0;
        if (context->failure != CUDA_SUCCESS)
            continue; /* no work runs in it any more */
        if (context->ending || GS_REAL(cuCtxSetCurrent)(context->handle) != CUDA_SUCCESS) {
            work.draining = GS_NOT_IDLE;
            continue;
        }
        bool records = gs_real_has(GS_FN_cuCtxRecordEvent);
        if (records && context->event == NULL &&
            GS_REAL(cuEventCreate)(&context->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            context->event = NULL;
        context->pending = records && context->event != NULL &&
                           GS_REAL(cuCtxRecordEvent)(context->handle, context->event) == CUDA_SUCCESS;
        if (context->pending)
            continue;
        /* Not done here: the work in flight may be waiting for a thread that waits for the helper. */
        context->waits = forbidden ? drain : 0;
        if (context->waits != 0)
            continue;
        /* With a capture open, neither works. The capture is invalidated, and has to end first. */
        CUresult result = GS_REAL(cuCtxSynchronize)();
        if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            begun = false;
        gs_context_note_failure_locked(context, result);
    }
    if (!begun)
        work.draining = GS_NOT_IDLE;
    synchronize_locked();
    gs_mutex_unlock(&gs_contexts.lock);
    if (forbidden)
        gs_capture_allow();
    else if (begun)
        gs_capture_forget();
    return begun;
}

bool gs_context_drained(void)
{
    gs_mutex_lock(&gs_contexts.lock);
    synchronize_locked();
    bool drained = waiting_locked() == NULL;
    for (struct gs_context *context = gs_contexts.first; context != NULL; context = context->next) {
        if (!context->pending)
            continue;
        CUresult result = GS_REAL(cuEventQuery)(context->event);
        context->pending = result == CUDA_ERROR_NOT_READY;
        gs_context_note_failure_locked(context, result);
        drained = drained && !context->pending;
    }
    if (drained && work.draining != GS_NOT_IDLE)
        __atomic_store_n(&gs_contexts.idle, work.draining, __ATOMIC_RELEASE);
    gs_mutex_unlock(&gs_contexts.lock);
    return drained;
}

void gs_context_synchronized(CUcontext handle, uint64_t submissions)
{
    bool all = true;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *synchronized = gs_context_find_locked(handle);
    if (synchronized != NULL)
        synchronized->idle = submissions;
    /* For an unknown context, it is not known which work it waits for. */
    for (struct gs_context *context = gs_contexts.first; context != NULL && all; context = context->next)
        all = context->failure != CUDA_SUCCESS || (!context->ending && context->idle == submissions);
    if (synchronized != NULL && all)
        __atomic_store_n(&gs_contexts.idle, submissions, __ATOMIC_RELEASE);
    gs_mutex_unlock(&gs_contexts.lock);
}

static bool record_mark(struct gs_context *context)
{
    CUcontext ignored;
    if (context->mark == NULL && GS_REAL(cuCtxPushCurrent_v2)(context->handle) == CUDA_SUCCESS) {
        if (GS_REAL(cuEventCreate)(&context->mark, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            context->mark = NULL;
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    return context->mark != NULL && GS_REAL(cuCtxRecordEvent)(context->handle, context->mark) == CUDA_SUCCESS;
}

bool gs_context_mark(void)
{
    GS_LEAVES_CAPTURES_ALONE;
    bool marked = gs_real_has(GS_FN_cuCtxRecordEvent) && gs_capture_forbid();
    if (!marked)
        return false;
    gs_mutex_lock(&gs_contexts.lock);
    for (struct gs_context *context = gs_contexts.first; context != NULL && marked; context = context->next)
        marked = context->failure != CUDA_SUCCESS || (!context->ending && record_mark(context));
    gs_mutex_unlock(&gs_contexts.lock);
    gs_capture_allow();
    return marked;
}

bool gs_context_mark_passed(void)
{
    bool passed = true;
    GS_LEAVES_CAPTURES_ALONE;
    gs_mutex_lock(&gs_contexts.lock);
    for (struct gs_context *context = gs_contexts.first; context != NULL && passed; context = context->next)
        passed = context->failure != CUDA_SUCCESS ||
                 (!context->ending && context->mark != NULL && GS_REAL(cuEventQuery)(context->mark) == CUDA_SUCCESS);
    gs_mutex_unlock(&gs_contexts.lock);
    return passed;
}

void gs_context_drain_after_fork(void)
{
    pthread_cond_init(&work.left, NULL);
    /* This was done by a thread of the parent. */
    work.synchronizes = false;
    work.synchronized = NULL;
}

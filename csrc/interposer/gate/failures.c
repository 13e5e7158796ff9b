/* SPDX-License-Identifier: BSD-3-Clause */
#include "gate/failures.h"

#include "base/helper.h"
#include "base/lock.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/slots.h"
#include "loader/real.h"

static unsigned failed; /* number of failed contexts; read without the lock */

bool gs_context_is_lost(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

void gs_context_forget_failure_locked(struct gs_context *context)
{
    if (context->failure != CUDA_SUCCESS)
        __atomic_sub_fetch(&failed, 1, __ATOMIC_RELEASE);
    context->failure = CUDA_SUCCESS;
    context->attended = false;
}

void gs_context_note_failure_locked(struct gs_context *context, CUresult result)
{
    if (!gs_context_is_lost(result) || context->failure != CUDA_SUCCESS)
        return;
    context->failure = result;
    __atomic_add_fetch(&failed, 1, __ATOMIC_RELEASE);
    gs_helper_call(); /* its memory will be given to other processes soon */
}

static void note_failure(CUcontext handle, CUresult result)
{
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    if (context != NULL)
        gs_context_note_failure_locked(context, result);
    gs_mutex_unlock(&gs_contexts.lock);
}

/* A context may be current although it was destroyed, or reset and not retained since. Only the driver knows. */
static bool may_be_gone_locked(const struct gs_context *context)
{
    return context == NULL || context->was_reset;
}

static CUresult ask_whether_gone(CUcontext current)
{
    size_t available, total;
    CUresult result = GS_REAL(cuMemGetInfo_v2)(&available, &total);
    if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || gs_context_is_lost(result))
        return result;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(current);
    if (context != NULL)
        context->was_reset = false;
    gs_mutex_unlock(&gs_contexts.lock);
    return CUDA_SUCCESS;
}

CUresult gs_context_known_failure(void)
{
    CUcontext current = NULL;
    if ((__atomic_load_n(&failed, __ATOMIC_ACQUIRE) == 0 && gs_context_removals() == 0) ||
        GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(current);
    bool may_be_gone = may_be_gone_locked(context);
    CUresult failure = context != NULL ? context->failure : CUDA_SUCCESS;
    gs_mutex_unlock(&gs_contexts.lock);
    return may_be_gone ? ask_whether_gone(current) : failure;
}

/*
 * The event whose query returns the failure of a context, which is current. NULL: there is no event, and *failure is
 * the reason.
 */
static CUevent probe_of(CUcontext handle, CUresult *failure)
{
    CUevent probe = NULL;
    *failure = CUDA_SUCCESS;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_context_find_locked(handle);
    if (may_be_gone_locked(context)) {
        gs_mutex_unlock(&gs_contexts.lock);
        *failure = ask_whether_gone(handle);
        return NULL;
    }
    if (context != NULL && context->failure == CUDA_SUCCESS && context->probe == NULL && !context->ending) {
        CUresult result = GS_REAL(cuEventCreate)(&context->probe, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS)
            context->probe = NULL;
        gs_context_note_failure_locked(context, result);
    }
    if (context != NULL) {
        probe = context->probe;
        *failure = context->failure;
    }
    gs_mutex_unlock(&gs_contexts.lock);
    return probe;
}

static CUresult ask_failure(CUcontext current)
{
    CUresult failure;
    CUevent probe = probe_of(current, &failure);
    if (failure != CUDA_SUCCESS || probe == NULL)
        return failure;
    CUresult result = GS_REAL(cuEventQuery)(probe);
    if (!gs_context_is_lost(result))
        return CUDA_SUCCESS;
    note_failure(current, result);
    return result;
}

CUresult gs_context_ask_failure(void)
{
    CUcontext current = NULL;
    if (!gs_session_attached())
        return CUDA_SUCCESS;
    /* Only work can fail. If none was submitted since all work was done, the last answer is still right. */
    if (gs_context_idle(gs_gate_passes()))
        return gs_context_known_failure();
    if (GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    /* Changing the thread's capture mode twice takes longer than everything else. */
    if (gs_capture_forbid()) {
        CUresult result = ask_failure(current);
        gs_capture_allow();
        return result;
    }
    GS_LEAVES_CAPTURES_ALONE;
    return ask_failure(current);
}

/* A query of an event is forbidden in the same cases as allocating and freeing. */
CUresult gs_context_ask_captures(void)
{
    CUcontext current = NULL;
    CUresult failure;
    if (!gs_capture_open() || GS_REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == NULL)
        return CUDA_SUCCESS;
    CUevent probe = probe_of(current, &failure);
    CUresult result = probe != NULL ? GS_REAL(cuEventQuery)(probe) : CUDA_SUCCESS;
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? result : CUDA_SUCCESS;
}

/* Each context is asked for its failure: the error of a call may come from a context other than the current one. */
void gs_context_observed(CUresult result)
{
    if (!gs_context_is_lost(result) || !gs_session_attached())
        return;
    GS_LEAVES_CAPTURES_ALONE;
    gs_mutex_lock(&gs_contexts.lock);
    for (struct gs_context *context = gs_contexts.first; context != NULL; context = context->next) {
        CUcontext ignored;
        size_t available, total;
        if (context->failure != CUDA_SUCCESS || context->ending ||
            GS_REAL(cuCtxPushCurrent_v2)(context->handle) != CUDA_SUCCESS)
            continue;
        gs_context_note_failure_locked(context, GS_REAL(cuMemGetInfo_v2)(&available, &total));
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    gs_mutex_unlock(&gs_contexts.lock);
}

CUcontext gs_context_take_failed(void)
{
    if (__atomic_load_n(&failed, __ATOMIC_ACQUIRE) == 0)
        return NULL;
    gs_mutex_lock(&gs_contexts.lock);
    struct gs_context *context = gs_contexts.first;
    while (context != NULL && (context->failure == CUDA_SUCCESS || context->attended || context->ending))
        context = context->next;
    CUcontext handle = context != NULL ? context->handle : NULL;
    if (context != NULL)
        context->attended = true;
    gs_mutex_unlock(&gs_contexts.lock);
    return handle;
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on initialisation, and on the life of contexts and modules. */
#include "base/session.h"
#include "client/placement.h"
#include "gate/context_list.h"
#include "gate/contexts.h"
#include "gate/drain.h"
#include "gate/meter.h"
#include "gate/slots.h"
#include "hooks/lifecycle.h"
#include "loader/real.h"
#include "memory/admission.h"

CUresult CUDAAPI cuInit(unsigned int flags)
{
    gs_session_report_fork();
    bool placing = gs_placement_begin();
    CUresult result = GS_REAL(cuInit)(flags);
    if (placing)
        gs_placement_end(result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS)
        gs_lifecycle_start();
    return result;
}

static CUresult created(CUresult result, CUcontext *handle, CUdevice device)
{
    if (result == CUDA_SUCCESS) {
        gs_lifecycle_context_begins(*handle, device, false, true);
        gs_memory_context_begun(device);
    } else {
        gs_memory_context_gone(device);
    }
    return result;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_lifecycle_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate)(handle, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_lifecycle_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v2)(handle, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext *handle, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                CUdevice device)
{
    CUresult refused = gs_lifecycle_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v3)(handle, affinity, count, flags, device), handle, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext *handle, CUctxCreateParams *parameters, unsigned int flags, CUdevice device)
{
    CUresult refused = gs_lifecycle_admit_context(device);
    if (refused != CUDA_SUCCESS)
        return refused;
    return created(GS_REAL(cuCtxCreate_v4)(handle, parameters, flags, device), handle, device);
}

/*
 * Destroying a context frees its allocations. The interposer's go first, while the context can still be synchronised.
 */
static CUresult destroy(CUcontext handle, CUresult (*real)(CUcontext))
{
    if (gs_context_can_be_destroyed(handle)) {
        gs_lifecycle_context_ends(handle);
        gs_lifecycle_context_gone(handle);
    }
    return real(handle);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext handle)
{
    return destroy(handle, GS_REAL(cuCtxDestroy));
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle)
{
    return destroy(handle, GS_REAL(cuCtxDestroy_v2));
}

CUresult CUDAAPI cuCtxAttach(CUcontext *handle, unsigned int flags)
{
    CUresult result = GS_REAL(cuCtxAttach)(handle, flags);
    if (result != CUDA_SUCCESS)
        return result;
    gs_context_attach(*handle);
    return result;
}

/* The last detach destroys a context. Only the current context can be detached. */
CUresult CUDAAPI cuCtxDetach(CUcontext handle)
{
    CUcontext current = NULL;
    GS_REAL(cuCtxGetCurrent)(&current);
    bool last = current == handle && gs_context_detach(handle);
    return last ? destroy(handle, GS_REAL(cuCtxDetach)) : GS_REAL(cuCtxDetach)(handle);
}

static CUresult retain_primary(CUcontext *handle, CUdevice device)
{
    bool first;
    CUresult result = gs_primary_begin_retain(device, &first);
    if (first)
        result = gs_lifecycle_admit_context(device);
    bool admitted = first && result == CUDA_SUCCESS, taken = false;
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuDevicePrimaryCtxRetain)(handle, device);
    if (result == CUDA_SUCCESS)
        taken = gs_lifecycle_context_begins(*handle, device, true, admitted);
    if (taken)
        gs_memory_context_begun(device);
    else if (admitted)
        gs_memory_context_gone(device);
    if (first)
        gs_primary_end_change(device, result);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    return retain_primary(handle, device);
}

static CUresult release_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    CUcontext handle = gs_primary_begin_release(device);
    if (handle != NULL) {
        gs_lifecycle_context_ends(handle);
        gs_lifecycle_context_gone(handle);
    }
    CUresult result = real(device);
    if (handle != NULL)
        gs_primary_end_change(device, CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease));
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
}

static bool is_usable(CUcontext handle)
{
    CUcontext ignored;
    return GS_REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS &&
           GS_REAL(cuCtxPopCurrent_v2)(&ignored) == CUDA_SUCCESS;
}

/* A reset empties the context but leaves it retained. The next use starts it again, or replaces it. */
static CUresult reset_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    CUcontext handle = gs_primary_begin_reset(device);
    for (CUcontext green; handle != NULL && (green = gs_context_green_of(handle)) != NULL;)
        gs_lifecycle_green_ends(green);
    if (handle != NULL)
        gs_lifecycle_context_is_reset(handle);
    CUresult result = real(device);
    if (handle != NULL && is_usable(handle)) {
        gs_lifecycle_context_was_reset(handle, device);
    } else if (handle != NULL) {
        gs_lifecycle_context_gone(handle);
    }
    if (handle != NULL)
        gs_primary_end_change(device, CUDA_SUCCESS);
    return result;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    return reset_primary(device, GS_REAL(cuDevicePrimaryCtxReset));
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return reset_primary(device, GS_REAL(cuDevicePrimaryCtxReset_v2));
}

/*
 * --- Contexts that the hooks did not create: of OpenGL or VDPAU, of green contexts, of libraries that bypass them ---
 */

static __thread CUcontext seen_last __attribute__((tls_model("initial-exec")));
static __thread uint32_t seen_removals __attribute__((tls_model("initial-exec")));

/* From now on, the context is drained. It was not admitted: the scheduler measures what it takes. */
static CUresult seen(CUresult result, CUcontext handle)
{
    uint32_t removals = gs_context_removals();
    if (result != CUDA_SUCCESS || handle == NULL || !gs_session_attached() ||
        (handle == seen_last && removals == seen_removals))
        return result;
    CUcontext ignored;
    CUdevice device;
    if (!gs_context_alive(handle) && GS_REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS) {
        bool known = GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS;
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
        if (known)
            gs_lifecycle_context_begins(handle, device, false, false);
    }
    seen_last = handle;
    seen_removals = removals;
    return result;
}

CUresult CUDAAPI cuGLCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult result = GS_REAL(cuGLCtxCreate)(handle, flags, device);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device)
{
    CUresult result = GS_REAL(cuGLCtxCreate_v2)(handle, flags, device);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *handle, unsigned int flags, CUdevice device, VdpDevice vdpau,
                                  VdpGetProcAddress *functions)
{
    CUresult result = GS_REAL(cuVDPAUCtxCreate)(handle, flags, device, vdpau, functions);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *handle, unsigned int flags, CUdevice device, VdpDevice vdpau,
                                     VdpGetProcAddress *functions)
{
    CUresult result = GS_REAL(cuVDPAUCtxCreate_v2)(handle, flags, device, vdpau, functions);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *handle, CUgreenCtx green)
{
    CUresult result = GS_REAL(cuCtxFromGreenCtx)(handle, green);
    return result == CUDA_SUCCESS ? seen(result, *handle) : result;
}

/* A green context keeps the primary context alive. */
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned int flags)
{
    CUcontext primary, handle;
    if (!gs_session_attached())
        return GS_REAL(cuGreenCtxCreate)(green, description, device, flags);
    CUresult result = retain_primary(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = GS_REAL(cuGreenCtxCreate)(green, description, device, flags);
    if (result == CUDA_SUCCESS && GS_REAL(cuCtxFromGreenCtx)(&handle, *green) == CUDA_SUCCESS) {
        gs_lifecycle_context_begins(handle, device, false, false);
        if (gs_context_set_parent(handle, primary))
            return result;
    }
    release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
    return result;
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext handle = NULL;
    CUdevice device;
    bool known = gs_session_attached() && GS_REAL(cuCtxFromGreenCtx)(&handle, green) == CUDA_SUCCESS;
    bool holds = known && gs_context_is_green(handle, &device);
    if (known && gs_context_alive(handle))
        gs_lifecycle_green_ends(handle);
    CUresult result = GS_REAL(cuGreenCtxDestroy)(green);
    if (holds)
        release_primary(device, GS_REAL(cuDevicePrimaryCtxRelease_v2));
    return result;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle)
{
    return seen(GS_REAL(cuCtxSetCurrent)(handle), handle);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle)
{
    return seen(GS_REAL(cuCtxPushCurrent)(handle), handle);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle)
{
    return seen(GS_REAL(cuCtxPushCurrent_v2)(handle), handle);
}

/* --- Waits for all work of a context: afterwards, no query or wait is needed until more is submitted --- */

CUresult CUDAAPI cuCtxSynchronize(void)
{
    uint64_t submissions = gs_gate_passes();
    bool empty = gs_gate_empty();
    CUcontext current = NULL;
    CUresult result = GS_REAL(cuCtxSynchronize)();
    if (result == CUDA_SUCCESS && empty && !gs_context_idle(submissions) &&
        GS_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS)
        gs_context_synchronized(current, submissions);
    return result;
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle)
{
    uint64_t submissions = gs_gate_passes();
    bool empty = gs_gate_empty();
    CUresult result = GS_REAL(cuCtxSynchronize_v2)(handle);
    if (result == CUDA_SUCCESS && empty && !gs_context_idle(submissions))
        gs_context_synchronized(handle, submissions);
    return result;
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    gs_meter_forget_functions();
    return GS_REAL(cuModuleUnload)(module);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    gs_meter_forget_functions();
    return GS_REAL(cuLibraryUnload)(library);
}

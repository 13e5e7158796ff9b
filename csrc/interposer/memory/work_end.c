/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/work_end.h"

#include "gate/context_list.h"
#include "loader/real.h"
#include "memory/peers.h"

/* Programs have one or two contexts on each device. */
enum { MOST_USERS = 16 };

static CUresult synchronize_alone(CUcontext context)
{
    CUcontext before = NULL, ignored;
    GS_REAL(cuCtxGetCurrent)(&before);
    if (before == context)
        return GS_REAL(cuCtxSynchronize)();
    CUresult result = GS_REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = GS_REAL(cuCtxSynchronize)();
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    return result;
}

/* Whether other GPUs may use the context's memory, too. */
bool gs_work_has_peers(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    return gs_peer_accessors(context, accessors) != 0;
}

static void synchronize_peers(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    CUcontext users[MOST_USERS];
    unsigned count = gs_peer_accessors(context, accessors);
    for (unsigned i = 0; i < count; i++) {
        unsigned found = gs_context_all_on(accessors[i], users, MOST_USERS);
        while (found > 0)
            if (--found < MOST_USERS)
                synchronize_alone(users[found]);
    }
}

/* Records a new event in the stream, which belongs to the current context. */
CUresult gs_work_record(CUevent *event, CUstream stream, bool per_thread)
{
    CUresult result = GS_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = per_thread ? GS_REAL(cuEventRecord_ptsz)(*event, stream) : GS_REAL(cuEventRecord)(*event, stream);
    if (result != CUDA_SUCCESS)
        GS_REAL(cuEventDestroy_v2)(*event);
    return result;
}

/* A new event that passes when the current work of the context is done, without the work of its peers; or NULL. */
static CUevent mark_alone(CUcontext context)
{
    CUcontext ignored;
    CUevent event = NULL;
    if (!gs_real_has(GS_FN_cuCtxRecordEvent) || GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    if (GS_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = NULL;
    } else if (GS_REAL(cuCtxRecordEvent)(context, event) != CUDA_SUCCESS) {
        GS_REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return event;
}

/* Makes the stream wait for the current work of the context. */
static bool join(CUstream stream, CUcontext context)
{
    CUevent event = mark_alone(context);
    bool joined = event != NULL && GS_REAL(cuStreamWaitEvent)(stream, event, 0) == CUDA_SUCCESS;
    if (event != NULL)
        GS_REAL(cuEventDestroy_v2)(event);
    return joined;
}

/* Uses a stream that waits for the context and its peers, and for nothing else. */
static CUevent mark_with_peers(CUcontext context, const CUdevice *accessors, unsigned count)
{
    CUcontext users[MOST_USERS], ignored;
    CUstream stream;
    CUevent event = NULL;
    if (GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    if (GS_REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        bool joined = join(stream, context);
        for (unsigned i = 0; i < count && joined; i++) {
            unsigned found = gs_context_all_on(accessors[i], users, MOST_USERS);
            joined = found <= MOST_USERS;
            while (joined && found > 0)
                joined = join(stream, users[--found]);
        }
        if (joined && gs_work_record(&event, stream, false) != CUDA_SUCCESS)
            event = NULL;
        GS_REAL(cuStreamDestroy_v2)(stream);
    }
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return event;
}

/*
 * A new event that passes when the work that may use the context's memory is done. NULL: the end can only be found by
 * waiting.
 */
CUevent gs_work_mark(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    unsigned count = gs_peer_accessors(context, accessors);
    return count == 0 ? mark_alone(context) : mark_with_peers(context, accessors, count);
}

CUresult gs_work_await(CUcontext context)
{
    CUresult result = synchronize_alone(context);
    synchronize_peers(context);
    return result;
}

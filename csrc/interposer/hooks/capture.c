/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks that follow open stream captures. */
#include "hooks/capture.h"
#include "base/lock.h"
#include "client/client.h"
#include "gate/enter.h"
#include "gate/work.h"
#include "loader/real.h"

#include <pthread.h>
#include <stdlib.h>

struct capture {
    CUstream stream; /* where it began; NULL: the default stream of its thread */
    pthread_t thread;
    CUcontext context;
    bool broken; /* we broke it off; the application has yet to end it */
    struct capture *next;
};

static struct {
    struct gs_mutex lock;
    struct capture *first;
    int count; /* read without the lock */
    int open;  /* those that are not broken; read without the lock */
} captures = {.lock = GS_MUTEX(GS_RANK_CAPTURES)};

/* Written while a capture begins, read while none may: the helper never waits for a thread that synchronises. */
static struct gs_rwlock beginning = GS_RWLOCK(GS_RANK_BEGINNING);

bool gs_capture_open(void)
{
    return __atomic_load_n(&captures.open, __ATOMIC_ACQUIRE) > 0;
}

bool gs_capture_own(void)
{
    bool own = false;
    if (!gs_capture_open())
        return false;
    gs_mutex_lock(&captures.lock);
    for (const struct capture *capture = captures.first; capture != NULL && !own; capture = capture->next)
        own = !capture->broken && pthread_equal(capture->thread, pthread_self());
    gs_mutex_unlock(&captures.lock);
    return own;
}

static bool is_capturing(CUstream stream, enum gs_stream_kind kind)
{
    if (kind >= GS_STREAM_NONE)
        return false;
    /* Asking about the legacy stream while another stream captures would invalidate that capture; it never captures. */
    if (kind == GS_STREAM_LEGACY && (stream == NULL || stream == CU_STREAM_LEGACY))
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = kind == GS_STREAM_PTSZ ? GS_REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                             : GS_REAL(cuStreamIsCapturing)(stream, &status);
    /* What goes into a capture that has become invalid is refused by the driver; it must not be run. */
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind)
{
    return gs_capture_open() && is_capturing(stream, kind);
}

bool gs_capture_holds(CUstream stream, enum gs_stream_kind kind)
{
    return __atomic_load_n(&captures.count, __ATOMIC_ACQUIRE) != 0 && is_capturing(stream, kind);
}

bool gs_capture_forbid(void)
{
    gs_rwlock_rdlock(&beginning);
    if (!gs_capture_open())
        return true;
    gs_rwlock_unlock(&beginning);
    return false;
}

void gs_capture_allow(void)
{
    gs_rwlock_unlock(&beginning);
}

void gs_capture_exchange_mode(CUstreamCaptureMode *mode)
{
    GS_REAL(cuThreadExchangeStreamCaptureMode)(mode);
}

void gs_capture_forget(void)
{
    gs_mutex_lock(&captures.lock);
    for (struct capture *capture = captures.first; capture != NULL; capture = capture->next)
        capture->broken = true;
    __atomic_store_n(&captures.open, 0, __ATOMIC_RELEASE);
    gs_mutex_unlock(&captures.lock);
}

void gs_capture_after_fork(void)
{
    gs_rwlock_after_fork(&beginning);
    gs_mutex_after_fork(&captures.lock);
}

static bool began_in(const struct capture *capture, CUstream stream)
{
    return capture->stream == stream && (stream != NULL || pthread_equal(capture->thread, pthread_self()));
}

/* Forgets the capture that began in the stream, or all of a context. A lease that is wanted back goes with the last. */
static void over(CUstream stream, CUcontext context)
{
    struct capture *gone = NULL;
    gs_mutex_lock(&captures.lock);
    for (struct capture **link = &captures.first; *link != NULL;) {
        struct capture *capture = *link;
        if (context != NULL ? capture->context != context : !began_in(capture, stream)) {
            link = &capture->next;
            continue;
        }
        if (!capture->broken)
            __atomic_sub_fetch(&captures.open, 1, __ATOMIC_ACQ_REL);
        __atomic_sub_fetch(&captures.count, 1, __ATOMIC_ACQ_REL);
        *link = capture->next;
        capture->next = gone;
        gone = capture;
    }
    gs_mutex_unlock(&captures.lock);
    if (gone != NULL)
        gs_client_capture_ended();
    while (gone != NULL) {
        struct capture *next = gone->next;
        free(gone);
        gone = next;
    }
}

void gs_capture_context_ends(CUcontext context)
{
    over(NULL, context);
}

static CUstream name_of(CUstream stream, enum gs_stream_kind kind)
{
    /* A capture cannot begin in the legacy stream. */
    bool own = stream == CU_STREAM_PER_THREAD || (stream == NULL && kind == GS_STREAM_PTSZ);
    return own ? NULL : stream == NULL ? CU_STREAM_LEGACY : stream;
}

struct opening {
    struct gs_slot *entered;
    struct capture *capture;
};

/*
 * A capture begins under a lease, and while it is open the lease is not given back: what is captured submits nothing,
 * but the driver looks the addresses of copies up.
 */
static CUresult begin(struct opening *opening)
{
    opening->capture = calloc(1, sizeof(*opening->capture));
    if (opening->capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gs_gate_enter(&opening->entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
    if (result == CUDA_SUCCESS)
        gs_rwlock_wrlock(&beginning);
    else
        free(opening->capture);
    return result;
}

static CUresult begun(const struct opening *opening, CUstream stream, enum gs_stream_kind kind, CUresult result)
{
    struct capture *capture = opening->capture;
    if (result == CUDA_SUCCESS) {
        *capture = (struct capture){.stream = name_of(stream, kind), .thread = pthread_self()};
        GS_REAL(cuCtxGetCurrent)(&capture->context);
        gs_mutex_lock(&captures.lock);
        capture->next = captures.first;
        captures.first = capture;
        __atomic_add_fetch(&captures.count, 1, __ATOMIC_ACQ_REL);
        __atomic_add_fetch(&captures.open, 1, __ATOMIC_ACQ_REL);
        gs_mutex_unlock(&captures.lock);
    } else {
        free(capture);
    }
    gs_rwlock_unlock(&beginning);
    gs_gate_leave(opening->entered);
    return result;
}

/* An EndCapture that fails has ended the capture too, unless there was none (or another thread's) to end. */
static CUresult ended(CUstream stream, enum gs_stream_kind kind, CUresult result)
{
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_ILLEGAL_STATE)
        over(name_of(stream, kind), NULL);
    return result;
}

#define BEGIN(kind, call)                                                                                              \
    struct opening opening;                                                                                            \
    CUresult result = begin(&opening);                                                                                 \
    return result == CUDA_SUCCESS ? begun(&opening, stream, kind, call) : result

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
    BEGIN(GS_STREAM_LEGACY, GS_REAL(cuStreamBeginCapture)(stream));
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(GS_STREAM_PTSZ, GS_REAL(cuStreamBeginCapture_ptsz)(stream));
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(GS_STREAM_LEGACY, GS_REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(GS_STREAM_PTSZ, GS_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    BEGIN(GS_STREAM_LEGACY, GS_REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, data, count, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    BEGIN(GS_STREAM_PTSZ, GS_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies, data, count, mode));
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(stream, GS_STREAM_LEGACY, GS_REAL(cuStreamEndCapture)(stream, graph));
}

CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(stream, GS_STREAM_PTSZ, GS_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

/* A capture goes with its stream. Its handle may be another's as soon as the driver has it back. */
static void destroyed(CUstream stream)
{
    if (stream == NULL || stream == CU_STREAM_PER_THREAD)
        return;
    over(stream, NULL);
    gs_meter_stream_ends(stream);
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    destroyed(stream);
    return GS_REAL(cuStreamDestroy)(stream);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    destroyed(stream);
    return GS_REAL(cuStreamDestroy_v2)(stream);
}

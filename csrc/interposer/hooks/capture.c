/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks that track open stream captures. */
#include "gate/capture.h"
#include "client/lease.h"
#include "gate/enter.h"
#include "gate/meter.h"
#include "gate/work.h"
#include "loader/real.h"

#include <stdlib.h>

static CUstream name_of(CUstream stream, enum gs_stream_kind kind)
{
    /* A capture cannot begin in the legacy stream. */
    bool own = stream == CU_STREAM_PER_THREAD || (stream == NULL && kind == GS_STREAM_PTSZ);
    return own ? NULL : stream == NULL ? CU_STREAM_LEGACY : stream;
}

/* When the last capture ends, a revoked lease is released. */
static void over(CUstream stream)
{
    if (gs_capture_over(stream, NULL))
        gs_lease_capture_ended();
}

struct opening {
    struct gs_slot *entered;
    struct gs_capture *capture;
};

/*
 * A capture begins under a lease, and the lease is not released while it is open. A captured call submits nothing, but
 * the driver looks up the addresses of copies.
 */
static CUresult begin(struct opening *opening)
{
    opening->capture = gs_capture_new();
    if (opening->capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gs_gate_enter(&opening->entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
    if (result == CUDA_SUCCESS)
        gs_capture_begin();
    else
        free(opening->capture);
    return result;
}

static CUresult begun(const struct opening *opening, CUstream stream, enum gs_stream_kind kind, CUresult result)
{
    gs_capture_begun(opening->capture, name_of(stream, kind), result == CUDA_SUCCESS);
    gs_gate_leave(opening->entered);
    return result;
}

/* A failed EndCapture has ended the capture, too, unless there was none, or it was another thread's. */
static CUresult ended(CUstream stream, enum gs_stream_kind kind, CUresult result)
{
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_ILLEGAL_STATE)
        over(name_of(stream, kind));
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

/* Destroying a stream ends its capture. As soon as the driver has the handle back, it may belong to another stream. */
static void destroyed(CUstream stream)
{
    if (stream == NULL || stream == CU_STREAM_PER_THREAD)
        return;
    over(stream);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks that count open stream captures. */
#include "capture.h"
#include "real.h"

static int open_captures;

bool gs_capture_open(void)
{
    return __atomic_load_n(&open_captures, __ATOMIC_ACQUIRE) > 0;
}

bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind)
{
    if (!gs_capture_open() || kind == GS_STREAM_NONE)
        return false;
    /* Asking about the legacy stream while another stream captures would invalidate that capture; it never captures. */
    if (kind == GS_STREAM_LEGACY && (stream == NULL || stream == CU_STREAM_LEGACY))
        return false;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = kind == GS_STREAM_PTSZ ? GS_REAL(cuStreamIsCapturing_ptsz)(stream, &status)
                                             : GS_REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult begun(CUresult result)
{
    if (result == CUDA_SUCCESS)
        __atomic_add_fetch(&open_captures, 1, __ATOMIC_ACQ_REL);
    return result;
}

/* An EndCapture that fails has ended the capture too, unless there was none (or another thread's) to end. */
static CUresult ended(CUresult result)
{
    if (result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
        result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_ILLEGAL_STATE) {
        int open = __atomic_load_n(&open_captures, __ATOMIC_ACQUIRE);
        while (open > 0 &&
               !__atomic_compare_exchange_n(&open_captures, &open, open - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            ;
    }
    return result;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
    return begun(GS_REAL(cuStreamBeginCapture)(stream));
}

CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begun(GS_REAL(cuStreamBeginCapture_ptsz)(stream));
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begun(GS_REAL(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return begun(GS_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    return begun(GS_REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, data, count, mode));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    return begun(GS_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies, data, count, mode));
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return ended(GS_REAL(cuStreamEndCapture)(stream, graph));
}

CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return ended(GS_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}

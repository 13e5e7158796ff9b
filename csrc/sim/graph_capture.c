/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph_capture.h"

#include "capture.h"
#include "context.h"
#include "graph.h"
#include "graph_memory.h"

#include <stdlib.h>

CUresult sim_capture_allocate(struct sim_stream *stream, size_t size, const CUmemPoolProps *properties,
                              unsigned accessible, CUdeviceptr *address)
{
    struct sim_op *op;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    /* The pool's export handles do not matter here, because memory of a graph cannot be exported. */
    CUmemPoolProps plain = *properties;
    plain.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    SIM_TRY(sim_op_allocate(&op, stream->context, stream->capture->graph, size, &plain, accessible));
    *address = sim_op_memory(op);
    return sim_capture_record(stream, op);
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address)
{
    struct sim_op *op;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    SIM_TRY(sim_op_free(&op, stream->capture->graph, address));
    return sim_capture_record(stream, op);
}

static CUresult begin(CUstream handle, CUgraph graph_handle, CUstreamCaptureMode mode, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct sim_capture *capture = calloc(1, sizeof *capture);
    struct sim_graph *graph = (struct sim_graph *)graph_handle;
    if (graph == NULL)
        graph = calloc(1, sizeof *graph);
    if (capture == NULL || graph == NULL) {
        free(capture);
        if (graph_handle == NULL)
            free(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->magic = SIM_GRAPH_MAGIC;
    *capture = (struct sim_capture){.graph = graph,
                                    .origin = stream,
                                    .context = stream->context,
                                    .mode = mode,
                                    .thread = pthread_self(),
                                    .borrowed = graph_handle != NULL};
    sim_capture_begin(stream, capture);
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamBeginCapture, _ptsz, (CUstream stream), begin(stream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, meant))
SIM_PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), begin(stream, NULL, mode, meant))
SIM_PAIR(cuStreamBeginCaptureToGraph, _ptsz,
         (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
          CUstreamCaptureMode mode),
         ((void)dependencies, (void)edges, (void)count,
          graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, graph, mode, meant)))

static CUresult end(CUstream handle, CUgraph *out, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(out != NULL);
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream != capture->origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *out = NULL;
    if (sim_capture_finish(capture))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *out = (CUgraph)capture->graph;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), end(stream, graph, meant))

static CUstreamCaptureStatus status_of(const struct sim_stream *stream)
{
    return stream->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(status != NULL);
    if (stream == stream->context->legacy && stream->context->blocking_captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status),
         is_capturing(stream, status, meant))

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count,
                             enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(is_capturing(handle, status, meant));
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id != NULL)
        *id = stream->capture->id;
    if (graph != NULL)
        *graph = (CUgraph)stream->capture->graph;
    if (dependencies != NULL)
        *dependencies =
            stream->capture->graph->last == NULL ? NULL : (const CUgraphNode *)&stream->capture->graph->last;
    if (edges != NULL)
        *edges = NULL;
    if (count != NULL)
        *count = stream->capture->graph->last == NULL ? 0 : 1;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamGetCaptureInfo, _ptsz, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
         capture_info(stream, status, id, NULL, NULL, NULL, NULL, meant))
SIM_PAIR(cuStreamGetCaptureInfo_v2, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count),
         capture_info(stream, status, id, graph, dependencies, NULL, count, meant))
SIM_PAIR(cuStreamGetCaptureInfo_v3, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
         capture_info(stream, status, id, graph, dependencies, edges, count, meant))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER();
    SIM_REQUIRE(mode != NULL && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    *mode = sim_capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}

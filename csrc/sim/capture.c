/* SPDX-License-Identifier: BSD-3-Clause */
#include "capture.h"

#include "context.h"
#include "event.h"
#include "graph.h"
#include "graph_memory.h"
#include "inject.h"

#include <stdlib.h>

static struct sim_capture *captures;
static unsigned own_mode_captures; /* of mode global or thread-local */
static unsigned long long next_id = 1;
static __thread CUstreamCaptureMode thread_mode __attribute__((tls_model("initial-exec")));

void sim_capture_invalidate(struct sim_capture *capture)
{
    capture->invalid = true;
}

void sim_capture_invalidate_context(struct sim_context *context)
{
    pthread_mutex_lock(&sim_graphs_lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->context == context)
            capture->invalid = true;
    pthread_mutex_unlock(&sim_graphs_lock);
}

CUresult sim_capture_check_context(struct sim_context *context)
{
    if (__atomic_load_n(&context->captures, __ATOMIC_RELAXED) == 0)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&sim_graphs_lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->context == context && !capture->invalid)
            capture->invalid = forbidden = true;
    }
    pthread_mutex_unlock(&sim_graphs_lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult sim_capture_check_unsafe(void)
{
    if (__atomic_load_n(&own_mode_captures, __ATOMIC_RELAXED) == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&sim_graphs_lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool anybodys = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || anybodys) {
            capture->invalid = true;
            forbidden = true;
        }
    }
    pthread_mutex_unlock(&sim_graphs_lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_capture *capture = stream->capture;
    if (capture->invalid) {
        sim_op_release(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    pthread_mutex_lock(&sim_graphs_lock);
    /* The order of capture is one that all dependencies allow; a chain of them says so. */
    CUresult result = sim_graph_append_last(capture->graph, op, NULL);
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

CUresult sim_capture_allocate(struct sim_stream *stream, size_t size, const CUmemPoolProps *properties,
                              unsigned accessible, CUdeviceptr *address)
{
    struct sim_op *op;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    /* What the pool exports is of no concern to the graph, whose memory cannot be exported. */
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

CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
}

static void join(struct sim_stream *stream, struct sim_capture *capture)
{
    __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
    stream->captured_next = capture->members;
    capture->members = stream;
    capture->streams++;
    __atomic_add_fetch(&stream->context->captures, 1, __ATOMIC_RELAXED);
    if (stream->blocking)
        __atomic_add_fetch(&stream->context->blocking_captures, 1, __ATOMIC_RELAXED);
}

static void leave(struct sim_stream *stream)
{
    struct sim_stream **link = &stream->capture->members;
    while (*link != stream)
        link = &(*link)->captured_next;
    *link = stream->captured_next;
    stream->capture->streams--;
    __atomic_store_n(&stream->capture, NULL, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&stream->context->captures, 1, __ATOMIC_RELAXED);
    if (stream->blocking)
        __atomic_sub_fetch(&stream->context->blocking_captures, 1, __ATOMIC_RELAXED);
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_graphs_lock);
    struct sim_capture *capture = event->capture;
    if (capture->over || stream == stream->context->legacy)
        result = stream == stream->context->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_CAPTURED_EVENT;
    else if (stream->capture == NULL)
        join(stream, capture);
    else if (stream->capture != capture)
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
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
    pthread_mutex_lock(&sim_graphs_lock);
    capture->id = next_id++;
    capture->next = captures;
    captures = capture;
    join(stream, capture);
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        __atomic_add_fetch(&own_mode_captures, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sim_graphs_lock);
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamBeginCapture, _ptsz, (CUstream stream), begin(stream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, meant))
SIM_PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), begin(stream, NULL, mode, meant))
SIM_PAIR(cuStreamBeginCaptureToGraph, _ptsz,
         (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
          CUstreamCaptureMode mode),
         ((void)dependencies, (void)edges, (void)count,
          graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, graph, mode, meant)))

/* Takes all streams out of the capture, whatever their contexts; true if it is invalid. */
static bool finish(struct sim_capture *capture)
{
    pthread_mutex_lock(&sim_graphs_lock);
    while (capture->members != NULL)
        leave(capture->members);
    for (struct sim_capture **place = &captures; *place != NULL; place = &(*place)->next) {
        if (*place == capture) {
            *place = capture->next;
            break;
        }
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        __atomic_sub_fetch(&own_mode_captures, 1, __ATOMIC_RELAXED);
    capture->over = true; /* kept: events may still say that they were recorded into it */
    bool invalid = capture->invalid;
    pthread_mutex_unlock(&sim_graphs_lock);
    if (invalid && !capture->borrowed)
        sim_graph_free(capture->graph);
    return invalid;
}

void sim_capture_abandon(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return;
    sim_capture_invalidate(capture);
    if (stream == capture->origin) {
        finish(capture);
        return;
    }
    pthread_mutex_lock(&sim_graphs_lock);
    leave(stream);
    pthread_mutex_unlock(&sim_graphs_lock);
}

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
    if (finish(capture))
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
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

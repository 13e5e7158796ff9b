/* SPDX-License-Identifier: BSD-3-Clause */
#include "capture.h"

#include "context.h"
#include "ports.h"

pthread_mutex_t sim_graphs_lock = PTHREAD_MUTEX_INITIALIZER;

static struct sim_capture *captures;
static unsigned own_mode_captures; /* captures of mode global or thread-local */
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
    /* The order of capture satisfies all dependencies. A chain of dependencies keeps it. */
    CUresult result = sim_ports.record(capture->graph, op, NULL);
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
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

CUresult sim_capture_join(struct sim_stream *stream, struct sim_capture *capture)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_graphs_lock);
    if (capture->over || stream == stream->context->legacy)
        result = stream == stream->context->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_CAPTURED_EVENT;
    else if (stream->capture == NULL)
        join(stream, capture);
    else if (stream->capture != capture)
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

void sim_capture_begin(struct sim_stream *stream, struct sim_capture *capture)
{
    pthread_mutex_lock(&sim_graphs_lock);
    capture->id = next_id++;
    capture->next = captures;
    captures = capture;
    join(stream, capture);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        __atomic_add_fetch(&own_mode_captures, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sim_graphs_lock);
}

bool sim_capture_finish(struct sim_capture *capture)
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
    capture->over = true; /* kept, because events may still refer to it */
    bool invalid = capture->invalid;
    pthread_mutex_unlock(&sim_graphs_lock);
    if (invalid && !capture->borrowed)
        sim_ports.discard(capture->graph);
    return invalid;
}

void sim_capture_abandon(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return;
    sim_capture_invalidate(capture);
    if (stream == capture->origin) {
        sim_capture_finish(capture);
        return;
    }
    pthread_mutex_lock(&sim_graphs_lock);
    leave(stream);
    pthread_mutex_unlock(&sim_graphs_lock);
}

CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode)
{
    CUstreamCaptureMode old = thread_mode;
    thread_mode = mode;
    return old;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "event.h"

#include "context.h"
#include "graph.h"
#include "segment.h"

#include <stdlib.h>

#define EVENT_MAGIC UINT64_C(0x53494d45564e5431)

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_event *pool;

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && flags < 8 && !((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)));
    if (flags & CU_EVENT_INTERPROCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&pool_lock);
    struct sim_event *event = pool;
    if (event != NULL)
        pool = event->next;
    pthread_mutex_unlock(&pool_lock);
    if (event == NULL) {
        event = calloc(1, sizeof *event);
        if (event == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_init(&event->lock, NULL);
    }
    event->context = context;
    event->flags = flags;
    event->point = (struct sim_point){NULL, 0};
    event->capture = NULL;
    event->magic = EVENT_MAGIC;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

static CUresult find(CUevent handle, struct sim_event **event)
{
    SIM_ENTER();
    *event = (struct sim_event *)handle;
    return handle != NULL && (*event)->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    struct sim_event *event;
    SIM_TRY(find(handle, &event));
    pthread_mutex_lock(&event->lock);
    event->magic = 0;
    event->generation++; /* a record that is still queued is for nobody */
    pthread_mutex_unlock(&event->lock);
    pthread_mutex_lock(&pool_lock);
    event->next = pool;
    pool = event;
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

struct record {
    struct sim_event *event;
    uint64_t generation;
};

static CUresult run_record(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    struct record *record = (struct record *)op->payload;
    pthread_mutex_lock(&record->event->lock);
    if (record->event->generation == record->generation) {
        record->event->time = sim_now();
        record->event->timed_generation = record->generation;
    }
    pthread_mutex_unlock(&record->event->lock);
    return CUDA_SUCCESS;
}

static struct sim_op *new_record(struct sim_event *event)
{
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, sizeof(struct record), run_record);
    if (op == NULL)
        return NULL;
    op->despite_error = true;
    *(struct record *)op->payload = (struct record){event, ++event->generation};
    return op;
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_event *event;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(find(handle, &event));
    SIM_REQUIRE((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) == 0);
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture != NULL)
        return sim_capture_event(stream, event);
    pthread_mutex_lock(&event->lock);
    struct sim_op *op = new_record(event);
    event->capture = NULL;
    CUresult result = sim_stream_submit(stream, op, &event->point);
    pthread_mutex_unlock(&event->lock);
    return result;
}

SIM_PAIR(cuEventRecord, _ptsz, (CUevent event, CUstream stream), record(event, stream, 0, meant))
SIM_PAIR(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags),
         record(event, stream, flags, meant))

static struct sim_point point_of(struct sim_event *event)
{
    pthread_mutex_lock(&event->lock);
    struct sim_point point = event->point;
    pthread_mutex_unlock(&event->lock);
    return point;
}

CUresult cuEventQuery(CUevent handle)
{
    struct sim_event *event;
    SIM_TRY(find(handle, &event));
    SIM_TRY(sim_capture_check_unsafe());
    if (event->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (!sim_point_passed(point_of(event)))
        return CUDA_ERROR_NOT_READY;
    return sim_context_error(event->context);
}

CUresult cuEventSynchronize(CUevent handle)
{
    struct sim_event *event;
    SIM_TRY(find(handle, &event));
    SIM_TRY(sim_capture_check_unsafe());
    if (event->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct sim_point point = point_of(event);
    if (point.stream != NULL)
        sim_point_wait(point);
    return sim_context_error(event->context);
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    struct sim_event *start, *end;
    SIM_TRY(find(start_handle, &start));
    SIM_TRY(find(end_handle, &end));
    SIM_REQUIRE(milliseconds != NULL);
    if (start->context != end->context || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) ||
        start->point.stream == NULL || end->point.stream == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_point_passed(point_of(start)) || !sim_point_passed(point_of(end)))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->time - start->time) * 1e-6);
    return sim_context_error(end->context);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_event *event;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(find(handle, &event));
    SIM_REQUIRE((flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) == 0);
    if (event->capture != NULL)
        return sim_capture_wait(stream, event);
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    struct sim_point point = point_of(event);
    if (point.stream == NULL || sim_point_passed(point))
        return CUDA_SUCCESS;
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, 0, sim_op_nothing);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_op_wait_for(op, point);
    return sim_stream_submit(stream, op, NULL);
}

SIM_PAIR(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags),
         wait_event(stream, event, flags, meant))

static CUresult check_captures(struct sim_context *context)
{
    if (__atomic_load_n(&context->captures, __ATOMIC_RELAXED) == 0)
        return CUDA_SUCCESS;
    sim_capture_invalidate_context(context);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Nothing is queued or running in any stream of the context. */
static bool idle(struct sim_context *context)
{
    pthread_mutex_lock(&context->order);
    bool passed =
        sim_point_passed(sim_stream_end(context->legacy)) && sim_point_passed(sim_stream_end(context->internal));
    for (struct sim_stream *stream = context->streams; stream != NULL && passed; stream = stream->next)
        passed = sim_point_passed(sim_stream_end(stream));
    pthread_mutex_unlock(&context->order);
    return passed;
}

CUresult cuCtxRecordEvent(CUcontext context_handle, CUevent handle)
{
    struct sim_context *context;
    struct sim_event *event;
    SIM_TRY(sim_context_resolve(context_handle, &context));
    SIM_TRY(find(handle, &event));
    SIM_TRY(sim_context_error(context));
    if (event->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(check_captures(context));
    pthread_mutex_lock(&event->lock);
    if (idle(context)) {
        /* A GPU without work records at once; a worker would first have to be woken. */
        event->generation++;
        event->timed_generation = event->generation;
        event->time = sim_now();
        event->point = (struct sim_point){NULL, 0};
        event->capture = NULL;
        pthread_mutex_unlock(&event->lock);
        return CUDA_SUCCESS;
    }
    struct sim_op *op = new_record(event);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (op != NULL) {
        pthread_mutex_lock(&context->order);
        sim_op_wait_for(op, sim_stream_end(context->legacy));
        for (struct sim_stream *stream = context->streams; stream != NULL; stream = stream->next)
            sim_op_wait_for(op, sim_stream_end(stream));
        pthread_mutex_unlock(&context->order);
        event->capture = NULL;
        result = sim_stream_submit(context->internal, op, &event->point);
    }
    pthread_mutex_unlock(&event->lock);
    return result;
}

CUresult cuCtxWaitEvent(CUcontext context_handle, CUevent handle)
{
    struct sim_context *context;
    struct sim_event *event;
    SIM_TRY(sim_context_resolve(context_handle, &context));
    SIM_TRY(find(handle, &event));
    SIM_TRY(sim_context_error(context));
    SIM_TRY(check_captures(context));
    struct sim_point point = point_of(event), barrier;
    if (point.stream == NULL || sim_point_passed(point))
        return CUDA_SUCCESS;
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, 0, sim_op_nothing);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_op_wait_for(op, point);
    SIM_TRY(sim_stream_submit(context->internal, op, &barrier));
    return sim_context_barrier(context, barrier);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "event.h"

#include "base/clock.h"
#include "beacon.h"
#include "capture.h"
#include "context.h"
#include "contexts.h"
#include "inject.h"
#include "ipc.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVENT_MAGIC UINT64_C(0x53494d45564e5431)

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_event *pool;

/* Takes ownership of the beacon. */
static CUresult event_new(CUevent *out, struct sim_context *context, unsigned flags, struct sim_beacon *beacon)
{
    pthread_mutex_lock(&pool_lock);
    struct sim_event *event = pool;
    if (event != NULL)
        pool = event->next;
    pthread_mutex_unlock(&pool_lock);
    if (event == NULL) {
        event = calloc(1, sizeof *event);
        if (event == NULL) {
            if (beacon != NULL)
                sim_beacon_release(beacon);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        pthread_mutex_init(&event->lock, NULL);
    }
    event->beacon = beacon;
    event->context = context;
    event->flags = flags;
    event->point = (struct sim_point){NULL, 0};
    event->capture = NULL;
    event->magic = EVENT_MAGIC;
    *out = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    SIM_INJECT(cuEventCreate);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL && flags < 8 && !((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)));
    if ((flags & CU_EVENT_INTERPROCESS) == 0)
        return event_new(out, context, flags, NULL);
    struct sim_beacon *beacon = sim_beacon_new();
    return beacon == NULL ? CUDA_ERROR_OUT_OF_MEMORY : event_new(out, context, flags, beacon);
}

CUresult sim_event_find(CUevent handle, struct sim_event **event)
{
    SIM_ENTER();
    *event = (struct sim_event *)handle;
    return handle != NULL && (*event)->magic == EVENT_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool sim_event_is_open(const struct sim_event *event)
{
    return event->magic == EVENT_MAGIC;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    SIM_INJECT(cuEventDestroy_v2);
    struct sim_event *event;
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(sim_process_check());
    pthread_mutex_lock(&event->lock);
    event->magic = 0;
    event->life++;
    event->generation++; /* no wait may use a record that is still queued */
    if (event->beacon != NULL)
        sim_beacon_release(event->beacon);
    event->beacon = NULL;
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

struct sim_event_record sim_event_begin(struct sim_event *event)
{
    struct sim_event_record record = {.event = event, .generation = ++event->generation, .beacon = event->beacon};
    event->capture = NULL;
    if (event->beacon != NULL) {
        sim_beacon_retain(event->beacon);
        record.number = sim_beacon_record(event->beacon);
    }
    return record;
}

void sim_event_reach(const struct sim_event_record *record)
{
    pthread_mutex_lock(&record->event->lock);
    if (record->event->generation == record->generation) {
        record->event->time = sim_now();
        record->event->timed_generation = record->generation;
    }
    pthread_mutex_unlock(&record->event->lock);
    if (record->beacon != NULL)
        sim_beacon_reach(record->beacon, record->number);
}

void sim_event_release(const struct sim_event_record *record)
{
    if (record->beacon != NULL)
        sim_beacon_release(record->beacon);
}

static CUresult run_record(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    sim_event_reach((const struct sim_event_record *)op->payload);
    return CUDA_SUCCESS;
}

static void dispose_record(struct sim_op *op)
{
    sim_event_release((const struct sim_event_record *)op->payload);
}

static struct sim_op *new_record(struct sim_event *event)
{
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, sizeof(struct sim_event_record), run_record);
    if (op == NULL)
        return NULL;
    op->despite_error = true;
    *(struct sim_event_record *)op->payload = sim_event_begin(event);
    op->dispose = dispose_record;
    return op;
}

CUresult sim_op_event(struct sim_op **op, enum sim_op_kind kind, CUevent handle)
{
    struct sim_event *event;
    SIM_TRY(sim_event_find(handle, &event));
    *op = sim_op_new(kind, sizeof(struct sim_event_named), sim_op_nothing);
    if (*op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct sim_event_named *)(*op)->payload = (struct sim_event_named){event, event->life};
    return CUDA_SUCCESS;
}

/* A flag that is only valid while the stream is captured. The event then becomes part of a node. */
static CUresult check_external(const struct sim_stream *stream, unsigned flags, unsigned external)
{
    SIM_REQUIRE((flags & ~external) == 0 && (flags == 0 || stream->capture != NULL));
    return CUDA_SUCCESS;
}

static CUresult capture_node(struct sim_stream *stream, enum sim_op_kind kind, struct sim_event *event)
{
    struct sim_op *op;
    SIM_TRY(sim_op_event(&op, kind, (CUevent)event));
    return sim_capture_record(stream, op);
}

static CUresult capture_event(struct sim_stream *stream, struct sim_event *event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
}

static CUresult record(CUevent handle, CUstream stream_handle, unsigned flags, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_event *event;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(check_external(stream, flags, CU_EVENT_RECORD_EXTERNAL));
    if (event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0)
        return capture_node(stream, SIM_OP_RECORD, event);
    if (stream->capture != NULL)
        return capture_event(stream, event);
    pthread_mutex_lock(&event->lock);
    struct sim_op *op = new_record(event);
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

/* The result of the work before a point that has passed. */
static CUresult result_of(const struct sim_event *event, struct sim_point point)
{
    SIM_TRY(sim_point_injected(point));
    if (point.stream == event->context->internal)
        SIM_TRY(sim_context_injected(event->context));
    return sim_context_error(event->context);
}

CUresult cuEventQuery(CUevent handle)
{
    SIM_INJECT(cuEventQuery);
    struct sim_event *event;
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(sim_process_check());
    SIM_TRY(sim_capture_check_unsafe());
    if (event->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct sim_point point = point_of(event);
    if (!sim_point_passed(point) ||
        (event->beacon != NULL && !sim_beacon_passed(event->beacon, sim_beacon_last(event->beacon))))
        return CUDA_ERROR_NOT_READY;
    return result_of(event, point);
}

CUresult cuEventSynchronize(CUevent handle)
{
    SIM_INJECT(cuEventSynchronize);
    struct sim_event *event;
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(sim_process_check());
    SIM_TRY(sim_capture_check_unsafe());
    if (event->capture != NULL)
        return CUDA_ERROR_CAPTURED_EVENT;
    struct sim_point point = point_of(event);
    if (point.stream != NULL)
        sim_point_wait(point);
    if (event->beacon != NULL)
        sim_beacon_wait(event->beacon, sim_beacon_last(event->beacon));
    sim_pool_settle();
    return result_of(event, point);
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    struct sim_event *start, *end;
    SIM_TRY(sim_event_find(start_handle, &start));
    SIM_TRY(sim_event_find(end_handle, &end));
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

struct remote {
    struct sim_beacon *beacon;
    uint64_t number;
};

static CUresult run_remote(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    const struct remote *remote = (const struct remote *)op->payload;
    sim_beacon_wait(remote->beacon, remote->number);
    return CUDA_SUCCESS;
}

static void dispose_remote(struct sim_op *op)
{
    sim_beacon_release(((struct remote *)op->payload)->beacon);
}

static CUresult wait_for_processes(struct sim_stream *stream, struct sim_beacon *beacon)
{
    uint64_t last = sim_beacon_last(beacon);
    if (sim_beacon_passed(beacon, last))
        return CUDA_SUCCESS;
    struct sim_op *op = sim_op_new(SIM_OP_OTHER, sizeof(struct remote), run_remote);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_beacon_retain(beacon);
    *(struct remote *)op->payload = (struct remote){beacon, last};
    op->dispose = dispose_remote;
    return sim_stream_submit(stream, op, NULL);
}

static CUresult wait_event(CUstream stream_handle, CUevent handle, unsigned flags, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_event *event;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(check_external(stream, flags, CU_EVENT_WAIT_EXTERNAL));
    if (flags != 0)
        return capture_node(stream, SIM_OP_WAIT, event);
    if (event->capture != NULL)
        return sim_capture_join(stream, event->capture);
    if (stream->capture != NULL) {
        sim_capture_invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    /* Checked even if there is nothing to wait for: a capture forbids calls regardless of timing. */
    SIM_TRY(sim_stream_check_synchronize(stream, true));
    if (event->beacon != NULL)
        return wait_for_processes(stream, event->beacon);
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

CUresult cuCtxRecordEvent(CUcontext context_handle, CUevent handle)
{
    SIM_INJECT(cuCtxRecordEvent);
    struct sim_context *context;
    struct sim_event *event;
    SIM_TRY(sim_context_resolve(context_handle, &context));
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(sim_context_error(context));
    if (event->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_capture_check_context(context));
    pthread_mutex_lock(&event->lock);
    if (sim_context_is_idle(context) && event->beacon == NULL) {
        /* On a GPU without work, the record completes at once. Waking a worker would take longer. */
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
        for (struct sim_context *green = NULL; (green = sim_context_next_green(context, green)) != NULL;) {
            pthread_mutex_lock(&green->order);
            for (struct sim_stream *stream = green->streams; stream != NULL; stream = stream->next)
                sim_op_wait_for(op, sim_stream_end(stream));
            pthread_mutex_unlock(&green->order);
        }
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
    SIM_TRY(sim_event_find(handle, &event));
    SIM_TRY(sim_context_error(context));
    SIM_TRY(sim_capture_check_context(context));
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

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event_handle)
{
    SIM_INJECT(cuIpcGetEventHandle);
    struct sim_event *event;
    SIM_TRY(sim_event_find(event_handle, &event));
    SIM_REQUIRE(handle != NULL);
    if (event->beacon == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    const struct sim_shared shared =
        sim_shared_describe(SIM_SHARED_EVENT, sim_beacon_fd(event->beacon), 0, 0, event->context->device);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &shared, sizeof shared);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    SIM_INJECT(cuIpcOpenEventHandle);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(out != NULL);
    struct sim_shared shared;
    memcpy(&shared, handle.reserved, sizeof shared);
    int fd = sim_shared_open(SIM_SHARED_EVENT, &shared);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (shared.pid == getpid()) {
        close(fd);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    struct sim_beacon *beacon = sim_beacon_open(fd);
    if (beacon == NULL)
        return CUDA_ERROR_MAP_FAILED;
    return event_new(out, context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, beacon);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "contexts.h"

#include "segment/memory.h"

#include <stdlib.h>

struct sim_context *sim_contexts;
pthread_mutex_t sim_contexts_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult sim_context_grow_now(struct sim_context *context)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_contexts_lock);
    if (!context->grown && !sim_segment_charge(context->device, SIM_CHARGE_CONTEXT, sim_config.context_growth))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        __atomic_store_n(&context->grown, true, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&sim_contexts_lock);
    return result;
}

struct points {
    struct sim_point *items;
    size_t count;
};

static struct points snapshot(struct sim_context *context)
{
    struct points points = {NULL, 0};
    pthread_mutex_lock(&context->order);
    size_t size = 2;
    for (struct sim_stream *stream = context->streams; stream != NULL; stream = stream->next)
        size++;
    points.items = malloc(size * sizeof *points.items);
    if (points.items != NULL) {
        points.items[points.count++] = sim_stream_end(context->legacy);
        points.items[points.count++] = sim_stream_end(context->internal);
        for (struct sim_stream *stream = context->streams; stream != NULL; stream = stream->next)
            points.items[points.count++] = sim_stream_end(stream);
    }
    pthread_mutex_unlock(&context->order);
    return points;
}

struct sim_context *sim_context_next_green(const struct sim_context *parent, struct sim_context *context)
{
    /* No context is ever removed from the list. */
    context = context == NULL ? __atomic_load_n(&sim_contexts, __ATOMIC_ACQUIRE) : context->made_before;
    while (context != NULL && (context->parent != parent || context->magic != SIM_CONTEXT_MAGIC))
        context = context->made_before;
    return context;
}

CUresult sim_context_drain(struct sim_context *context)
{
    struct sim_context *green = NULL;
    while ((green = sim_context_next_green(context, green)) != NULL)
        sim_context_drain(green);
    struct points points = snapshot(context);
    if (points.items == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < points.count; i++)
        sim_point_wait(points.items[i]);
    free(points.items);
    return sim_context_error(context);
}

bool sim_context_is_idle(struct sim_context *context)
{
    struct sim_context *green = NULL;
    while ((green = sim_context_next_green(context, green)) != NULL)
        if (!sim_context_is_idle(green))
            return false;
    pthread_mutex_lock(&context->order);
    bool passed =
        sim_point_passed(sim_stream_end(context->legacy)) && sim_point_passed(sim_stream_end(context->internal));
    for (struct sim_stream *stream = context->streams; stream != NULL && passed; stream = stream->next)
        passed = sim_point_passed(sim_stream_end(stream));
    pthread_mutex_unlock(&context->order);
    return passed;
}

bool sim_contexts_are_idle(void)
{
    bool idle = true;
    pthread_mutex_lock(&sim_contexts_lock);
    for (struct sim_context *context = sim_contexts; context != NULL && idle; context = context->made_before)
        idle = context->magic != SIM_CONTEXT_MAGIC || sim_context_is_idle(context);
    pthread_mutex_unlock(&sim_contexts_lock);
    return idle;
}

void sim_contexts_fail(CUresult error)
{
    pthread_mutex_lock(&sim_contexts_lock);
    for (struct sim_context *context = sim_contexts; context != NULL; context = context->made_before)
        sim_context_fail(context, error);
    pthread_mutex_unlock(&sim_contexts_lock);
}

CUresult sim_context_barrier(struct sim_context *context, struct sim_point point)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&context->order);
    context->waits = point.sequence;
    struct sim_stream *stream = context->legacy;
    while (stream != NULL && result == CUDA_SUCCESS) {
        if (!sim_stream_is_open(stream)) {
            stream = stream->next;
            continue;
        }
        struct sim_op *op = sim_op_new(SIM_OP_OTHER, 0, sim_op_nothing);
        if (op == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        sim_op_wait_for(op, point);
        result = sim_stream_push(stream, op, NULL);
        if (result == CUDA_ERROR_INVALID_HANDLE)
            result = CUDA_SUCCESS;
        stream = stream == context->legacy ? context->streams : stream->next;
    }
    pthread_mutex_unlock(&context->order);
    return result;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/free_queue.h"

#include "base/lock.h"
#include "gate/capture.h"
#include "loader/real.h"
#include "memory/allocation.h"
#include "memory/devices.h"

#include <pthread.h>
#include <stdlib.h>

/* Allocations that were freed in a stream, in stream order: if the first is not due, none is. */
struct free_queue {
    CUcontext context;
    CUstream stream;  /* NULL: freed during a capture, and due when no capture is open */
    pthread_t thread; /* of the per-thread stream */
    struct gs_allocation *first, **last;
    struct free_queue *next;
};

/* Guarded by gs_memory_lock. */
static struct {
    struct free_queue *queues; /* no queue in the list is empty */
    unsigned count;            /* allocations in all queues; read without the lock */
} freed;

bool gs_free_queue_any(void)
{
    return __atomic_load_n(&freed.count, __ATOMIC_RELAXED) != 0;
}

static bool is_of(const struct free_queue *queue, CUcontext context, CUstream stream)
{
    return queue->stream == stream &&
           (stream == NULL || (queue->context == context &&
                               (stream != CU_STREAM_PER_THREAD || pthread_equal(queue->thread, pthread_self()))));
}

bool gs_free_queue_add_locked(struct gs_allocation *allocation, CUcontext context, CUstream stream)
{
    struct free_queue *queue = freed.queues;
    while (queue != NULL && !is_of(queue, context, stream))
        queue = queue->next;
    if (queue == NULL) {
        queue = malloc(sizeof(*queue));
        if (queue == NULL)
            return false;
        *queue =
            (struct free_queue){.context = context, .stream = stream, .thread = pthread_self(), .next = freed.queues};
        queue->last = &queue->first;
        freed.queues = queue;
    }
    allocation->later = NULL;
    *queue->last = allocation;
    queue->last = &allocation->later;
    __atomic_add_fetch(&freed.count, 1, __ATOMIC_RELAXED);
    return true;
}

/* Takes the first allocation out of the queue. Removes the queue together with its last one. */
static struct gs_allocation *unqueue_first_locked(struct free_queue **link)
{
    struct free_queue *queue = *link;
    struct gs_allocation *allocation = queue->first;
    queue->first = allocation->later;
    if (queue->first == NULL) {
        *link = queue->next;
        free(queue);
    }
    __atomic_sub_fetch(&freed.count, 1, __ATOMIC_RELAXED);
    return allocation;
}

static bool is_due(const struct gs_allocation *allocation, bool wait)
{
    if (allocation->passed == NULL)
        return !gs_capture_open();
    return wait || GS_REAL(cuEventQuery)(allocation->passed) != CUDA_ERROR_NOT_READY;
}

void gs_free_queue_remove_locked(const struct gs_allocation *allocation)
{
    for (struct free_queue **link = &freed.queues; *link != NULL; link = &(*link)->next) {
        struct free_queue *queue = *link;
        struct gs_allocation **place = &queue->first;
        while (*place != NULL && *place != allocation)
            place = &(*place)->later;
        if (*place == NULL)
            continue;
        *place = allocation->later;
        if (*place == NULL)
            queue->last = place;
        if (queue->first == NULL) {
            *link = queue->next;
            free(queue);
        }
        __atomic_sub_fetch(&freed.count, 1, __ATOMIC_RELAXED);
        return;
    }
}

void gs_free_queue_forget(CUcontext context)
{
    gs_mutex_lock(&gs_memory_lock);
    for (struct free_queue **link = &freed.queues; *link != NULL;) {
        struct free_queue *queue = *link;
        bool ends = queue->stream != NULL && queue->context == context;
        queue->last = &queue->first;
        while (*queue->last != NULL) {
            struct gs_allocation *allocation = *queue->last;
            if (allocation->context == context && !allocation->of_pool) {
                *queue->last = allocation->later;
                allocation->freed = false;
                __atomic_sub_fetch(&freed.count, 1, __ATOMIC_RELAXED);
                continue;
            }
            if (ends)
                allocation->passed = NULL;
            queue->last = &allocation->later;
        }
        if (queue->first == NULL) {
            *link = queue->next;
            free(queue);
        } else {
            link = &queue->next;
        }
    }
    gs_mutex_unlock(&gs_memory_lock);
}

struct gs_allocation *gs_free_queue_take_due_locked(bool wait)
{
    for (struct free_queue **link = &freed.queues; *link != NULL; link = &(*link)->next)
        if (is_due((*link)->first, wait))
            return unqueue_first_locked(link);
    return NULL;
}

void gs_free_queue_after_fork(void)
{
    freed.queues = NULL;
    freed.count = 0;
}

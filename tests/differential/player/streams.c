/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, events, host functions and locks. */
#include "player.h"

#include <stdlib.h>
#include <unistd.h>

struct stream *open_stream(struct self *self, unsigned long long slot)
{
    struct stream *stream = &self->space->streams[slot % STREAMS];
    return stream->open && self->current >= 0 ? stream : NULL;
}

unsigned context_of(struct self *self, unsigned stream)
{
    return stream < FIRST_OWN ? (unsigned)self->current : self->space->streams[stream].context;
}

/* The per-thread default stream of another thread is another stream. */
static bool is_of_capture(const struct self *self, unsigned stream)
{
    return stream >= FIRST_OWN || self->space->capture.thread == self->number;
}

bool is_capturing(const struct self *self, unsigned stream)
{
    return self->space->capture.open && self->space->capture.joined[stream] && is_of_capture(self, stream);
}

bool may_capture(const struct stream *stream)
{
    unsigned flags = CU_STREAM_DEFAULT;
    return alone ||
           (driver_cuStreamGetFlags(stream->handle, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) != 0);
}

bool may_wait(const struct self *self)
{
    for (unsigned i = 0; i < LOCKS; i++)
        if (self->space->held[i])
            return false;
    return true;
}

void used_by(struct self *self, struct block *block, unsigned stream)
{
    block->last = (int)stream;
    block->last_thread = self->number;
    block->last_context = (unsigned)self->current;
}

static bool is_default(int stream)
{
    return stream >= 0 && stream < FIRST_OWN;
}

/* Whether the stream that a slot stands for now is the one that it stood for when the block was used. */
static bool is_same(const struct self *self, const struct block *block)
{
    return !is_default(block->last) ||
           (block->last_context == (unsigned)self->current && (block->last == 0 || block->last_thread == self->number));
}

bool settle_block(struct self *self, struct block *block)
{
    if (block->last == NOTHING_PENDING)
        return true;
    if (block->last == UNKNOWN_STREAM || !is_same(self, block) || !may_wait(self) ||
        is_capturing(self, (unsigned)block->last))
        return false;
    if (CALL(self, cuStreamSynchronize, self->space->streams[block->last].handle) != CUDA_SUCCESS)
        return false;
    block->last = NOTHING_PENDING;
    return true;
}

/* Later work in one stream comes after all that the other has now. */
static bool link_streams(struct self *self, unsigned from, unsigned to)
{
    struct stream *first = &self->space->streams[from], *second = &self->space->streams[to];
    return CALL(self, cuEventRecord, first->edge, first->handle) == CUDA_SUCCESS &&
           CALL(self, cuStreamWaitEvent, second->handle, first->edge, 0) == CUDA_SUCCESS;
}

bool order(struct self *self, struct block *block, unsigned stream)
{
    if (real && block->kind != HOST && block->context != context_of(self, stream))
        return false;
    if (is_capturing(self, stream)) {
        if (block->captured_by != NOTHING_PENDING && block->captured_by != (int)stream &&
            !link_streams(self, (unsigned)block->captured_by, stream))
            return false;
        block->captured_by = (int)stream;
        return true;
    }
    if (block->last == UNKNOWN_STREAM)
        return false;
    if (block->last != NOTHING_PENDING && (block->last != (int)stream || !is_same(self, block))) {
        if (is_default(block->last) || is_default((int)stream)) {
            if (!settle_block(self, block))
                return false;
        } else if (is_capturing(self, (unsigned)block->last) || !link_streams(self, (unsigned)block->last, stream)) {
            return false;
        }
    }
    used_by(self, block, stream);
    return true;
}

/* mkstream STREAM FLAGS PRIORITY */
static void op_mkstream(struct self *self, const unsigned long long *n)
{
    unsigned slot = (unsigned)(n[0] % STREAMS);
    struct stream *stream = &self->space->streams[slot];
    if (slot < FIRST_OWN || stream->open || self->current < 0)
        return;
    stream->context = (unsigned)self->current;
    unsigned flags = (unsigned)(n[1] % 2);
    CUresult result = n[2] % 7 == 6 ? CALL(self, cuStreamCreate, &stream->handle, flags)
                                    : CALL(self, cuStreamCreateWithPriority, &stream->handle, flags, -(int)(n[2] % 7));
    if (result != CUDA_SUCCESS)
        return;
    if (CALL(self, cuEventCreate, &stream->edge, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        CALL(self, cuStreamDestroy, stream->handle);
        return;
    }
    stream->open = true;
    /* Host functions of the slot's last stream may still be under way, so each has its own, as long as the process. */
    stream->chain = calloc(1, sizeof *stream->chain);
}

/* rmstream STREAM WAIT: also while it has work */
static void op_rmstream(struct self *self, const unsigned long long *n)
{
    unsigned slot = (unsigned)(n[0] % STREAMS);
    struct stream *stream = &self->space->streams[slot];
    if (slot < FIRST_OWN || !stream->open || is_capturing(self, slot))
        return;
    bool waits = !alone || n[1] % 2 != 0;
    if (waits && CALL(self, cuStreamSynchronize, stream->handle) != CUDA_SUCCESS)
        waits = false;
    CALL(self, cuEventDestroy, stream->edge);
    if (CALL(self, cuStreamDestroy, stream->handle) == CUDA_SUCCESS)
        stream->open = false;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (self->space->blocks[i].last == (int)slot)
            self->space->blocks[i].last = waits ? NOTHING_PENDING : UNKNOWN_STREAM;
}

static void forget_work_of(struct self *self, unsigned slot)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &self->space->blocks[i];
        if (block->last == (int)slot && is_same(self, block))
            block->last = NOTHING_PENDING;
    }
}

/* sync STREAM */
static void op_sync(struct self *self, const unsigned long long *n)
{
    struct stream *stream = open_stream(self, n[0]);
    if (stream != NULL && CALL(self, cuStreamSynchronize, stream->handle) == CUDA_SUCCESS)
        forget_work_of(self, (unsigned)(n[0] % STREAMS));
}

/* Whether work is done depends on time; all else does not. */
static void note_query(struct self *self, const char *call, CUresult result)
{
    note_result(self, call, result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result);
}

/* query STREAM */
static void op_query(struct self *self, const unsigned long long *n)
{
    struct stream *stream = open_stream(self, n[0]);
    if (stream != NULL)
        note_query(self, "cuStreamQuery", driver_cuStreamQuery(stream->handle));
}

/* streaminfo STREAM */
static void op_streaminfo(struct self *self, const unsigned long long *n)
{
    struct stream *stream = open_stream(self, n[0]);
    unsigned flags = 0;
    int priority = 0;
    CUcontext context = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream == NULL)
        return;
    if (CALL(self, cuStreamGetFlags, stream->handle, &flags) == CUDA_SUCCESS)
        note(self, " flags=%u", flags);
    if (CALL(self, cuStreamGetPriority, stream->handle, &priority) == CUDA_SUCCESS)
        note(self, " priority=%d", priority);
    if (CALL(self, cuStreamIsCapturing, stream->handle, &status) == CUDA_SUCCESS)
        note(self, " capturing=%d", (int)status);
    if (n[0] % STREAMS >= FIRST_OWN && CALL(self, cuStreamGetCtx, stream->handle, &context) == CUDA_SUCCESS)
        note(self, " own=%d", context == self->space->contexts[stream->context]->handle);
}

/* ctxsync */
static void op_ctxsync(struct self *self, const unsigned long long *n)
{
    (void)n;
    if (CALL(self, cuCtxSynchronize) != CUDA_SUCCESS)
        return;
    struct space *space = self->space;
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *block = &space->blocks[i];
        bool own = block->last >= FIRST_OWN && space->streams[block->last].context == (unsigned)self->current;
        if (own || (is_default(block->last) && block->last_context == (unsigned)self->current))
            block->last = NOTHING_PENDING;
    }
}

void synchronize_all(struct self *self)
{
    struct space *space = self->space;
    bool whole = true;
    for (unsigned i = 0; i < CONTEXTS; i++) {
        if (space->contexts[i]->handle == NULL)
            continue;
        if (CALL(self, cuCtxPushCurrent, space->contexts[i]->handle) != CUDA_SUCCESS) {
            whole = false;
            continue;
        }
        whole = CALL(self, cuCtxSynchronize) == CUDA_SUCCESS && whole;
        CUcontext popped;
        CALL(self, cuCtxPopCurrent, &popped);
    }
    for (unsigned i = 0; i < BLOCKS && whole; i++)
        space->blocks[i].last = NOTHING_PENDING;
}

/* quiesce: waits for all work of all threads */
static void op_quiesce(struct self *self, const unsigned long long *n)
{
    (void)n;
    struct space *own = self->space;
    for (unsigned i = 0; i < space_count; i++) {
        self->space = &all_spaces[i];
        if (!self->space->capture.open)
            synchronize_all(self);
    }
    self->space = own;
}

/* mkevent EVENT FLAGS */
static void op_mkevent(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    if (event->open || self->current < 0)
        return;
    *event = (struct event){.context = (unsigned)self->current, .life = ++self->space->event_lives};
    event->open = CALL(self, cuEventCreate, &event->handle, (unsigned)(n[1] % 4)) == CUDA_SUCCESS;
}

/* rmevent EVENT */
static void op_rmevent(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    if (event->open && CALL(self, cuEventDestroy, event->handle) == CUDA_SUCCESS)
        event->open = false;
}

/* record EVENT STREAM */
static void op_record(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    struct stream *stream = open_stream(self, n[1]);
    if (!event->open || stream == NULL)
        return;
    if (CALL(self, cuEventRecord, event->handle, stream->handle) == CUDA_SUCCESS) {
        event->recorded = true;
        event->captured = is_capturing(self, (unsigned)(n[1] % STREAMS));
    }
}

/* waitevent EVENT STREAM: a stream that waits for what is captured is captured, too */
static void op_waitevent(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (!event->open || stream == NULL || (event->captured && !(may_capture(stream) && is_of_capture(self, slot))))
        return;
    CUresult result = CALL(self, cuStreamWaitEvent, stream->handle, event->handle, 0);
    if (result == CUDA_SUCCESS && event->captured && self->space->capture.open)
        self->space->capture.joined[slot] = true;
}

/* eventsync EVENT */
static void op_eventsync(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    if (event->open)
        CALL(self, cuEventSynchronize, event->handle);
}

/* eventquery EVENT */
static void op_eventquery(struct self *self, const unsigned long long *n)
{
    struct event *event = &self->space->events[n[0] % EVENTS];
    if (event->open)
        note_query(self, "cuEventQuery", driver_cuEventQuery(event->handle));
}

/* elapsed EVENT EVENT */
static void op_elapsed(struct self *self, const unsigned long long *n)
{
    struct event *a = &self->space->events[n[0] % EVENTS], *b = &self->space->events[n[1] % EVENTS];
    float milliseconds;
    if (a->open && b->open)
        note_query(self, "cuEventElapsedTime", driver_cuEventElapsedTime(&milliseconds, a->handle, b->handle));
}

struct call {
    uint64_t *chain;
    sem_t *lock;
    unsigned number;
};

static void CUDA_CB run_call(void *argument)
{
    struct call *call = argument;
    if (call->lock != NULL)
        while (sem_wait(call->lock) != 0)
            ;
    *call->chain = (*call->chain + call->number) * UINT64_C(0x9e3779b97f4a7c15);
    if (call->lock != NULL)
        sem_post(call->lock);
}

/* host STREAM LOCK: a host function, which takes a lock if the number is that of one */
static void op_host(struct self *self, const unsigned long long *n)
{
    struct stream *stream = open_stream(self, n[0]);
    struct space *space = self->space;
    unsigned slot = (unsigned)(n[0] % STREAMS);
    if (stream == NULL || slot < FIRST_OWN)
        return;
    struct graph *graph = is_capturing(self, slot) ? &space->graphs[space->capture.graph] : NULL;
    /* A graph may run it more than once, so it lives as long as the process. */
    struct call *call = malloc(sizeof *call);
    *call = (struct call){.chain = graph != NULL ? graph->chain : stream->chain,
                          .lock = n[1] % 4 < LOCKS ? &space->locks[n[1] % 4] : NULL,
                          .number = self->line->number};
    if (graph != NULL)
        graph->calls = true;
    CALL(self, cuLaunchHostFunc, stream->handle, run_call, call);
}

/* lock LOCK: the thread holds it while it makes calls that do not wait */
static void op_lock(struct self *self, const unsigned long long *n)
{
    struct space *space = self->space;
    unsigned lock = (unsigned)(n[0] % LOCKS);
    if (space->held[lock])
        return;
    while (sem_wait(&space->locks[lock]) != 0)
        ;
    space->held[lock] = true;
    note(self, " held");
}

/* unlock LOCK */
static void op_unlock(struct self *self, const unsigned long long *n)
{
    struct space *space = self->space;
    unsigned lock = (unsigned)(n[0] % LOCKS);
    if (!space->held[lock])
        return;
    space->held[lock] = false;
    sem_post(&space->locks[lock]);
    note(self, " free");
}

/* pause MICROSECONDS: a GPU that is fast leaves no time to take it away */
static void op_pause(struct self *self, const unsigned long long *n)
{
    (void)self;
    usleep((useconds_t)(n[0] % 100000));
}

/* forever: for the test of what happens to a program that hangs */
static void op_forever(struct self *self, const unsigned long long *n)
{
    (void)self;
    (void)n;
    for (;;)
        pause();
}

void release_locks(struct space *space)
{
    for (unsigned i = 0; i < LOCKS; i++)
        if (space->held[i]) {
            space->held[i] = false;
            sem_post(&space->locks[i]);
        }
}

const struct operation stream_operations[] = {{"mkstream", op_mkstream, 0},
                                              {"rmstream", op_rmstream, WAITS},
                                              {"sync", op_sync, WAITS},
                                              {"query", op_query, 0},
                                              {"streaminfo", op_streaminfo, 0},
                                              {"ctxsync", op_ctxsync, WAITS | PRIVATE},
                                              {"quiesce", op_quiesce, WAITS | PRIVATE},
                                              {"mkevent", op_mkevent, 0},
                                              {"rmevent", op_rmevent, 0},
                                              {"record", op_record, 0},
                                              {"waitevent", op_waitevent, 0},
                                              {"eventsync", op_eventsync, WAITS},
                                              {"eventquery", op_eventquery, 0},
                                              {"elapsed", op_elapsed, 0},
                                              {"host", op_host, 0},
                                              {"lock", op_lock, WAITS},
                                              {"unlock", op_unlock, 0},
                                              {"pause", op_pause, 0},
                                              {"forever", op_forever, 0},
                                              {0}};

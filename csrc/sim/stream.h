/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Streams: queues of operations, each with a worker thread that starts with the first operation.
 *
 * An operation is what a stream executes and what a graph node repeats: a payload, a function that executes it, and
 * the points in other streams that it waits for. Operations are counted, since a graph keeps its own.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "driver.h"
#include "inject.h"

#include <pthread.h>

struct sim_context;
struct sim_capture;
struct sim_op;

/* Everything up to this sequence number of the stream. Stream objects are recycled, their numbers go on. */
struct sim_point {
    struct sim_stream *stream;
    uint64_t sequence;
};

typedef CUresult (*sim_op_run)(struct sim_context *context, struct sim_op *op);

enum sim_op_kind {
    SIM_OP_KERNEL,
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_HOST,
    SIM_OP_GRAPH,
    SIM_OP_ALLOCATE, /* only in graphs, as the next */
    SIM_OP_FREE,
    SIM_OP_RECORD,
    SIM_OP_WAIT,
    SIM_OP_CONDITIONAL,
    SIM_OP_BATCH, /* waits for values and writes of values */
    SIM_OP_OTHER
};

struct sim_op {
    struct sim_op *next;
    enum sim_op_kind kind;
    unsigned references;
    uint64_t sequence;
    bool despite_error; /* runs even if the context has failed: bookkeeping that must not be lost */
    CUresult injected;  /* it is not done, and whoever synchronises with it is told this (inject.h) */
    sim_op_run run;
    void (*dispose)(struct sim_op *op); /* may be NULL */
    struct sim_point *points;
    unsigned point_count;
    _Alignas(16) unsigned char payload[];
};

struct sim_stream {
    uint64_t magic;
    struct sim_context *context;
    struct sim_stream *next, *previous; /* in the context's list, or in the pool of recycled ones */
    unsigned flags;
    int priority;
    unsigned long long id;
    bool blocking; /* synchronises with the legacy stream */
    bool hidden;   /* the context's own */
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct sim_op *first, *last;
    bool has_worker, asleep, ending;
    uint64_t submitted; /* sequence number of the last operation; under `lock`, read without */
    uint64_t completed;
    unsigned waiters;
    struct sim_capture *capture; /* not NULL while the stream is being captured */
    struct sim_stream *captured_next;
    CUresult injected; /* under `lock`: not yet told, of the operation `injected_at` */
    uint64_t injected_at;
};

enum sim_stream_default { SIM_LEGACY, SIM_PER_THREAD };

/* Finds what a handle stands for; `meant` says which default stream NULL is. */
CUresult sim_stream_resolve(struct sim_context *context, CUstream handle, enum sim_stream_default meant,
                            struct sim_stream **stream);

struct sim_stream *sim_stream_open(struct sim_context *context, unsigned flags, int priority, bool blocking,
                                   bool hidden);

/* The worker ends when the queue is empty. Not to be used afterwards. */
void sim_stream_close(struct sim_stream *stream);
bool sim_stream_is_open(const struct sim_stream *stream);

struct sim_op *sim_op_new(enum sim_op_kind kind, size_t payload, sim_op_run run);
void sim_op_wait_for(struct sim_op *op, struct sim_point point);
void sim_op_release(struct sim_op *op);

struct sim_op *sim_op_host(CUhostFn function, void *argument);
void sim_op_host_call(const struct sim_op *op, CUhostFn *function, void **argument);

/* Queues (or, in a capture, records) the operation and takes over the caller's reference, also on failure. */
CUresult sim_stream_submit(struct sim_stream *stream, struct sim_op *op, struct sim_point *point);

/* Queues without regard to captures and the legacy stream. */
CUresult sim_stream_push(struct sim_stream *stream, struct sim_op *op, struct sim_point *point);

/* So many points more than the stream's worker reaches, from the one returned on: sim_point_reach reaches them. */
struct sim_point sim_stream_promise(struct sim_stream *stream, unsigned count);
void sim_point_reach(struct sim_point point);

/* What an injected failure up to the point left to be told; whoever asks tells it. */
CUresult sim_point_injected(struct sim_point point);

void sim_point_wait(struct sim_point point);
bool sim_point_passed(struct sim_point point);
struct sim_point sim_stream_end(struct sim_stream *stream);

/* Submits and waits, for synchronous calls. */
CUresult sim_stream_run(struct sim_stream *stream, struct sim_op *op);

/* An operation's function that does nothing: for operations that only order. */
CUresult sim_op_nothing(struct sim_context *context, struct sim_op *op);

/* Defines a call and its per-thread-default-stream variant; in `call`, `meant` says which default stream NULL is. */
#define SIM_PAIR(name, suffix, parameters, call)                                                                       \
    CUresult name parameters                                                                                           \
    {                                                                                                                  \
        const enum sim_stream_default meant = SIM_LEGACY;                                                              \
        SIM_INJECT(name);                                                                                              \
        return call;                                                                                                   \
    }                                                                                                                  \
    CUresult name##suffix parameters                                                                                   \
    {                                                                                                                  \
        const enum sim_stream_default meant = SIM_PER_THREAD;                                                          \
        SIM_INJECT(name##suffix);                                                                                      \
        return call;                                                                                                   \
    }

/* Finds the stream of a call: the context is current and free of errors, the handle valid. */
CUresult sim_stream_enter(CUstream handle, enum sim_stream_default meant, struct sim_stream **stream);

/* The legacy stream cannot be used while a stream that waits for it is being captured: an error, and such captures
 * become invalid. */
CUresult sim_stream_check_legacy(struct sim_stream *stream);

/* The rules of stream capture for calls that synchronise, or that copy: an error, and the captures concerned are
 * invalid. */
CUresult sim_stream_check_synchronize(struct sim_stream *stream, bool copies);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams: queues of operations, each with a worker thread that starts with the first operation. */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "inject.h"
#include "op.h"

enum sim_stream_default { SIM_LEGACY, SIM_PER_THREAD };

/* Finds the stream of a handle. `meant` is the default stream that NULL stands for. */
CUresult sim_stream_resolve(struct sim_context *context, CUstream handle, enum sim_stream_default meant,
                            struct sim_stream **stream);

struct sim_stream *sim_stream_open(struct sim_context *context, unsigned flags, int priority, bool blocking,
                                   bool hidden);

/* The worker ends when the queue is empty. The stream must not be used afterwards. */
void sim_stream_close(struct sim_stream *stream);
bool sim_stream_is_open(const struct sim_stream *stream);

void sim_op_wait_for(struct sim_op *op, struct sim_point point);

struct sim_op *sim_op_host(CUhostFn function, void *argument);
void sim_op_host_call(const struct sim_op *op, CUhostFn *function, void **argument);

/* Queues the operation, or records it in a capture. Takes ownership of the caller's reference, also on failure. */
CUresult sim_stream_submit(struct sim_stream *stream, struct sim_op *op, struct sim_point *point);

/* Queues without regard to captures and the legacy stream. */
CUresult sim_stream_push(struct sim_stream *stream, struct sim_op *op, struct sim_point *point);

/*
 * Reserves that many points, starting with the returned one. The stream's worker does not reach them; sim_point_reach
 * does.
 */
struct sim_point sim_stream_promise(struct sim_stream *stream, unsigned count);
void sim_point_reach(struct sim_point point);

/* Returns, once, the result of an injected failure up to the point. */
CUresult sim_point_injected(struct sim_point point);

/* Returns, once, the result of an injected failure in any stream of the context. */
CUresult sim_context_injected(struct sim_context *context);

void sim_point_wait(struct sim_point point);
bool sim_point_passed(struct sim_point point);
struct sim_point sim_stream_end(struct sim_stream *stream);

/* Submits and waits, for synchronous calls. */
CUresult sim_stream_run(struct sim_stream *stream, struct sim_op *op);

/*
 * Defines a call and its per-thread-default-stream variant. In `call`, `meant` is the default stream that NULL stands
 * for.
 */
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

/* Finds the stream of a call, and checks that the context is current and free of errors, and the handle valid. */
CUresult sim_stream_enter(CUstream handle, enum sim_stream_default meant, struct sim_stream **stream);

/*
 * The legacy stream cannot be used while a stream that waits for it is being captured. Returns an error then, and
 * invalidates these captures.
 */
CUresult sim_stream_check_legacy(struct sim_stream *stream);

/*
 * The rules of stream capture for calls that synchronise or copy. Returns an error if they forbid the call, and
 * invalidates the captures concerned.
 */
CUresult sim_stream_check_synchronize(struct sim_stream *stream, bool copies);

#endif

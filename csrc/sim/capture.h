/* SPDX-License-Identifier: BSD-3-Clause */
/* Which streams are being captured, and what that forbids. Submissions to them become nodes of a graph. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "op.h"

struct sim_graph;

struct sim_capture {
    struct sim_capture *next;
    struct sim_graph *graph;
    struct sim_stream *origin;
    struct sim_context *context;
    CUstreamCaptureMode mode;
    unsigned long long id;
    pthread_t thread;
    bool invalid, over, borrowed; /* borrowed: the graph belongs to the application */
    unsigned streams;
    struct sim_stream *members; /* the captured streams, linked by `captured_next` */
};

/* Guards captures and graphs. */
extern pthread_mutex_t sim_graphs_lock;

/* Adds the operation to the graph of the stream's capture. Takes ownership of the reference. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op);

/* The stream joins the capture, unless it belongs to it already. */
CUresult sim_capture_join(struct sim_stream *stream, struct sim_capture *capture);

void sim_capture_invalidate(struct sim_capture *capture);
void sim_capture_invalidate_context(struct sim_context *context);

/*
 * The stream is being destroyed. If the capture began in it, the capture ends; otherwise the capture becomes invalid.
 */
void sim_capture_abandon(struct sim_stream *stream);

/* For calls that synchronise the whole context. An invalid capture does not prevent them. */
CUresult sim_capture_check_context(struct sim_context *context);

/* For calls that a capture forbids ("potentially unsafe"), depending on the thread's capture mode. */
CUresult sim_capture_check_unsafe(void);

/* Starts the capture of the stream, which is the capture's origin. */
void sim_capture_begin(struct sim_stream *stream, struct sim_capture *capture);

/* Removes all streams from the capture, whatever their contexts. True if the capture is invalid. */
bool sim_capture_finish(struct sim_capture *capture);

/* Sets the thread's capture mode and returns the earlier one. */
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);

#endif

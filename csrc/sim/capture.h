/* SPDX-License-Identifier: BSD-3-Clause */
/* Which streams are being captured, and what that forbids. What is submitted to them becomes nodes of a graph. */
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
    bool invalid, over, borrowed; /* borrowed: the graph is the application's */
    unsigned streams;
    struct sim_stream *members; /* all of them, linked by `captured_next` */
};

/* Guards captures and graphs. */
extern pthread_mutex_t sim_graphs_lock;

/* Adds the operation to the graph that the stream is being captured into. Takes over the reference. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op);

/* The stream becomes one of the capture's, unless it is. */
CUresult sim_capture_join(struct sim_stream *stream, struct sim_capture *capture);

void sim_capture_invalidate(struct sim_capture *capture);
void sim_capture_invalidate_context(struct sim_context *context);

/* The stream is being destroyed: a capture is over without the stream that it began in, and invalid without another. */
void sim_capture_abandon(struct sim_stream *stream);

/* For calls that synchronise the whole context. What is invalid already does not stand in the way. */
CUresult sim_capture_check_context(struct sim_context *context);

/* Calls that a capture forbids ("potentially unsafe"), as the thread's capture mode says. */
CUresult sim_capture_check_unsafe(void);

/* The stream is being captured from now on, as its origin. */
void sim_capture_begin(struct sim_stream *stream, struct sim_capture *capture);

/* Takes all streams out of the capture, whatever their contexts; true if it is invalid. */
bool sim_capture_finish(struct sim_capture *capture);

/* The thread's mode; returns the one before. */
CUstreamCaptureMode sim_capture_exchange_mode(CUstreamCaptureMode mode);

#endif

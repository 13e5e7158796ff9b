/* SPDX-License-Identifier: BSD-3-Clause */
/* Stream capture: what is submitted to a stream becomes nodes of a graph. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "stream.h"

struct sim_graph;
struct sim_event;

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

/* Adds the operation to the graph that the stream is being captured into. Takes over the reference. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op);

/* A captured event: waiting on it brings another stream into the capture. */
CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event);

/* An allocation or a free while the stream is being captured: a node, like all else. */
CUresult sim_capture_allocate(struct sim_stream *stream, size_t size, const CUmemPoolProps *properties,
                              unsigned accessible, CUdeviceptr *address);
CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address);

void sim_capture_invalidate(struct sim_capture *capture);
void sim_capture_invalidate_context(struct sim_context *context);

/* The stream is being destroyed: a capture is over without the stream that it began in, and invalid without another. */
void sim_capture_abandon(struct sim_stream *stream);

/* For calls that synchronise the whole context. What is invalid already does not stand in the way. */
CUresult sim_capture_check_context(struct sim_context *context);

/* Calls that a capture forbids ("potentially unsafe"), as the thread's capture mode says. */
CUresult sim_capture_check_unsafe(void);

#endif

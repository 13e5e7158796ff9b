/* SPDX-License-Identifier: BSD-3-Clause */
/* Stream capture and graphs. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "stream.h"

struct sim_event;

/* Adds the operation to the graph that the stream is being captured into. Takes over the reference. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op);

/* A captured event: waiting on it brings another stream into the capture. */
CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event);

bool sim_capture_active(const struct sim_capture *capture);
void sim_capture_invalidate(struct sim_capture *capture);
void sim_capture_invalidate_context(struct sim_context *context);

/* Calls that a capture forbids ("potentially unsafe"), as the thread's capture mode says. */
CUresult sim_capture_check_unsafe(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Nodes that record an event or wait for one. What an event stands for is settled when the graph is launched, as it is
 * when a stream is given a record or a wait: a record is pending from then on, and a wait is for the last record before
 * it, be it of this launch or from outside.
 */
#ifndef SIM_GRAPH_EVENT_H
#define SIM_GRAPH_EVENT_H

#include "stream.h"

/* What the events of one launch stand for. */
struct sim_marks;

/* For a launch of these operations; NULL without events. Fails if an event of theirs was destroyed. */
CUresult sim_marks_new(struct sim_marks **marks, struct sim_op *const *ops, size_t count);

/* The launch is about to be submitted. */
void sim_marks_begin(struct sim_marks *marks, struct sim_context *context);

/* Executes the next of the operations that are records and waits. */
void sim_marks_next(struct sim_marks *marks);

/* Records that have not been executed have been missed: who waits for them does so no longer. May be NULL. */
void sim_marks_end(struct sim_marks *marks);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Nodes that record an event or wait for one. As in a stream, their meaning is fixed when the graph is launched. From
 * then on, a record is pending. A wait is for the last record before it, whether in this launch or not.
 */
#ifndef SIM_GRAPH_EVENT_H
#define SIM_GRAPH_EVENT_H

#include "stream.h"

/* The events of one launch. */
struct sim_marks;

/* For a launch of these operations; NULL without events. Fails if one of their events was destroyed. */
CUresult sim_marks_new(struct sim_marks **marks, struct sim_op *const *ops, size_t count);

/* Called just before the launch is submitted. */
void sim_marks_begin(struct sim_marks *marks, struct sim_context *context);

/* Executes the next record or wait. */
void sim_marks_next(struct sim_marks *marks);

/* Ends waits for records that have not been executed. `marks` may be NULL. */
void sim_marks_end(struct sim_marks *marks);

#endif

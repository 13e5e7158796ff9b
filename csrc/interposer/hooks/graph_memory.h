/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of allocation nodes in graphs. The driver has a pool for it on each device, which it maps when a graph is
 * launched, and keeps. The pool stays on the GPU. It is admitted before a launch and counted. When the lease ends,
 * unused memory is returned to the driver.
 */
#ifndef GPUSHARE_HOOKS_GRAPH_MEMORY_H
#define GPUSHARE_HOOKS_GRAPH_MEMORY_H

/* An allocation became a node of a graph. From now on, graphs are inspected. */
void gs_graph_memory_used(void);

/* Returns unused memory to the driver. Called while no work is in flight. */
void gs_graph_memory_trim(void);

void gs_graph_memory_after_fork(void);

#endif

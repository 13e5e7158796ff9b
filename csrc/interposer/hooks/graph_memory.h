/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What allocation nodes of graphs take: the driver's own pool of each device, which it maps when a graph is launched
 * and keeps. It stays on the GPU, is admitted before a launch and counted, and what is not in use is given back to the
 * driver when the lease ends.
 */
#ifndef GPUSHARE_HOOKS_GRAPH_MEMORY_H
#define GPUSHARE_HOOKS_GRAPH_MEMORY_H

/* An allocation became a node of a graph: from now on, graphs are looked at. */
void gs_graph_memory_used(void);

/* Gives back what is not in use. No work is in flight. */
void gs_graph_memory_trim(void);

void gs_graph_memory_after_fork(void);

#endif

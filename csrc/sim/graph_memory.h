/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of allocation nodes. The address is fixed with the node. Device memory is taken for it when its graph is
 * launched or uploaded first, and stays with the graph until the graph's executable is destroyed or the device's graph
 * memory is trimmed; the device's pool of graph memory keeps it beyond that until it is trimmed. The memory can be
 * touched between its allocation and its free, as streams execute them.
 */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "stream.h"

/* An operation that allocates. `accessible` has a bit for each device whose kernels may touch the memory. */
CUresult sim_op_allocate(struct sim_op **op, struct sim_context *context, const void *graph, size_t size,
                         const CUmemPoolProps *properties, unsigned accessible);

/* An operation that frees such memory, as a node of the graph. */
CUresult sim_op_free(struct sim_op **op, const void *graph, CUdeviceptr address);

CUdeviceptr sim_op_memory(const struct sim_op *op);
void sim_op_allocation(const struct sim_op *op, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);

/* The operations, in the order of their execution, are an executable from now on; false if some of them are already. */
bool sim_graph_memory_instantiate(struct sim_op *const *ops, size_t count);
void sim_graph_memory_abandon(struct sim_op *const *ops, size_t count);

/*
 * Before a launch: takes device memory and sees that what is allocated is free, and what is freed is not. What the last
 * launch left is freed first, if so wished.
 */
CUresult sim_graph_memory_launch(struct sim_op *const *ops, size_t count, bool free_first);
CUresult sim_graph_memory_upload(struct sim_op *const *ops, size_t count);

/* Frees as a launch begins, when it is executed. */
void sim_graph_memory_clear(const struct sim_op *op);

/* The launch has been executed. */
void sim_graph_memory_finish(struct sim_op *const *ops, size_t count);

/* Free what a graph has allocated and left. */
CUresult sim_graph_memory_free_async(struct sim_stream *stream, CUdeviceptr address);
CUresult sim_graph_memory_free(CUdeviceptr address);

/* The context ends, and its graphs' memory with it. */
void sim_graph_memory_forget(const struct sim_context *context);

/* What is allocated now is out of reach, or back: see sim_memory_reach. */
bool sim_graph_memory_reach(bool reach);

#endif

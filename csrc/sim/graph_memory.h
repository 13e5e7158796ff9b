/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of allocation nodes. The address is fixed when the node is created. Device memory is taken when the graph is
 * first launched or uploaded. It stays with the graph until the executable graph is destroyed or the device's graph
 * memory is trimmed. The device's pool of graph memory keeps it after that until it is trimmed. The memory is
 * accessible from its allocation to its free, as streams execute them.
 */
#ifndef SIM_GRAPH_MEMORY_H
#define SIM_GRAPH_MEMORY_H

#include "stream.h"

/* An operation that allocates. `accessible` has a bit for each device whose kernels may access the memory. */
CUresult sim_op_allocate(struct sim_op **op, struct sim_context *context, const void *graph, size_t size,
                         const CUmemPoolProps *properties, unsigned accessible);

/* A graph node's operation that frees such memory. */
CUresult sim_op_free(struct sim_op **op, const void *graph, CUdeviceptr address);

CUdeviceptr sim_op_memory(const struct sim_op *op);
void sim_op_allocation(const struct sim_op *op, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);

/*
 * From now on, the operations belong to an executable graph, in this order. False if some of them belong to one
 * already.
 */
bool sim_graph_memory_instantiate(struct sim_op *const *ops, size_t count);
void sim_graph_memory_abandon(struct sim_op *const *ops, size_t count);

/*
 * Before a launch: takes device memory, and checks that what is allocated is free, and what is freed is allocated. With
 * `free_first`, first frees what the last launch has left.
 */
CUresult sim_graph_memory_launch(struct sim_op *const *ops, size_t count, bool free_first);
CUresult sim_graph_memory_upload(struct sim_op *const *ops, size_t count);

/* The frees at the begin of a launch, when it is executed. */
void sim_graph_memory_clear(const struct sim_op *op);

/* The launch has been executed. */
void sim_graph_memory_finish(struct sim_op *const *ops, size_t count);

/* Frees memory that a graph has allocated and not freed. */
CUresult sim_graph_memory_free_async(struct sim_stream *stream, CUdeviceptr address);
CUresult sim_graph_memory_free(CUdeviceptr address);

/* The context ends, and the memory of its graphs is freed. */
void sim_graph_memory_forget(const struct sim_context *context);

/* Makes allocated memory inaccessible or accessible again: see sim_memory_reach. */
bool sim_graph_memory_reach(bool reach);

#endif

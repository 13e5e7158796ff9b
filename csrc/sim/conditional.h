/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Conditional nodes: graphs inside a graph that run depending on a value, which kernels set while the graph runs. A
 * condition belongs to the graph that it was created for, and lives as long as operations use it.
 */
#ifndef SIM_CONDITIONAL_H
#define SIM_CONDITIONAL_H

#include "stream.h"

struct sim_condition;

/* Operations in an order that satisfies their dependencies, and their nodes, which are only compared. */
struct sim_body {
    size_t count;
    struct sim_op **ops;
    const void **nodes;
};

/* The list of all conditions of a graph. */
CUresult sim_condition_add(struct sim_condition **conditions, const void *graph, CUcontext context, unsigned initial,
                           unsigned flags, CUgraphConditionalHandle *handle);
void sim_conditions_release(struct sim_condition *conditions);
bool sim_conditions_are_used(const struct sim_condition *conditions);

/* The operation of a node, without bodies. It counts as a use of the condition, and has space for `size` bodies. */
CUresult sim_op_conditional(struct sim_op **op, const CUDA_CONDITIONAL_NODE_PARAMS *parameters);
unsigned sim_conditional_size(const struct sim_op *op);
const void *sim_conditional_graph(const struct sim_op *op);

/*
 * The operation of an executable graph: a copy of a node's operation, into which bodies are put. It takes ownership of
 * their contents.
 */
CUresult sim_conditional_copy(struct sim_op **copy, const struct sim_op *op);
void sim_conditional_put(struct sim_op *op, unsigned number, struct sim_body body);

/*
 * As for memory nodes: from now on, the operations belong to an executable graph. False if their conditions belong to
 * one already.
 */
bool sim_conditional_instantiate(struct sim_op *const *ops, size_t count);
void sim_conditional_abandon(struct sim_op *const *ops, size_t count);

/* A launch begins: sets the conditions that have an initial value. */
void sim_conditional_begin(struct sim_op *const *ops, size_t count);

/*
 * Replaces a node's operation in a body, at any depth. Launches in progress keep the old operation, so the result is a
 * new one. NULL if the node is in no body, or there is no memory.
 */
struct sim_op *sim_conditional_replace(const struct sim_op *op, const void *node, struct sim_op *by);

/* Whether one operation can replace the other in an executable graph: only parameters in bodies may differ. */
bool sim_conditional_is_alike(const struct sim_op *a, const struct sim_op *b);

#endif

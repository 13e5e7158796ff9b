/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Conditional nodes: graphs inside of a graph that are executed as a value says, which kernels set while the graph
 * runs. A condition belongs to the graph that it was made for, and lives as long as operations use it.
 */
#ifndef SIM_CONDITIONAL_H
#define SIM_CONDITIONAL_H

#include "stream.h"

struct sim_condition;

/* Operations in an order that their dependencies allow, and the nodes that they are of, only to be compared. */
struct sim_body {
    size_t count;
    struct sim_op **ops;
    const void **nodes;
};

/* All conditions of a graph, linked. */
CUresult sim_condition_add(struct sim_condition **conditions, const void *graph, CUcontext context, unsigned initial,
                           unsigned flags, CUgraphConditionalHandle *handle);
void sim_conditions_release(struct sim_condition *conditions);
bool sim_conditions_are_used(const struct sim_condition *conditions);

/* A node's operation, without bodies; it counts as a use of the condition, and takes `size` bodies. */
CUresult sim_op_conditional(struct sim_op **op, const CUDA_CONDITIONAL_NODE_PARAMS *parameters);
unsigned sim_conditional_size(const struct sim_op *op);
const void *sim_conditional_graph(const struct sim_op *op);

/* An executable's operation: a copy of a node's, into which bodies are put. It takes over what they have. */
CUresult sim_conditional_copy(struct sim_op **copy, const struct sim_op *op);
void sim_conditional_put(struct sim_op *op, unsigned number, struct sim_body body);

/* As for memory: the operations are an executable from now on; false if their conditions are in one already. */
bool sim_conditional_instantiate(struct sim_op *const *ops, size_t count);
void sim_conditional_abandon(struct sim_op *const *ops, size_t count);

/* A launch begins: conditions that have a value to begin with are given it. */
void sim_conditional_begin(struct sim_op *const *ops, size_t count);

/*
 * Puts another operation in the place of a node's in a body, at any depth. Launches that are under way have the
 * operation as it was, so it is a new one that is returned; NULL if the node is in no body, or there is no memory.
 */
struct sim_op *sim_conditional_replace(const struct sim_op *op, const void *node, struct sim_op *by);

/* Whether an executable that has one operation can have the other in its place: if only parameters in bodies differ. */
bool sim_conditional_is_alike(const struct sim_op *a, const struct sim_op *b);

#endif

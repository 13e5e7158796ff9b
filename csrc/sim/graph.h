/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs and their nodes of all kinds. The operations of nodes never change, so that clones share them. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "capture.h"
#include "stream.h"
#include "user_object.h"

#define SIM_GRAPH_MAGIC UINT64_C(0x53494d4752504831)

struct sim_node {
    uint64_t magic;
    struct sim_node *next;
    struct sim_graph *graph, *child;
    struct sim_graph **bodies;       /* for a conditional node, as many as its operation has */
    const struct sim_node *original; /* for a clone, only compared */
    struct sim_op *op;               /* NULL: an empty node, or a node with a child graph */
    void **pointers;                 /* to the arguments, for queries */
    CUgraphNodeType type;
    struct sim_node **dependencies;
    size_t dependency_count;
    unsigned mark;
};

struct sim_graph {
    uint64_t magic;
    struct sim_graph *around; /* if this is a body: the graph that contains the node; otherwise NULL */
    struct sim_retained *retained;
    struct sim_condition *conditions;
    struct sim_node *first, *last;
    size_t count;
};

CUresult sim_graph_find(CUgraph handle, struct sim_graph **graph);
void sim_graph_free(struct sim_graph *graph);
/* `count` bodies, of which some may be missing; `bodies` may be NULL. */
void sim_bodies_free(struct sim_graph **bodies, unsigned count);

/* Whether the graph, or a graph inside it, contains an allocation or a free. */
bool sim_graph_has_memory(const struct sim_graph *graph);

/*
 * Appends a node that depends on the given nodes, or on all. Called with the lock held. Takes ownership of the
 * reference, also on failure.
 */
CUresult sim_graph_append(struct sim_graph *graph, struct sim_op *op, struct sim_node *const *dependencies,
                          size_t count, struct sim_node **out);
CUresult sim_graph_append_last(struct sim_graph *graph, struct sim_op *op, struct sim_node **out);

/* Called with the lock held. */
CUresult sim_node_depend(struct sim_node *node, struct sim_node *const *dependencies, size_t count);

CUresult sim_node_of_type(CUgraphNode handle, CUgraphNodeType type, struct sim_node **node);

/*
 * For the files that implement kinds of nodes. All but the second take ownership of the reference to the operation,
 * also on failure.
 */
CUresult sim_graph_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                       struct sim_op *op);
CUresult sim_node_find(CUgraphNode node, enum sim_op_kind kind, struct sim_op **op);
void sim_node_set(CUgraphNode node, struct sim_op *op);

#endif

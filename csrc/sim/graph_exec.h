/* SPDX-License-Identifier: BSD-3-Clause */
/* Executable graphs: the operations of a graph, in an order that satisfies their dependencies. */
#ifndef SIM_GRAPH_EXEC_H
#define SIM_GRAPH_EXEC_H

#include "stream.h"
#include "user_object.h"

struct sim_exec {
    uint64_t magic;
    struct sim_retained *retained;
    unsigned long long flags;
    struct sim_point last; /* the last launch; the next one begins after it */
    size_t count;
    struct sim_op **ops;   /* in an order that satisfies the dependencies */
    const void **nodes;    /* the nodes of the operations, only compared */
    struct sim_exec *next; /* in the list of destroyed ones */
};

CUresult sim_exec_find(CUgraphExec handle, struct sim_exec **exec);

/* Whether its operations include an allocation or a free. */
bool sim_exec_has_memory(const struct sim_exec *exec);

/* Replaces a node's operation. Takes ownership of the reference, also on failure. */
CUresult sim_exec_set(CUgraphExec exec, CUgraphNode node, struct sim_op *op);

#endif

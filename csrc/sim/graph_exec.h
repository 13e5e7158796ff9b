/* SPDX-License-Identifier: BSD-3-Clause */
/* Executable graphs: the operations of a graph, in an order that their dependencies allow. */
#ifndef SIM_GRAPH_EXEC_H
#define SIM_GRAPH_EXEC_H

#include "stream.h"
#include "user_object.h"

struct sim_exec {
    uint64_t magic;
    struct sim_retained *retained;
    unsigned long long flags;
    struct sim_point last; /* the launch after which the next one comes */
    size_t count;
    struct sim_op **ops;   /* in an order that the dependencies allow */
    const void **nodes;    /* what they were made from, only to be compared */
    struct sim_exec *next; /* of those that were destroyed */
};

CUresult sim_exec_find(CUgraphExec handle, struct sim_exec **exec);

/* Whether an allocation or a free is among its operations. */
bool sim_exec_has_memory(const struct sim_exec *exec);

/* Gives a node another operation. Takes over the reference, also on failure. */
CUresult sim_exec_set(CUgraphExec exec, CUgraphNode node, struct sim_op *op);

#endif

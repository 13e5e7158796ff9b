/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations that wait for values in memory or write them. */
#ifndef SIM_VALUE_H
#define SIM_VALUE_H

#include "stream.h"

/* The payload of such an operation. */
struct sim_batch {
    CUcontext context; /* only returned by queries */
    unsigned count;
    CUstreamBatchMemOpParams items[];
};

/* From a node's parameters, which are copied. */
CUresult sim_op_batch_node(struct sim_op **op, const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters);

/*
 * In an executable graph, values, addresses and conditions may change, but the number and kinds of operations may not.
 */
bool sim_op_batch_is_alike(const struct sim_op *a, const struct sim_op *b);

#endif

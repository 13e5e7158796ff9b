/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations that wait for values in memory, and write them. */
#ifndef SIM_VALUE_H
#define SIM_VALUE_H

#include "stream.h"

/* What such an operation holds. */
struct sim_batch {
    CUcontext context; /* only to be told */
    unsigned count;
    CUstreamBatchMemOpParams items[];
};

/* As a node's parameters say; they are copied. */
CUresult sim_op_batch_node(struct sim_op **op, const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters);

/* In an executable, values, addresses and conditions may be others; number and kinds of operations may not. */
bool sim_op_batch_is_alike(const struct sim_op *a, const struct sim_op *b);

#endif

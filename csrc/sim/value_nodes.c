/* SPDX-License-Identifier: BSD-3-Clause */
/* Graph nodes that wait for values or write them. */
#include "context.h"
#include "graph.h"
#include "graph_exec.h"
#include "value.h"

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
    struct sim_op *op;
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    SIM_TRY(sim_op_batch_node(&op, parameters));
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
    struct sim_op *op;
    SIM_TRY(sim_node_find(node, SIM_OP_BATCH, &op));
    SIM_REQUIRE(parameters != NULL);
    struct sim_batch *batch = (struct sim_batch *)op->payload;
    *parameters =
        (CUDA_BATCH_MEM_OP_NODE_PARAMS){.ctx = batch->context, .count = batch->count, .paramArray = batch->items};
    return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
    struct sim_op *op;
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    SIM_TRY(sim_node_find(node, SIM_OP_BATCH, &op));
    SIM_TRY(sim_op_batch_node(&op, parameters));
    sim_node_set(node, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters)
{
    struct sim_op *op;
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    SIM_TRY(sim_node_find(node, SIM_OP_BATCH, &op));
    SIM_TRY(sim_op_batch_node(&op, parameters));
    return sim_exec_set(exec, node, op);
}

/* SPDX-License-Identifier: BSD-3-Clause */
/* Nodes of each kind: their creation from parameters, and queries of parameters. */
#include "capture.h"
#include "conditional.h"
#include "context.h"
#include "copy.h"
#include "event.h"
#include "graph.h"
#include "graph_exec.h"
#include "graph_memory.h"
#include "inject.h"
#include "launch.h"
#include "stream.h"
#include "value.h"

#include <stdlib.h>

/* --- Memory nodes --- */

static unsigned access_mask(const CUmemAccessDesc *descriptions, size_t count)
{
    unsigned mask = 0;
    for (size_t i = 0; i < count; i++)
        if (descriptions[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && descriptions[i].location.id >= 0 &&
            descriptions[i].location.id < SIM_MAX_DEVICES && descriptions[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            mask |= 1u << descriptions[i].location.id;
    return mask;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    SIM_INJECT(cuGraphAddMemAllocNode);
    SIM_ENTER_CONTEXT(context);
    SIM_REQUIRE(p != NULL && (p->accessDescCount == 0 || p->accessDescs != NULL));
    struct sim_graph *found;
    SIM_TRY(sim_graph_find(graph, &found));
    struct sim_op *op;
    SIM_TRY(sim_op_allocate(&op, context, found, p->bytesize, &p->poolProps,
                            access_mask(p->accessDescs, p->accessDescCount)));
    p->dptr = sim_op_memory(op);
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr address)
{
    struct sim_graph *found;
    SIM_TRY(sim_graph_find(graph, &found));
    struct sim_op *op;
    SIM_TRY(sim_op_free(&op, found, address));
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node));
    SIM_REQUIRE(parameters != NULL);
    sim_op_allocation(node->op, parameters);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *address)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_MEM_FREE, &node));
    SIM_REQUIRE(address != NULL);
    *address = sim_op_memory(node->op);
    return CUDA_SUCCESS;
}

/* --- Operations from a node's parameters --- */

static CUresult kernel_op(struct sim_op **op, const CUDA_KERNEL_NODE_PARAMS *p)
{
    SIM_REQUIRE(p != NULL);
    struct sim_kernel *kernel;
    SIM_TRY(sim_kernel_find(p->func != NULL ? p->func : (CUfunction)(void *)p->kern, &kernel));
    SIM_TRY(sim_kernel_load(kernel));
    return sim_op_launch(op, kernel, (const unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                         (const unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
                         p->kernelParams, p->extra);
}

static CUresult set_op(struct sim_op **op, const CUDA_MEMSET_NODE_PARAMS *p)
{
    SIM_REQUIRE(p != NULL && (p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4));
    return sim_op_set_node(op, &(struct sim_set){p->dst, p->pitch, p->width, p->height, p->value, p->elementSize});
}

static CUresult host_op(struct sim_op **op, const CUDA_HOST_NODE_PARAMS *p)
{
    SIM_REQUIRE(p != NULL && p->fn != NULL);
    *op = sim_op_host(p->fn, p->userData);
    return *op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    struct sim_op *op;
    SIM_TRY(kernel_op(&op, parameters));
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *description, CUcontext context)
{
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    (void)context;
    struct sim_op *op;
    SIM_TRY(sim_op_copy_node(&op, description));
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    (void)context;
    struct sim_op *op;
    SIM_TRY(set_op(&op, parameters));
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *parameters)
{
    SIM_ENTER();
    struct sim_op *op;
    SIM_TRY(host_op(&op, parameters));
    return sim_graph_add(node, graph, dependencies, count, op);
}

#define SETTERS(name, suffix, type, parameters, make, ...)                                                             \
    CUresult cuGraph##name##NodeSetParams##suffix(CUgraphNode handle, const parameters *p)                             \
    {                                                                                                                  \
        struct sim_node *node;                                                                                         \
        struct sim_op *op;                                                                                             \
        SIM_TRY(sim_node_of_type(handle, type, &node));                                                                \
        SIM_TRY(make(&op, p));                                                                                         \
        sim_node_set(handle, op);                                                                                      \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    CUresult cuGraphExec##name##NodeSetParams##suffix(CUgraphExec exec_handle, CUgraphNode handle,                     \
                                                      const parameters *p __VA_ARGS__)                                 \
    {                                                                                                                  \
        struct sim_exec *exec;                                                                                         \
        struct sim_node *node;                                                                                         \
        struct sim_op *op;                                                                                             \
        SIM_TRY(sim_exec_find(exec_handle, &exec));                                                                    \
        SIM_TRY(sim_node_of_type(handle, type, &node));                                                                \
        SIM_TRY(make(&op, p));                                                                                         \
        return sim_exec_set(exec_handle, handle, op);                                                                  \
    }

SETTERS(Kernel, _v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel_op)
SETTERS(Host, , CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host_op)
SETTERS(Memcpy, , CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, sim_op_copy_node, ,
        CUcontext context __attribute__((unused)))
SETTERS(Memset, , CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, set_op, ,
        CUcontext context __attribute__((unused)))

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
    SIM_REQUIRE(parameters != NULL);
    const struct sim_launch *launch = (const struct sim_launch *)node->op->payload;
    void **pointers = realloc(node->pointers, (launch->kernel->code->argument_count + 1) * sizeof *pointers);
    if (pointers == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->pointers = pointers;
    sim_op_launch_parameters(node->op, pointers, parameters);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *description)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    SIM_REQUIRE(description != NULL);
    sim_copy_describe((const struct sim_copy *)node->op->payload, description);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *parameters)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
    SIM_REQUIRE(parameters != NULL);
    const struct sim_set *set = (const struct sim_set *)node->op->payload;
    *parameters = (CUDA_MEMSET_NODE_PARAMS){.dst = set->to,
                                            .pitch = set->pitch,
                                            .value = set->value,
                                            .elementSize = set->element,
                                            .width = set->width,
                                            .height = set->height};
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *parameters)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
    SIM_REQUIRE(parameters != NULL);
    sim_op_host_call(node->op, &parameters->fn, &parameters->userData);
    return CUDA_SUCCESS;
}

static CUDA_KERNEL_NODE_PARAMS kernel_of(const CUDA_KERNEL_NODE_PARAMS_v3 *p)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = p->func,
                                     .gridDimX = p->gridDimX,
                                     .gridDimY = p->gridDimY,
                                     .gridDimZ = p->gridDimZ,
                                     .blockDimX = p->blockDimX,
                                     .blockDimY = p->blockDimY,
                                     .blockDimZ = p->blockDimZ,
                                     .sharedMemBytes = p->sharedMemBytes,
                                     .kernelParams = p->kernelParams,
                                     .extra = p->extra,
                                     .kern = p->kern};
}

/* The operation of a node that consists of a single operation. */
static CUresult op_of(struct sim_op **op, const CUgraphNodeParams *p)
{
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(&p->kernel);
        return kernel_op(op, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return sim_op_copy_node(op, &p->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return set_op(op, &(CUDA_MEMSET_NODE_PARAMS){p->memset.dst, p->memset.pitch, p->memset.value,
                                                     p->memset.elementSize, p->memset.width, p->memset.height});
    case CU_GRAPH_NODE_TYPE_HOST:
        return host_op(op, &(CUDA_HOST_NODE_PARAMS){.fn = p->host.fn, .userData = p->host.userData});
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return sim_op_event(op, SIM_OP_RECORD, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return sim_op_event(op, SIM_OP_WAIT, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return sim_op_batch_node(
            op, &(CUDA_BATCH_MEM_OP_NODE_PARAMS){p->memOp.ctx, p->memOp.count, p->memOp.paramArray, p->memOp.flags});
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph_handle, CUcontext context,
                                        unsigned initial, unsigned flags)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(graph_handle, &graph));
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = sim_condition_add(&graph->conditions, graph, context, initial, flags, handle);
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

/* A graph can use the conditions of the graphs that contain it. */
static bool has_condition(const struct sim_graph *graph, const struct sim_op *op)
{
    while (graph != NULL && graph != sim_conditional_graph(op))
        graph = graph->around;
    return graph != NULL;
}

static struct sim_graph **make_bodies(struct sim_graph *around, unsigned count)
{
    struct sim_graph **bodies = calloc(count, sizeof(struct sim_graph *));
    bool whole = bodies != NULL;
    for (unsigned i = 0; i < count && whole; i++) {
        bodies[i] = calloc(1, sizeof *bodies[i]);
        whole = bodies[i] != NULL;
        if (whole)
            *bodies[i] = (struct sim_graph){.magic = SIM_GRAPH_MAGIC, .around = around};
    }
    if (whole)
        return bodies;
    sim_bodies_free(bodies, count);
    return NULL;
}

static CUresult add_conditional(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct sim_graph *graph;
    struct sim_op *op;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_TRY(sim_op_conditional(&op, p));
    struct sim_graph **bodies = make_bodies(graph, p->size);
    if (bodies == NULL || !has_condition(graph, op)) {
        sim_bodies_free(bodies, p->size);
        sim_op_release(op);
        return bodies == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_graph_add(out, handle, dependencies, count, op);
    if (result != CUDA_SUCCESS) {
        sim_bodies_free(bodies, p->size);
        return result;
    }
    ((struct sim_node *)*out)->bodies = bodies;
    p->phGraph_out = (CUgraph *)bodies;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p)
{
    SIM_ENTER();
    SIM_TRY(sim_process_check());
    (void)edges;
    SIM_REQUIRE(p != NULL);
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, dependencies, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = p->alloc.poolProps,
                                            .accessDescs = p->alloc.accessDescs,
                                            .accessDescCount = p->alloc.accessDescCount,
                                            .bytesize = p->alloc.bytesize};
        CUresult result = cuGraphAddMemAllocNode(node, graph, dependencies, count, &alloc);
        p->alloc.dptr = alloc.dptr;
        return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, dependencies, count, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return add_conditional(node, graph, dependencies, count, &p->conditional);
    default: {
        struct sim_op *op;
        SIM_TRY(op_of(&op, p));
        return sim_graph_add(node, graph, dependencies, count, op);
    }
    }
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams *p)
{
    struct sim_node *node;
    struct sim_op *op;
    SIM_REQUIRE(p != NULL);
    SIM_TRY(sim_node_of_type(handle, p->type, &node));
    SIM_TRY(op_of(&op, p));
    sim_node_set(handle, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeParams *p)
{
    struct sim_exec *exec;
    struct sim_node *node;
    struct sim_op *op;
    SIM_TRY(sim_exec_find(exec_handle, &exec));
    SIM_REQUIRE(p != NULL);
    SIM_TRY(sim_node_of_type(handle, p->type, &node));
    SIM_TRY(op_of(&op, p));
    return sim_exec_set(exec_handle, handle, op);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *parameters)
{
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, count, parameters);
}

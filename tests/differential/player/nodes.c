/* SPDX-License-Identifier: BSD-3-Clause */
/* Nodes for events, values in memory and conditions: captured, added to graphs that were not, and changed. */
#include "player.h"

#include <string.h>

enum { MOST_NODES = 32 };

/* The graph of the slot, if it was made node by node; the nodes are one behind the other. */
static struct graph *made_graph(struct self *self, unsigned long long slot)
{
    struct graph *graph = &self->space->graphs[slot % GRAPHS];
    return graph->graph != NULL && graph->tail != NULL ? graph : NULL;
}

static struct event *event_for(struct self *self, unsigned long long slot, unsigned context)
{
    struct event *event = &self->space->events[slot % EVENTS];
    return event->open && event->context == context ? event : NULL;
}

static void uses_event(struct self *self, struct graph *graph, const struct event *event, bool records)
{
    unsigned index = (unsigned)(event - self->space->events);
    graph->event_lives[index] = event->life;
    graph->records[index] = graph->records[index] || records;
}

/* A block of the context, with bytes to read and to write. */
static struct block *block_for(struct self *self, unsigned long long slot, unsigned context, size_t least)
{
    struct block *block = reachable_block(self, slot);
    return block != NULL && block->kind != HOST && block->context == context && block->defined >= least ? block : NULL;
}

/* The same with a word that values are written to. The driver refuses stream-ordered memory, the interposer does not.
 */
static struct block *word_block(struct self *self, unsigned long long slot, unsigned context)
{
    struct block *block = block_for(self, slot, context, sizeof(unsigned));
    return block != NULL && !is_pool_memory(block) ? block : NULL;
}

static CUdeviceptr word_of(const struct block *block, unsigned long long offset)
{
    return block->at + offset % (block->defined - sizeof(unsigned) + 1) / sizeof(unsigned) * sizeof(unsigned);
}

/* Writes a value and waits until it is there. */
static void make_pair(CUstreamBatchMemOpParams pair[2], CUdeviceptr at, unsigned value)
{
    memset(pair, 0, 2 * sizeof *pair);
    pair[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    pair[0].writeValue.address = at;
    pair[0].writeValue.value = value;
    pair[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    pair[1].waitValue.address = at;
    pair[1].waitValue.value = value;
    pair[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
}

/* The stream, or rather (mostly) the one that is being captured, if there is one. */
static unsigned captured_slot(const struct self *self, unsigned long long slot, unsigned long long chance)
{
    const struct capture *capture = &self->space->capture;
    return capture->open && chance % 8 != 0 ? capture->origin : (unsigned)(slot % STREAMS);
}

/* eventnode EVENT STREAM WAITS CHANCE: of the open capture; outside of one, the flags are refused */
static void op_eventnode(struct self *self, const unsigned long long *n)
{
    unsigned slot = captured_slot(self, n[1], n[3]);
    struct stream *stream = open_stream(self, slot);
    bool waits = n[2] % 2 != 0, captures = stream != NULL && is_capturing(self, slot);
    struct event *event = stream == NULL ? NULL : event_for(self, n[0], context_of(self, slot));
    if (event == NULL || (real && !captures))
        return;
    CUresult result = waits
                          ? CALL(self, cuStreamWaitEvent, stream->handle, event->handle, CU_EVENT_WAIT_EXTERNAL)
                          : CALL(self, cuEventRecordWithFlags, event->handle, stream->handle, CU_EVENT_RECORD_EXTERNAL);
    if (result == CUDA_SUCCESS && captures)
        uses_event(self, &self->space->graphs[self->space->capture.graph], event, !waits);
}

/* valuenode BLOCK STREAM OFFSET VALUE CHANCE: of the open capture, or at once */
static void op_valuenode(struct self *self, const unsigned long long *n)
{
    unsigned slot = captured_slot(self, n[1], n[4]);
    struct stream *stream = open_stream(self, slot);
    if (stream == NULL || slot < FIRST_OWN)
        return;
    struct block *block = word_block(self, n[0], context_of(self, slot));
    if (block == NULL || !order(self, block, slot))
        return;
    CUstreamBatchMemOpParams pair[2];
    make_pair(pair, word_of(block, n[2]), (unsigned)n[3]);
    if (CALL(self, cuStreamBatchMemOp, stream->handle, 2, pair, 0) == CUDA_SUCCESS && is_capturing(self, slot))
        graph_uses(self, &self->space->graphs[self->space->capture.graph], block);
}

/* addevent GRAPH EVENT WAITS */
static void op_addevent(struct self *self, const unsigned long long *n)
{
    struct graph *graph = made_graph(self, n[0]);
    struct event *event = graph == NULL ? NULL : event_for(self, n[1], graph->context);
    CUgraphNode node;
    CUevent told = NULL;
    if (event == NULL)
        return;
    bool waits = n[2] % 2 != 0;
    CUresult result = waits
                          ? CALL(self, cuGraphAddEventWaitNode, &node, graph->graph, &graph->tail, 1, event->handle)
                          : CALL(self, cuGraphAddEventRecordNode, &node, graph->graph, &graph->tail, 1, event->handle);
    if (result != CUDA_SUCCESS)
        return;
    graph->tail = node;
    uses_event(self, graph, event, !waits);
    result = waits ? CALL(self, cuGraphEventWaitNodeGetEvent, node, &told)
                   : CALL(self, cuGraphEventRecordNodeGetEvent, node, &told);
    if (result == CUDA_SUCCESS)
        note(self, " same=%d", told == event->handle);
}

/* The first node of the type, or NULL. */
static CUgraphNode find_node(struct self *self, const struct graph *graph, CUgraphNodeType type)
{
    CUgraphNode nodes[MOST_NODES];
    size_t count = MOST_NODES;
    if (CALL(self, cuGraphGetNodes, graph->graph, nodes, &count) != CUDA_SUCCESS)
        return NULL;
    for (size_t i = 0; i < count && i < MOST_NODES; i++) {
        CUgraphNodeType found;
        if (nodes[i] != NULL && CALL(self, cuGraphNodeGetType, nodes[i], &found) == CUDA_SUCCESS && found == type)
            return nodes[i];
    }
    return NULL;
}

/* setevent GRAPH EVENT WAITS EXECUTABLE */
static void op_setevent(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    bool waits = n[2] % 2 != 0, executable = n[3] % 2 != 0;
    struct event *event = graph->graph == NULL ? NULL : event_for(self, n[1], graph->context);
    if (event == NULL || (executable && graph->executable == NULL))
        return;
    CUgraphNode node = find_node(self, graph, waits ? CU_GRAPH_NODE_TYPE_WAIT_EVENT : CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    if (node == NULL)
        return;
    CUresult result =
        executable ? waits ? CALL(self, cuGraphExecEventWaitNodeSetEvent, graph->executable, node, event->handle)
                           : CALL(self, cuGraphExecEventRecordNodeSetEvent, graph->executable, node, event->handle)
        : waits    ? CALL(self, cuGraphEventWaitNodeSetEvent, node, event->handle)
                   : CALL(self, cuGraphEventRecordNodeSetEvent, node, event->handle);
    if (result == CUDA_SUCCESS)
        uses_event(self, graph, event, !waits);
}

/* addvalue GRAPH BLOCK OFFSET VALUE */
static void op_addvalue(struct self *self, const unsigned long long *n)
{
    struct graph *graph = made_graph(self, n[0]);
    struct block *block = graph == NULL ? NULL : word_block(self, n[1], graph->context);
    CUgraphNode node;
    if (block == NULL)
        return;
    CUstreamBatchMemOpParams pair[2];
    make_pair(pair, word_of(block, n[2]), (unsigned)n[3]);
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = {
        .ctx = self->space->contexts[graph->context]->handle, .count = 2, .paramArray = pair};
    if (CALL(self, cuGraphAddBatchMemOpNode, &node, graph->graph, &graph->tail, 1, &parameters) != CUDA_SUCCESS)
        return;
    graph->tail = node;
    graph_uses(self, graph, block);
    memset(&parameters, 0, sizeof parameters);
    if (CALL(self, cuGraphBatchMemOpNodeGetParams, node, &parameters) == CUDA_SUCCESS)
        note(self, " count=%u value=%u", parameters.count, parameters.paramArray[0].writeValue.value);
}

/* changevalue GRAPH BLOCK OFFSET VALUE COUNT: in the executable, where the number of operations is fixed */
static void op_changevalue(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    if (graph->graph == NULL || graph->executable == NULL)
        return;
    struct block *block = word_block(self, n[1], graph->context);
    CUgraphNode node = block == NULL ? NULL : find_node(self, graph, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    if (node == NULL)
        return;
    CUstreamBatchMemOpParams pair[2];
    make_pair(pair, word_of(block, n[2]), (unsigned)n[3]);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = {
        .ctx = self->space->contexts[graph->context]->handle, .count = n[4] % 4 == 0 ? 1 : 2, .paramArray = pair};
    if (CALL(self, cuGraphExecBatchMemOpNodeSetParams, graph->executable, node, &parameters) == CUDA_SUCCESS)
        graph_uses(self, graph, block);
}

static CUresult add_node(struct self *self, CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
                         CUgraphNodeParams *parameters)
{
    size_t count = behind == NULL ? 0 : 1;
#if CUDA_VERSION >= 13000
    return CALL(self, cuGraphAddNode, node, graph, behind, NULL, count, parameters);
#else
    return CALL(self, cuGraphAddNode, node, graph, behind, count, parameters);
#endif
}

/* A kernel that counts in the block's first byte and sets the condition unless the count is a multiple. */
static CUresult add_decision(struct self *self, CUgraphNode *node, CUgraph graph, const CUgraphNode *behind,
                             const struct block *block, CUgraphConditionalHandle condition, unsigned long of)
{
    CUdeviceptr at = block->at;
    void *arguments[] = {&condition, &at, &of};
    const CUDA_KERNEL_NODE_PARAMS parameters = {.func = self->space->contexts[block->context]->decide,
                                                .gridDimX = 1,
                                                .gridDimY = 1,
                                                .gridDimZ = 1,
                                                .blockDimX = 1,
                                                .blockDimY = 1,
                                                .blockDimZ = 1,
                                                .kernelParams = arguments};
    return CALL(self, cuGraphAddKernelNode, node, graph, behind, behind == NULL ? 0 : 1, &parameters);
}

static CUresult add_fill(struct self *self, CUgraph graph, const CUgraphNode *behind, const struct block *block,
                         unsigned value)
{
    CUgraphNode node;
    const CUDA_MEMSET_NODE_PARAMS parameters = {
        .dst = block->at + 1, .value = value % 256, .elementSize = 1, .width = block->defined - 1, .height = 1};
    return CALL(self, cuGraphAddMemsetNode, &node, graph, behind, behind == NULL ? 0 : 1, &parameters,
                self->space->contexts[block->context]->handle);
}

/*
 * addcondition GRAPH KIND BLOCK VALUE: bodies fill the block with other bytes. On a GPU, whose kernels cannot decide
 * (kernels.ptx), the value is the one to begin with.
 */
static void op_addcondition(struct self *self, const unsigned long long *n)
{
    struct graph *graph = made_graph(self, n[0]);
    struct block *block = graph == NULL ? NULL : block_for(self, n[2], graph->context, 2);
    CUgraphConditionalNodeType kind = (CUgraphConditionalNodeType)(n[1] % 3);
    CUcontext context = block == NULL ? NULL : self->space->contexts[graph->context]->handle;
    unsigned value = (unsigned)n[3], size = kind == CU_GRAPH_COND_TYPE_WHILE ? 1 : value % 2 + 1;
    CUgraphConditionalHandle condition;
    CUgraphNode node, decision;
    if (block == NULL)
        return;
    unsigned first = kind == CU_GRAPH_COND_TYPE_WHILE ? !real : value % 4;
    if (CALL(self, cuGraphConditionalHandleCreate, &condition, graph->graph, context, first,
             CU_GRAPH_COND_ASSIGN_DEFAULT) != CUDA_SUCCESS)
        return;
    if (!real && kind != CU_GRAPH_COND_TYPE_WHILE && value % 3 == 0 &&
        add_decision(self, &decision, graph->graph, &graph->tail, block, condition, value % 5 + 1) == CUDA_SUCCESS)
        graph->tail = decision;
    CUgraphNodeParams parameters;
    memset(&parameters, 0, sizeof parameters);
    parameters.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    parameters.conditional.handle = condition;
    parameters.conditional.type = kind;
    parameters.conditional.size = size;
    parameters.conditional.ctx = context;
    if (add_node(self, &node, graph->graph, &graph->tail, &parameters) != CUDA_SUCCESS)
        return;
    graph->tail = node;
    graph_uses(self, graph, block);
    for (unsigned i = 0; i < size; i++) {
        CUgraph body = parameters.conditional.phGraph_out[i];
        bool decides =
            !real && add_decision(self, &decision, body, NULL, block, condition, value % 5 + 1) == CUDA_SUCCESS;
        add_fill(self, body, decides ? &decision : NULL, block, value + i);
    }
}

/* update GRAPH: the executable becomes what the graph is now */
static void op_update(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    CUgraphExecUpdateResultInfo info;
    if (graph->executable == NULL || failed)
        return;
    memset(&info, 0, sizeof info);
    CALL(self, cuGraphExecUpdate, graph->executable, graph->graph, &info);
    note(self, " result=%d", (int)info.result);
}

static bool is_free_of_others(struct self *self, unsigned slot)
{
    const struct stream *stream = open_stream(self, slot);
    unsigned flags = CU_STREAM_DEFAULT;
    return stream != NULL && slot >= FIRST_OWN && !is_capturing(self, slot) &&
           driver_cuStreamGetFlags(stream->handle, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) != 0;
}

/* The stream's slot, or the next that no other stream waits for by itself; STREAMS if there is none but that one. */
static unsigned find_free(struct self *self, unsigned long long from, unsigned but)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        unsigned slot = (unsigned)((from + i) % STREAMS);
        if (slot != but && is_free_of_others(self, slot))
            return slot;
    }
    return STREAMS;
}

/* awaited BLOCK STREAM STREAM OFFSET VALUE: a graph in one stream waits for what is submitted to the other later */
static void op_awaited(struct self *self, const unsigned long long *n)
{
    unsigned waits = find_free(self, n[1], STREAMS), writes = find_free(self, n[2], waits);
    if (waits == STREAMS || writes == STREAMS || context_of(self, waits) != context_of(self, writes) || !may_wait(self))
        return;
    const struct stream *waiting = &self->space->streams[waits], *writing = &self->space->streams[writes];
    struct block *block = word_block(self, n[0], context_of(self, waits));
    if (block == NULL || !order(self, block, writes) || !order(self, block, waits))
        return;
    CUstreamBatchMemOpParams pair[2];
    CUdeviceptr at = word_of(block, n[3]);
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    make_pair(pair, at, (unsigned)n[4]);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters = {
        .ctx = self->space->contexts[block->context]->handle, .count = 1, .paramArray = &pair[1]};
    if (CALL(self, cuGraphCreate, &graph, 0) != CUDA_SUCCESS)
        return;
    if (CALL(self, cuGraphAddBatchMemOpNode, &node, graph, NULL, 0, &parameters) == CUDA_SUCCESS &&
        CALL(self, cuGraphInstantiateWithFlags, &executable, graph, 0) == CUDA_SUCCESS) {
        CALL(self, cuGraphLaunch, executable, waiting->handle);
        CALL(self, cuStreamWriteValue32, writing->handle, at, (unsigned)n[4], CU_STREAM_WRITE_VALUE_DEFAULT);
        CALL(self, cuGraphExecDestroy, executable);
    }
    CALL(self, cuGraphDestroy, graph);
}

const struct operation node_operations[] = {{"eventnode", op_eventnode, 0},       {"valuenode", op_valuenode, 0},
                                            {"addevent", op_addevent, 0},         {"setevent", op_setevent, 0},
                                            {"addvalue", op_addvalue, 0},         {"changevalue", op_changevalue, 0},
                                            {"addcondition", op_addcondition, 0}, {"update", op_update, 0},
                                            {"awaited", op_awaited, SERIAL},      {0}};

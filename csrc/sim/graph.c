/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph.h"

#include "conditional.h"

#include <stdlib.h>
#include <string.h>

#define NODE_MAGIC UINT64_C(0x53494d4e4f444531)

static CUgraphNodeType type_of_kind(enum sim_op_kind kind)
{
    switch (kind) {
    case SIM_OP_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case SIM_OP_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_OP_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_OP_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SIM_OP_GRAPH:
        return CU_GRAPH_NODE_TYPE_GRAPH;
    case SIM_OP_ALLOCATE:
        return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case SIM_OP_FREE:
        return CU_GRAPH_NODE_TYPE_MEM_FREE;
    case SIM_OP_RECORD:
        return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case SIM_OP_WAIT:
        return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case SIM_OP_BATCH:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case SIM_OP_CONDITIONAL:
        return CU_GRAPH_NODE_TYPE_CONDITIONAL;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

static CUgraphNodeType type_of(const struct sim_op *op)
{
    return type_of_kind(op == NULL ? SIM_OP_OTHER : op->kind);
}

CUresult sim_node_depend(struct sim_node *node, struct sim_node *const *dependencies, size_t count)
{
    if (count == 0)
        return CUDA_SUCCESS;
    struct sim_node **more = realloc(node->dependencies, (node->dependency_count + count) * sizeof *more);
    if (more == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(more + node->dependency_count, dependencies, count * sizeof *more);
    node->dependencies = more;
    node->dependency_count += count;
    return CUDA_SUCCESS;
}

/* Takes ownership of the reference to the operation, also on failure. */
CUresult sim_graph_append(struct sim_graph *graph, struct sim_op *op, struct sim_node *const *dependencies,
                          size_t count, struct sim_node **out)
{
    struct sim_node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        *node = (struct sim_node){.magic = NODE_MAGIC, .graph = graph, .op = op, .type = type_of(op)};
        if (sim_node_depend(node, dependencies, count) != CUDA_SUCCESS) {
            free(node);
            node = NULL;
        }
    }
    if (node == NULL) {
        if (op != NULL)
            sim_op_release(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (graph->last == NULL)
        graph->first = node;
    else
        graph->last->next = node;
    graph->last = node;
    graph->count++;
    if (out != NULL)
        *out = node;
    return CUDA_SUCCESS;
}

/* Depends on all nodes of the graph. */
CUresult sim_graph_append_last(struct sim_graph *graph, struct sim_op *op, struct sim_node **out)
{
    struct sim_node *previous = graph->last;
    return sim_graph_append(graph, op, &previous, previous == NULL ? 0 : 1, out);
}

static void node_free(struct sim_node *node);

void sim_graph_free(struct sim_graph *graph)
{
    for (struct sim_retained *retained = graph->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        sim_user_object_release(retained->object, retained->count);
        free(retained);
    }
    for (struct sim_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        node_free(node);
    }
    sim_conditions_release(graph->conditions);
    graph->magic = 0;
    free(graph);
}

void sim_bodies_free(struct sim_graph **bodies, unsigned count)
{
    for (unsigned i = 0; bodies != NULL && i < count; i++)
        if (bodies[i] != NULL)
            sim_graph_free(bodies[i]);
    free(bodies);
}

static void node_free(struct sim_node *node)
{
    if (node->bodies != NULL)
        sim_bodies_free(node->bodies, sim_conditional_size(node->op));
    if (node->op != NULL)
        sim_op_release(node->op);
    if (node->child != NULL)
        sim_graph_free(node->child);
    node->magic = 0;
    free(node->pointers);
    free(node->dependencies);
    free(node);
}

CUresult sim_graph_find(CUgraph handle, struct sim_graph **graph)
{
    SIM_ENTER();
    *graph = (struct sim_graph *)handle;
    return handle != NULL && (*graph)->magic == SIM_GRAPH_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && flags == 0);
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->magic = SIM_GRAPH_MAGIC;
    *out = (CUgraph)graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_REQUIRE(graph->around == NULL);
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

static CUresult list(struct sim_graph *graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    SIM_REQUIRE(count != NULL);
    size_t found = 0;
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        if (roots && node->dependency_count > 0)
            continue;
        if (nodes != NULL && found < *count)
            nodes[found] = (CUgraphNode)node;
        found++;
    }
    for (size_t i = found; nodes != NULL && i < *count; i++)
        nodes[i] = NULL;
    if (nodes == NULL || found < *count)
        *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    return list(graph, nodes, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    return list(graph, nodes, count, true);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    SIM_ENTER();
    const struct sim_node *node = (const struct sim_node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC && type != NULL);
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult sim_graph_add(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                       struct sim_op *op)
{
    struct sim_graph *graph;
    CUresult result = sim_graph_find(handle, &graph);
    if (result == CUDA_SUCCESS && (out == NULL || (count > 0 && dependencies == NULL)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
        if (op != NULL)
            sim_op_release(op);
        return result;
    }
    pthread_mutex_lock(&sim_graphs_lock);
    result = sim_graph_append(graph, op, (struct sim_node *const *)dependencies, count, (struct sim_node **)out);
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    return sim_graph_add(node, graph, dependencies, count, NULL);
}

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_REQUIRE(count == 0 || (from != NULL && to != NULL));
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_node_depend((struct sim_node *)to[i], (struct sim_node *const *)&from[i], 1);
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count)
{
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags)
{
    struct sim_graph *graph;
    struct sim_user_object *object;
    SIM_TRY(sim_graph_find(graph_handle, &graph));
    SIM_TRY(sim_user_object_find(handle, count, &object));
    pthread_mutex_lock(&sim_graphs_lock);
    bool retained = sim_user_object_retain(&graph->retained, object, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) == 0);
    pthread_mutex_unlock(&sim_graphs_lock);
    return retained ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count)
{
    struct sim_graph *graph;
    struct sim_user_object *object;
    SIM_TRY(sim_graph_find(graph_handle, &graph));
    SIM_TRY(sim_user_object_find(handle, count, &object));
    pthread_mutex_lock(&sim_graphs_lock);
    struct sim_retained **place = &graph->retained;
    while (*place != NULL && ((*place)->object != object || (*place)->count != count))
        place = &(*place)->next;
    struct sim_retained *found = *place;
    if (found != NULL)
        *place = found->next;
    pthread_mutex_unlock(&sim_graphs_lock);
    SIM_REQUIRE(found != NULL);
    free(found);
    sim_user_object_release(object, count);
    return CUDA_SUCCESS;
}

CUresult sim_node_of_type(CUgraphNode handle, CUgraphNodeType type, struct sim_node **node)
{
    SIM_ENTER();
    *node = (struct sim_node *)handle;
    return handle != NULL && (*node)->magic == NODE_MAGIC && (*node)->type == type ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_node_find(CUgraphNode handle, enum sim_op_kind kind, struct sim_op **op)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, type_of_kind(kind), &node));
    *op = node->op;
    return CUDA_SUCCESS;
}

/* Takes ownership of the reference. Existing executable graphs keep their operations. */
void sim_node_set(CUgraphNode handle, struct sim_op *op)
{
    struct sim_node *node = (struct sim_node *)handle;
    pthread_mutex_lock(&sim_graphs_lock);
    struct sim_op *old = node->op;
    node->op = op;
    pthread_mutex_unlock(&sim_graphs_lock);
    sim_op_release(old);
}

bool sim_graph_has_memory(const struct sim_graph *graph)
{
    for (const struct sim_node *node = graph->first; node != NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child != NULL && sim_graph_has_memory(node->child)))
            return true;
    return false;
}

/* --- Shape --- */

CUresult cuGraphDestroyNode(CUgraphNode handle)
{
    SIM_ENTER();
    struct sim_node *node = (struct sim_node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC);
    struct sim_graph *graph = node->graph;
    if (sim_graph_has_memory(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&sim_graphs_lock);
    struct sim_node *previous = NULL;
    for (struct sim_node *other = graph->first; other != NULL; other = other->next) {
        if (other->next == node)
            previous = other;
        size_t kept = 0;
        for (size_t i = 0; i < other->dependency_count; i++)
            if (other->dependencies[i] != node)
                other->dependencies[kept++] = other->dependencies[i];
        other->dependency_count = kept;
    }
    if (previous == NULL)
        graph->first = node->next;
    else
        previous->next = node->next;
    if (graph->last == node)
        graph->last = previous;
    graph->count--;
    pthread_mutex_unlock(&sim_graphs_lock);
    node_free(node);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_REQUIRE(count != NULL && (from == NULL) == (to == NULL));
    size_t found = 0;
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->dependency_count; i++, found++) {
            if (from == NULL || found >= *count)
                continue;
            from[found] = (CUgraphNode)node->dependencies[i];
            to[found] = (CUgraphNode)node;
            if (edges != NULL)
                edges[found] = (CUgraphEdgeData){.from_port = 0};
        }
    }
    if (from == NULL || found < *count)
        *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static CUresult neighbours(CUgraphNode handle, bool dependent, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count)
{
    SIM_ENTER();
    const struct sim_node *node = (const struct sim_node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC && count != NULL);
    size_t found = 0;
    for (struct sim_node *other = node->graph->first; other != NULL; other = other->next) {
        const struct sim_node *of = dependent ? other : node, *wanted = dependent ? node : other;
        bool adjacent = false;
        for (size_t i = 0; i < of->dependency_count; i++)
            adjacent = adjacent || of->dependencies[i] == wanted;
        if (!adjacent)
            continue;
        if (out != NULL && found < *count)
            out[found] = (CUgraphNode)other;
        if (out != NULL && edges != NULL && found < *count)
            edges[found] = (CUgraphEdgeData){.from_port = 0};
        found++;
    }
    if (out == NULL || found < *count)
        *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count)
{
    return neighbours(node, false, out, edges, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    return neighbours(node, false, out, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count)
{
    return neighbours(node, true, out, edges, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    return neighbours(node, true, out, NULL, count);
}

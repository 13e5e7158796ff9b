/* SPDX-License-Identifier: BSD-3-Clause */
/* Clones of graphs, and child graphs, which are clones, too. */
#include "capture.h"
#include "graph.h"

#include <stdlib.h>

/* --- Clones and child graphs. Operations never change, so that a clone can share them. --- */

/* Memory nodes and conditions belong to a single graph. */
static bool has_single_nodes(const struct sim_graph *graph)
{
    for (const struct sim_node *node = graph->first; node != NULL; node = node->next)
        if (node->bodies != NULL || (node->child != NULL && has_single_nodes(node->child)))
            return true;
    return sim_graph_has_memory(graph);
}

static struct sim_node *clone_in(const struct sim_graph *clone, const struct sim_node *original)
{
    struct sim_node *node = clone->first;
    while (node != NULL && node->original != original)
        node = node->next;
    return node;
}

/* Called with the lock held. */
static CUresult clone_graph(const struct sim_graph *graph, struct sim_graph **out)
{
    if (has_single_nodes(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_graph *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy->magic = SIM_GRAPH_MAGIC;
    CUresult result = CUDA_SUCCESS;
    for (const struct sim_node *node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        struct sim_node *twin = NULL;
        if (node->op != NULL)
            __atomic_add_fetch(&node->op->references, 1, __ATOMIC_RELAXED);
        result = sim_graph_append(copy, node->op, NULL, 0, &twin);
        if (result != CUDA_SUCCESS)
            break;
        twin->original = node;
        twin->type = node->type;
        if (node->child != NULL)
            result = clone_graph(node->child, &twin->child);
    }
    for (struct sim_node *twin = copy->first; twin != NULL && result == CUDA_SUCCESS; twin = twin->next)
        for (size_t i = 0; i < twin->original->dependency_count && result == CUDA_SUCCESS; i++)
            result = sim_node_depend(twin, (struct sim_node *[]){clone_in(copy, twin->original->dependencies[i])}, 1);
    for (struct sim_retained *retained = graph->retained; retained != NULL && result == CUDA_SUCCESS;
         retained = retained->next)
        result = sim_user_object_retain(&copy->retained, retained->object, 1, true) ? CUDA_SUCCESS
                                                                                    : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = copy;
    else
        sim_graph_free(copy);
    return result;
}

CUresult cuGraphClone(CUgraph *out, CUgraph handle)
{
    struct sim_graph *graph, *copy;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_REQUIRE(out != NULL);
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = clone_graph(graph, &copy);
    pthread_mutex_unlock(&sim_graphs_lock);
    SIM_TRY(result);
    *out = (CUgraph)copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph handle)
{
    struct sim_graph *graph;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_REQUIRE(out != NULL);
    struct sim_node *found = clone_in(graph, (const struct sim_node *)original);
    SIM_REQUIRE(original != NULL && found != NULL);
    *out = (CUgraphNode)found;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child_handle)
{
    struct sim_graph *child, *copy;
    SIM_TRY(sim_graph_find(child_handle, &child));
    SIM_REQUIRE(out != NULL && handle != child_handle);
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = clone_graph(child, &copy);
    pthread_mutex_unlock(&sim_graphs_lock);
    SIM_TRY(result);
    result = sim_graph_add(out, handle, dependencies, count, NULL);
    if (result != CUDA_SUCCESS) {
        sim_graph_free(copy);
        return result;
    }
    struct sim_node *node = (struct sim_node *)*out;
    node->child = copy;
    node->type = CU_GRAPH_NODE_TYPE_GRAPH;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph)
{
    struct sim_node *node;
    SIM_TRY(sim_node_of_type(handle, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    SIM_REQUIRE(graph != NULL && node->child != NULL);
    *graph = (CUgraph)node->child;
    return CUDA_SUCCESS;
}

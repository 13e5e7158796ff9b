/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph_exec.h"

#include "capture.h"
#include "conditional.h"
#include "context.h"
#include "graph.h"
#include "graph_memory.h"
#include "inject.h"
#include "value.h"

#include <stdlib.h>

#define EXEC_MAGIC UINT64_C(0x53494d4558454331)

static size_t count_all(const struct sim_graph *graph)
{
    size_t count = 0;
    for (const struct sim_node *node = graph->first; node != NULL; node = node->next)
        count += node->child != NULL ? count_all(node->child) : 1;
    return count;
}

/* Reuses the last destroyed one first. */
static struct sim_exec *destroyed;
static pthread_mutex_t destroyed_lock = PTHREAD_MUTEX_INITIALIZER;

static struct sim_exec *take_destroyed(void)
{
    pthread_mutex_lock(&destroyed_lock);
    struct sim_exec *exec = destroyed;
    if (exec != NULL)
        destroyed = exec->next;
    pthread_mutex_unlock(&destroyed_lock);
    return exec;
}

static void put_destroyed(struct sim_exec *exec)
{
    pthread_mutex_lock(&destroyed_lock);
    *exec = (struct sim_exec){.next = destroyed};
    destroyed = exec;
    pthread_mutex_unlock(&destroyed_lock);
}

static struct sim_exec *exec_new(const struct sim_graph *graph)
{
    struct sim_exec *exec = take_destroyed();
    if (exec == NULL)
        exec = malloc(sizeof *exec);
    size_t size = count_all(graph) + 1;
    if (exec == NULL)
        return NULL;
    *exec = (struct sim_exec){.magic = 0};
    exec->ops = calloc(size, sizeof(*exec->ops));
    exec->nodes = calloc(size, sizeof(*exec->nodes));
    if (exec->ops != NULL && exec->nodes != NULL)
        return exec;
    free(exec->ops);
    free(exec->nodes);
    put_destroyed(exec);
    return NULL;
}

static void exec_free(struct sim_exec *exec)
{
    for (struct sim_retained *retained = exec->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        sim_user_object_release(retained->object, retained->count);
        free(retained);
    }
    if (exec->magic == EXEC_MAGIC) {
        sim_graph_memory_abandon(exec->ops, exec->count);
        sim_conditional_abandon(exec->ops, exec->count);
    }
    for (size_t i = 0; i < exec->count; i++)
        sim_op_release(exec->ops[i]);
    free(exec->ops);
    free(exec->nodes);
    put_destroyed(exec);
}

/* --- Order --- */

static CUresult compile(struct sim_graph *graph, struct sim_exec **out);

static bool is_allowed_in_body(const struct sim_op *op)
{
    return op->kind == SIM_OP_KERNEL || op->kind == SIM_OP_COPY || op->kind == SIM_OP_SET ||
           op->kind == SIM_OP_CONDITIONAL;
}

static bool is_body(const struct sim_exec *exec)
{
    bool allowed = true;
    for (size_t i = 0; i < exec->count; i++)
        allowed = allowed && is_allowed_in_body(exec->ops[i]);
    return allowed;
}

/* Gives a conditional node's operation its current bodies. */
static CUresult place_bodies(struct sim_op *op, struct sim_graph *const *bodies)
{
    for (unsigned i = 0; i < sim_conditional_size(op); i++) {
        struct sim_exec *body;
        SIM_TRY(compile(bodies[i], &body));
        if (!is_body(body)) {
            exec_free(body);
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        sim_conditional_put(op, i, (struct sim_body){body->count, body->ops, body->nodes});
        put_destroyed(body);
    }
    return CUDA_SUCCESS;
}

static CUresult place_op(const struct sim_node *node, struct sim_exec *exec)
{
    struct sim_op *op = node->op;
    if (node->bodies == NULL) {
        __atomic_add_fetch(&op->references, 1, __ATOMIC_RELAXED);
    } else {
        SIM_TRY(sim_conditional_copy(&op, node->op));
        CUresult result = place_bodies(op, node->bodies);
        if (result != CUDA_SUCCESS) {
            sim_op_release(op);
            return result;
        }
    }
    exec->nodes[exec->count] = node;
    exec->ops[exec->count++] = op;
    return CUDA_SUCCESS;
}

static CUresult place_all(struct sim_graph *graph, struct sim_exec *exec);

/* Depth first; a cycle is invalid. */
static CUresult place(struct sim_node *node, struct sim_exec *exec)
{
    if (node->mark == 2)
        return CUDA_SUCCESS;
    SIM_REQUIRE(node->mark == 0);
    node->mark = 1;
    for (size_t i = 0; i < node->dependency_count; i++)
        SIM_TRY(place(node->dependencies[i], exec));
    node->mark = 2;
    if (node->child != NULL)
        return place_all(node->child, exec);
    return node->op != NULL ? place_op(node, exec) : CUDA_SUCCESS;
}

static CUresult place_all(struct sim_graph *graph, struct sim_exec *exec)
{
    CUresult result = CUDA_SUCCESS;
    for (struct sim_node *node = graph->first; node != NULL; node = node->next)
        node->mark = 0;
    for (struct sim_node *node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        result = place(node, exec);
    return result;
}

static CUresult compile(struct sim_graph *graph, struct sim_exec **out)
{
    struct sim_exec *exec = exec_new(graph);
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = place_all(graph, exec);
    if (result == CUDA_SUCCESS)
        *out = exec;
    else
        exec_free(exec);
    return result;
}

/* Whether all conditions that were created for the graph and the graphs inside it have nodes. */
static bool uses_conditions(const struct sim_graph *graph)
{
    bool used = sim_conditions_are_used(graph->conditions);
    for (const struct sim_node *node = graph->first; node != NULL && used; node = node->next) {
        if (node->child != NULL)
            used = uses_conditions(node->child);
        for (unsigned i = 0; node->bodies != NULL && i < sim_conditional_size(node->op) && used; i++)
            used = uses_conditions(node->bodies[i]);
    }
    return used;
}

/* Memory nodes and conditional nodes can belong to only one executable graph at a time. */
static CUresult claim(struct sim_exec *exec)
{
    if (!sim_graph_memory_instantiate(exec->ops, exec->count))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (sim_conditional_instantiate(exec->ops, exec->count))
        return CUDA_SUCCESS;
    sim_graph_memory_abandon(exec->ops, exec->count);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
    struct sim_graph *graph;
    struct sim_exec *exec;
    SIM_TRY(sim_graph_find(handle, &graph));
    SIM_TRY(sim_process_check());
    SIM_REQUIRE(out != NULL && graph->around == NULL);
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = uses_conditions(graph) ? compile(graph, &exec) : CUDA_ERROR_INVALID_VALUE;
    bool whole = true;
    for (struct sim_retained *retained = graph->retained; retained != NULL && result == CUDA_SUCCESS && whole;
         retained = retained->next)
        whole = sim_user_object_retain(&exec->retained, retained->object, 1, true);
    pthread_mutex_unlock(&sim_graphs_lock);
    SIM_TRY(result);
    result = whole ? claim(exec) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        exec_free(exec);
        return result;
    }
    exec->flags = flags;
    exec->magic = EXEC_MAGIC;
    *out = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    SIM_INJECT(cuGraphInstantiateWithFlags);
    return instantiate(exec, graph, flags);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    SIM_INJECT(cuGraphInstantiate);
    if (error_node != NULL)
        *error_node = NULL;
    if (log != NULL && size > 0)
        log[0] = '\0';
    return instantiate(exec, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    return cuGraphInstantiate(exec, graph, error_node, log, size);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    SIM_REQUIRE(parameters != NULL);
    struct sim_graph *found;
    CUresult result = instantiate(exec, graph, parameters->flags);
    parameters->hErrNode_out = NULL;
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_ERROR_INVALID_VALUE && sim_graph_find(graph, &found) == CUDA_SUCCESS && !uses_conditions(found))
        parameters->result_out = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    return result;
}

SIM_PAIR(cuGraphInstantiateWithParams, _ptsz,
         (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters),
         ((void)meant, instantiate_with(exec, graph, parameters)))

CUresult sim_exec_find(CUgraphExec handle, struct sim_exec **exec)
{
    SIM_ENTER();
    *exec = (struct sim_exec *)handle;
    return handle != NULL && (*exec)->magic == EXEC_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    SIM_INJECT(cuGraphExecDestroy);
    struct sim_exec *exec;
    SIM_TRY(sim_exec_find(handle, &exec));
    exec_free(exec);
    return CUDA_SUCCESS;
}

bool sim_exec_has_memory(const struct sim_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        if (exec->ops[i]->kind == SIM_OP_ALLOCATE || exec->ops[i]->kind == SIM_OP_FREE)
            return true;
    return false;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
    struct sim_exec *exec;
    SIM_TRY(sim_exec_find(handle, &exec));
    SIM_REQUIRE(flags != NULL);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

/* Whether one operation can replace another of the same kind in an executable graph. */
static bool may_replace(const struct sim_op *old, const struct sim_op *new)
{
    return old->kind == SIM_OP_BATCH         ? sim_op_batch_is_alike(old, new)
           : old->kind == SIM_OP_CONDITIONAL ? sim_conditional_is_alike(old, new)
                                             : true;
}

/* Takes ownership of the reference, also on failure. */
CUresult sim_exec_set(CUgraphExec handle, CUgraphNode node, struct sim_op *op)
{
    struct sim_exec *exec;
    struct sim_op *old = NULL;
    CUresult result = sim_exec_find(handle, &exec);
    if (result != CUDA_SUCCESS) {
        sim_op_release(op);
        return result;
    }
    pthread_mutex_lock(&sim_graphs_lock);
    for (size_t i = 0; i < exec->count && old == NULL; i++) {
        struct sim_op *other = NULL;
        if (exec->nodes[i] == node && may_replace(exec->ops[i], op))
            other = op;
        else if (exec->ops[i]->kind == SIM_OP_CONDITIONAL)
            other = sim_conditional_replace(exec->ops[i], node, op);
        if (other != NULL) {
            old = exec->ops[i];
            exec->ops[i] = other;
        }
    }
    pthread_mutex_unlock(&sim_graphs_lock);
    sim_op_release(old != NULL ? old : op);
    return old != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Replaces the operations of the executable graph by those of another graph of the same shape. */
CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info)
{
    struct sim_exec *exec;
    struct sim_graph *graph;
    SIM_TRY(sim_exec_find(handle, &exec));
    SIM_TRY(sim_graph_find(graph_handle, &graph));
    SIM_REQUIRE(info != NULL);
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    pthread_mutex_lock(&sim_graphs_lock);
    struct sim_exec *update = NULL;
    if (graph->around == NULL && compile(graph, &update) == CUDA_SUCCESS) {
        info->result = update->count != exec->count ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
                       : sim_exec_has_memory(exec)  ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
                                                    : CU_GRAPH_EXEC_UPDATE_SUCCESS;
        for (size_t i = 0; i < update->count && info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS; i++) {
            if (update->ops[i]->kind != exec->ops[i]->kind) {
                info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
                info->errorNode = (CUgraphNode)update->nodes[i];
            } else if (!may_replace(exec->ops[i], update->ops[i])) {
                info->result = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
                info->errorNode = (CUgraphNode)update->nodes[i];
            }
        }
    }
    if (info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        struct sim_op **ops = exec->ops;
        exec->ops = update->ops;
        update->ops = ops;
    }
    pthread_mutex_unlock(&sim_graphs_lock);
    if (update != NULL)
        exec_free(update);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

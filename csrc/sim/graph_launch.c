/* SPDX-License-Identifier: BSD-3-Clause */
/* Launches of executable graphs, also in captured streams. */
#include "capture.h"
#include "conditional.h"
#include "context.h"
#include "graph.h"
#include "graph_event.h"
#include "graph_exec.h"
#include "graph_memory.h"
#include "stream.h"

#include <stdlib.h>

struct run {
    bool free_first, finished;
    struct sim_marks *marks;
    size_t count;
    struct sim_op *ops[];
};

static CUresult run_graph(struct sim_context *context, struct sim_op *op)
{
    struct run *run = (struct run *)op->payload;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < run->count && run->free_first; i++)
        if (run->ops[i]->kind == SIM_OP_ALLOCATE)
            sim_graph_memory_clear(run->ops[i]);
    sim_conditional_begin(run->ops, run->count);
    for (size_t i = 0; i < run->count && result == CUDA_SUCCESS; i++) {
        if (run->ops[i]->kind == SIM_OP_RECORD || run->ops[i]->kind == SIM_OP_WAIT)
            sim_marks_next(run->marks);
        else
            result = run->ops[i]->run(context, run->ops[i]);
    }
    run->finished = true;
    sim_graph_memory_finish(run->ops, run->count);
    return result;
}

static void dispose_run(struct sim_op *op)
{
    struct run *run = (struct run *)op->payload;
    if (!run->finished)
        sim_graph_memory_finish(run->ops, run->count);
    sim_marks_end(run->marks);
    for (size_t i = 0; i < run->count; i++)
        sim_op_release(run->ops[i]);
}

static bool has_conditions(const struct sim_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        if (exec->ops[i]->kind == SIM_OP_CONDITIONAL)
            return true;
    return false;
}

/* A launch in a captured stream becomes a child graph of the capture's graph. */
static CUresult capture_launch(struct sim_stream *stream, const struct sim_exec *exec)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (sim_exec_has_memory(exec) || has_conditions(exec))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_graph *child = calloc(1, sizeof *child);
    if (child == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    child->magic = SIM_GRAPH_MAGIC;
    pthread_mutex_lock(&sim_graphs_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        __atomic_add_fetch(&exec->ops[i]->references, 1, __ATOMIC_RELAXED);
        result = sim_graph_append_last(child, exec->ops[i], NULL);
    }
    struct sim_node *node = NULL;
    if (result == CUDA_SUCCESS)
        result = sim_graph_append_last(stream->capture->graph, NULL, &node);
    if (result == CUDA_SUCCESS) {
        node->child = child;
        node->type = CU_GRAPH_NODE_TYPE_GRAPH;
    }
    pthread_mutex_unlock(&sim_graphs_lock);
    if (result != CUDA_SUCCESS)
        sim_graph_free(child);
    return result;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_exec *exec;
    struct sim_marks *marks;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(sim_exec_find(handle, &exec));
    if (stream->capture != NULL)
        return capture_launch(stream, exec);
    SIM_TRY(sim_marks_new(&marks, exec->ops, exec->count));
    struct sim_op *op = sim_op_new(SIM_OP_GRAPH, sizeof(struct run) + exec->count * sizeof(struct sim_op *), run_graph);
    if (op == NULL) {
        sim_marks_end(marks);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct run *run = (struct run *)op->payload;
    *run = (struct run){.free_first = (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0,
                        .marks = marks,
                        .count = exec->count};
    for (size_t i = 0; i < exec->count; i++) {
        run->ops[i] = exec->ops[i];
        __atomic_add_fetch(&exec->ops[i]->references, 1, __ATOMIC_RELAXED);
    }
    op->dispose = dispose_run;
    CUresult result = sim_graph_memory_launch(exec->ops, exec->count, run->free_first);
    if (result != CUDA_SUCCESS) {
        run->finished = true;
        sim_op_release(op);
        return result;
    }
    sim_marks_begin(marks, stream->context);
    pthread_mutex_lock(&sim_graphs_lock);
    sim_op_wait_for(op, exec->last);
    pthread_mutex_unlock(&sim_graphs_lock);
    struct sim_point point = {NULL, 0};
    result = sim_stream_submit(stream, op, &point);
    pthread_mutex_lock(&sim_graphs_lock);
    exec->last = point;
    pthread_mutex_unlock(&sim_graphs_lock);
    return result;
}

SIM_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), launch(exec, stream, meant))

static CUresult upload(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct sim_exec *exec;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(sim_exec_find(handle, &exec));
    return sim_graph_memory_upload(exec->ops, exec->count);
}

SIM_PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), upload(exec, stream, meant))

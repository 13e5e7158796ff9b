/* SPDX-License-Identifier: BSD-3-Clause */
/* Captures and graphs. */
#include "player.h"

#include <string.h>

void graph_uses(const struct self *self, struct graph *graph, const struct block *block)
{
    unsigned index = (unsigned)(block - self->space->blocks);
    graph->stale = graph->stale || (graph->uses[index] && graph->generations[index] != block->generation);
    graph->uses[index] = true;
    graph->generations[index] = block->generation;
}

/* begin STREAM MODE GRAPH */
static void op_begin(struct self *self, const unsigned long long *n)
{
    struct capture *capture = &self->space->capture;
    struct graph *graph = &self->space->graphs[n[2] % GRAPHS];
    struct stream *stream = open_stream(self, n[0]);
    if (capture->open || graph->graph != NULL || stream == NULL || n[0] % STREAMS < 1 ||
        self->space->chain_count == CHAINS)
        return;
    if (!may_capture(stream))
        return;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)(n[1] % 3);
    if (!alone && mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    if (CALL(self, cuStreamBeginCapture, stream->handle, mode) != CUDA_SUCCESS)
        return;
    *capture = (struct capture){.open = true,
                                .graph = (unsigned)(n[2] % GRAPHS),
                                .origin = (unsigned)(n[0] % STREAMS),
                                .thread = self->number,
                                .context = (unsigned)self->current,
                                .mode = mode};
    capture->joined[capture->origin] = true;
    *graph = (struct graph){.context = context_of(self, capture->origin),
                            .chain = &self->space->chains[self->space->chain_count++]};
    for (unsigned i = 0; i < BLOCKS; i++)
        self->space->blocks[i].captured_by = NOTHING_PENDING;
}

static void end_capture(struct self *self)
{
    struct capture *capture = &self->space->capture;
    struct graph *graph = &self->space->graphs[capture->graph];
    capture->open = false;
    for (unsigned i = 0; i < EVENTS; i++)
        self->space->events[i].captured = false;
    CUcontext popped, context = self->space->contexts[capture->context]->handle;
    bool elsewhere = self->current != (int)capture->context && context != NULL &&
                     CALL(self, cuCtxPushCurrent, context) == CUDA_SUCCESS;
    if (CALL(self, cuStreamEndCapture, self->space->streams[capture->origin].handle, &graph->graph) != CUDA_SUCCESS)
        graph->graph = NULL;
    note(self, " graph=%d", graph->graph != NULL);
    if (elsewhere)
        CALL(self, cuCtxPopCurrent, &popped);
}

bool capture_refuses(const struct self *self)
{
    const struct capture *capture = &self->space->capture;
    if (!capture->open || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        self->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    return capture->thread == self->number ||
           (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

bool capture_refuses_in(const struct self *self, unsigned stream)
{
    const struct capture *capture = &self->space->capture;
    if (capture_refuses(self))
        return true;
    for (unsigned i = 1; i < STREAMS && capture->open && stream == 0; i++) {
        unsigned flags = CU_STREAM_DEFAULT;
        if (capture->joined[i] && (driver_cuStreamGetFlags(self->space->streams[i].handle, &flags) != CUDA_SUCCESS ||
                                   (flags & CU_STREAM_NON_BLOCKING) == 0))
            return true;
    }
    return false;
}

void finish_capture(struct self *self)
{
    if (self->space->capture.open && self->space->capture.thread == self->number)
        end_capture(self);
}

/* endcapture JOIN: joins the other branches first, or leaves them out, which the driver refuses */
static void op_endcapture(struct self *self, const unsigned long long *n)
{
    struct space *space = self->space;
    struct capture *capture = &space->capture;
    if (!capture->open || capture->thread != self->number)
        return;
    for (unsigned i = FIRST_OWN; i < STREAMS && n[0] % 5 != 0; i++) {
        if (!capture->joined[i] || i == capture->origin || !space->streams[i].open)
            continue;
        CALL(self, cuEventRecord, space->streams[i].edge, space->streams[i].handle);
        CALL(self, cuStreamWaitEvent, space->streams[capture->origin].handle, space->streams[i].edge, 0);
    }
    end_capture(self);
}

/* branch STREAM: joins the open capture */
static void op_branch(struct self *self, const unsigned long long *n)
{
    struct space *space = self->space;
    struct capture *capture = &space->capture;
    struct stream *stream = open_stream(self, n[0]);
    unsigned slot = (unsigned)(n[0] % STREAMS);
    if (!capture->open || stream == NULL || slot < FIRST_OWN || capture->joined[slot] || capture->origin < FIRST_OWN ||
        !may_capture(stream))
        return;
    struct stream *origin = &space->streams[capture->origin];
    if (CALL(self, cuEventRecord, origin->edge, origin->handle) == CUDA_SUCCESS &&
        CALL(self, cuStreamWaitEvent, stream->handle, origin->edge, 0) == CUDA_SUCCESS)
        capture->joined[slot] = true;
}

/* capturemode MODE: of this thread */
static void op_capturemode(struct self *self, const unsigned long long *n)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)(n[0] % 3);
    self->mode = mode;
    if (CALL(self, cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS)
        note(self, " before=%d", (int)mode);
}

/* scratch BLOCK STREAM SIZE: memory that a graph allocates and frees */
static void op_scratch(struct self *self, const unsigned long long *n)
{
    struct block *block = reachable_block(self, n[0]);
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (block == NULL || block->kind == HOST || stream == NULL || !is_capturing(self, slot) || block->defined == 0 ||
        !order(self, block, slot))
        return;
    CUdeviceptr at = 0;
    size_t size = n[2] % LARGEST + 1, length = size < block->defined ? size : block->defined;
    if (CALL(self, cuMemAllocAsync, &at, size, stream->handle) != CUDA_SUCCESS)
        return;
    CALL(self, cuMemcpyDtoDAsync, at, block->at, length, stream->handle);
    CALL(self, cuMemsetD8Async, at, (unsigned char)n[2], length / 2, stream->handle);
    if (CALL(self, cuMemcpyDtoDAsync, block->at, at, length, stream->handle) == CUDA_SUCCESS) {
        struct graph *graph = &self->space->graphs[self->space->capture.graph];
        graph_uses(self, graph, block);
    }
    CALL(self, cuMemFreeAsync, at, stream->handle);
}

/* mkgraph GRAPH BLOCK LENGTH VALUE: one that is not captured */
static void op_mkgraph(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    struct block *block = reachable_block(self, n[1]);
    struct capture *capture = &self->space->capture;
    if (graph->graph != NULL || (capture->open && capture->graph == n[0] % GRAPHS) || block == NULL ||
        block->kind == HOST || block->defined == 0)
        return;
    *graph = (struct graph){.context = block->context};
    if (CALL(self, cuGraphCreate, &graph->graph, 0) != CUDA_SUCCESS) {
        graph->graph = NULL;
        return;
    }
    CUgraphNode node;
    const CUDA_MEMSET_NODE_PARAMS parameters = {.dst = block->at,
                                                .value = (unsigned)(n[3] % 256),
                                                .elementSize = 1,
                                                .width = n[2] % block->defined + 1,
                                                .height = 1};
    if (CALL(self, cuGraphAddMemsetNode, &node, graph->graph, NULL, 0, &parameters,
             self->space->contexts[block->context]->handle) != CUDA_SUCCESS)
        return;
    graph->tail = node;
    graph_uses(self, graph, block);
    CUDA_MEMSET_NODE_PARAMS told;
    memset(&told, 0, sizeof told);
    if (CALL(self, cuGraphMemsetNodeGetParams, node, &told) == CUDA_SUCCESS)
        note(self, " same=%d width=%zu", told.dst == block->at, told.width);
}

/* The driver may look at the memory that a graph uses once it is instantiated: it must be there still. */
static bool is_usable(const struct self *self, const struct graph *graph)
{
    if (graph->stale)
        return false;
    for (unsigned i = 0; i < BLOCKS; i++) {
        const struct block *block = &self->space->blocks[i];
        if (graph->uses[i] && (block->kind == EMPTY || block->generation != graph->generations[i] ||
                               (block->kind == MAPPED && !block->has_access)))
            return false;
    }
    /* What a driver does about events that were destroyed is its own affair; the simulated one refuses. */
    for (unsigned i = 0; i < EVENTS && real; i++) {
        const struct event *event = &self->space->events[i];
        if (graph->event_lives[i] != 0 && (!event->open || event->life != graph->event_lives[i]))
            return false;
    }
    return true;
}

/* instantiate GRAPH */
static void op_instantiate(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    if (graph->graph == NULL || graph->executable != NULL || !is_usable(self, graph))
        return;
    /* The executable that was may still run: in which order host functions of both would run depends on time. */
    if (graph->calls && graph->launched)
        return;
    if (CALL(self, cuGraphInstantiateWithFlags, &graph->executable, graph->graph, 0) != CUDA_SUCCESS)
        graph->executable = NULL;
}

/* launch GRAPH STREAM */
static void op_launch(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    struct stream *stream = open_stream(self, n[1]);
    unsigned slot = (unsigned)(n[1] % STREAMS);
    if (graph->executable == NULL || stream == NULL || is_capturing(self, slot) || !is_usable(self, graph) ||
        context_of(self, slot) != graph->context)
        return;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (graph->uses[i] && !order(self, &self->space->blocks[i], slot))
            return;
    if (CALL(self, cuGraphLaunch, graph->executable, stream->handle) != CUDA_SUCCESS)
        return;
    graph->launched = true;
    for (unsigned i = 0; i < EVENTS; i++)
        if (graph->records[i])
            self->space->events[i].captured = false;
}

/* upload GRAPH STREAM */
static void op_upload(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    struct stream *stream = open_stream(self, n[1]);
    if (graph->executable != NULL && stream != NULL && !is_capturing(self, (unsigned)(n[1] % STREAMS)) &&
        is_usable(self, graph))
        CALL(self, cuGraphUpload, graph->executable, stream->handle);
}

/* graphinfo GRAPH */
static void op_graphinfo(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    size_t count = 0;
    CUgraphNode nodes[8];
    CUgraph clone;
    if (graph->graph == NULL)
        return;
    if (CALL(self, cuGraphGetNodes, graph->graph, NULL, &count) == CUDA_SUCCESS)
        note(self, " nodes=%zu", count);
    if (count > 8)
        return;
    if (CALL(self, cuGraphGetNodes, graph->graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) {
            CUgraphNodeType type;
            if (CALL(self, cuGraphNodeGetType, nodes[i], &type) == CUDA_SUCCESS)
                note(self, " type=%d", (int)type);
        }
    if (CALL(self, cuGraphClone, &clone, graph->graph) == CUDA_SUCCESS)
        CALL(self, cuGraphDestroy, clone);
}

/* rmgraph GRAPH EXECUTABLE: also while it runs */
static void op_rmgraph(struct self *self, const unsigned long long *n)
{
    struct graph *graph = &self->space->graphs[n[0] % GRAPHS];
    if (graph->graph == NULL)
        return;
    if (graph->executable != NULL) {
        CALL(self, cuGraphExecDestroy, graph->executable);
        graph->executable = NULL;
        if (n[1] % 2 == 0)
            return;
    }
    CALL(self, cuGraphDestroy, graph->graph);
    graph->graph = NULL;
}

/* graphtrim */
static void op_graphtrim(struct self *self, const unsigned long long *n)
{
    (void)n;
    CALL(self, cuDeviceGraphMemTrim, 0);
}

const struct operation graph_operations[] = {{"begin", op_begin, 0},
                                             {"endcapture", op_endcapture, 0},
                                             {"branch", op_branch, 0},
                                             {"capturemode", op_capturemode, 0},
                                             {"scratch", op_scratch, 0},
                                             {"mkgraph", op_mkgraph, 0},
                                             {"instantiate", op_instantiate, 0},
                                             {"launch", op_launch, 0},
                                             {"upload", op_upload, WAITS},
                                             {"graphinfo", op_graphinfo, 0},
                                             {"rmgraph", op_rmgraph, WAITS},
                                             {"graphtrim", op_graphtrim, WAITS},
                                             {0}};

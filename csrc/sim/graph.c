/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph.h"

#include "conditional.h"
#include "context.h"
#include "copy.h"
#include "event.h"
#include "graph_event.h"
#include "graph_memory.h"
#include "inject.h"
#include "launch.h"
#include "memory.h"
#include "value.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC UINT64_C(0x53494d4752504831)
#define NODE_MAGIC UINT64_C(0x53494d4e4f444531)
#define OBJECT_MAGIC UINT64_C(0x53494d4f424a5431)
#define EXEC_MAGIC UINT64_C(0x53494d4558454331)

struct node {
    uint64_t magic;
    struct node *next;
    struct graph *graph, *child;
    struct graph **bodies;       /* of a conditional node, as many as its operation takes */
    const struct node *original; /* of a clone, only to be compared */
    struct sim_op *op;           /* NULL: an empty node, or one with a child */
    void **pointers;             /* to the arguments, for who asks for them */
    CUgraphNodeType type;
    struct node **dependencies;
    size_t dependency_count;
    unsigned mark;
};

/* A reference to something of the application's, counted: by itself and by graphs. */
struct user_object {
    uint64_t magic;
    void *pointer;
    CUhostFn destroy;
    unsigned references;
};

struct retained {
    struct retained *next;
    struct user_object *object;
    unsigned count;
};

struct graph {
    uint64_t magic;
    struct graph *around; /* the graph of the node that this is a body of, or NULL */
    struct retained *retained;
    struct sim_condition *conditions;
    struct node *first, *last;
    size_t count;
};

struct exec {
    uint64_t magic;
    struct retained *retained;
    unsigned long long flags;
    struct sim_point last; /* the launch after which the next one comes */
    size_t count;
    struct sim_op **ops; /* in an order that the dependencies allow */
    const void **nodes;  /* what they were made from, only to be compared */
    struct exec *next;   /* of those that were destroyed */
};

struct sim_capture {
    struct sim_capture *next;
    struct graph *graph;
    struct sim_stream *origin;
    struct sim_context *context;
    CUstreamCaptureMode mode;
    unsigned long long id;
    pthread_t thread;
    bool invalid, over, borrowed; /* borrowed: the graph is the application's */
    unsigned streams;
    struct sim_stream *members; /* all of them, linked by `captured_next` */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards captures and graphs */
static struct sim_capture *captures;
static unsigned own_mode_captures; /* of mode global or thread-local */
static unsigned long long next_id = 1;
static __thread CUstreamCaptureMode thread_mode __attribute__((tls_model("initial-exec")));

void sim_capture_invalidate(struct sim_capture *capture)
{
    capture->invalid = true;
}

void sim_capture_invalidate_context(struct sim_context *context)
{
    pthread_mutex_lock(&lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->context == context)
            capture->invalid = true;
    pthread_mutex_unlock(&lock);
}

CUresult sim_capture_check_context(struct sim_context *context)
{
    if (__atomic_load_n(&context->captures, __ATOMIC_RELAXED) == 0)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next) {
        if (capture->context == context && !capture->invalid)
            capture->invalid = forbidden = true;
    }
    pthread_mutex_unlock(&lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult sim_capture_check_unsafe(void)
{
    if (__atomic_load_n(&own_mode_captures, __ATOMIC_RELAXED) == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    bool forbidden = false;
    pthread_mutex_lock(&lock);
    for (struct sim_capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self()) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool anybodys = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || anybodys) {
            capture->invalid = true;
            forbidden = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

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

static CUresult depend(struct node *node, struct node *const *dependencies, size_t count)
{
    if (count == 0)
        return CUDA_SUCCESS;
    struct node **more = realloc(node->dependencies, (node->dependency_count + count) * sizeof *more);
    if (more == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(more + node->dependency_count, dependencies, count * sizeof *more);
    node->dependencies = more;
    node->dependency_count += count;
    return CUDA_SUCCESS;
}

/* Takes over the reference to the operation, also on failure. */
static CUresult add(struct graph *graph, struct sim_op *op, struct node *const *dependencies, size_t count,
                    struct node **out)
{
    struct node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        *node = (struct node){.magic = NODE_MAGIC, .graph = graph, .op = op, .type = type_of(op)};
        if (depend(node, dependencies, count) != CUDA_SUCCESS) {
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

/* Behind all that the graph has. */
static CUresult add_after(struct graph *graph, struct sim_op *op, struct node **out)
{
    struct node *previous = graph->last;
    return add(graph, op, &previous, previous == NULL ? 0 : 1, out);
}

CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_capture *capture = stream->capture;
    if (capture->invalid) {
        sim_op_release(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    pthread_mutex_lock(&lock);
    /* The order of capture is one that all dependencies allow; a chain of them says so. */
    CUresult result = add_after(capture->graph, op, NULL);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult sim_capture_allocate(struct sim_stream *stream, size_t size, const CUmemPoolProps *properties,
                              unsigned accessible, CUdeviceptr *address)
{
    struct sim_op *op;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    /* What the pool exports is of no concern to the graph, whose memory cannot be exported. */
    CUmemPoolProps plain = *properties;
    plain.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
    SIM_TRY(sim_op_allocate(&op, stream->context, stream->capture->graph, size, &plain, accessible));
    *address = sim_op_memory(op);
    return sim_capture_record(stream, op);
}

CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address)
{
    struct sim_op *op;
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    SIM_TRY(sim_op_free(&op, stream->capture->graph, address));
    return sim_capture_record(stream, op);
}

CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    return CUDA_SUCCESS;
}

static void join(struct sim_stream *stream, struct sim_capture *capture)
{
    __atomic_store_n(&stream->capture, capture, __ATOMIC_RELAXED);
    stream->captured_next = capture->members;
    capture->members = stream;
    capture->streams++;
    __atomic_add_fetch(&stream->context->captures, 1, __ATOMIC_RELAXED);
    if (stream->blocking)
        __atomic_add_fetch(&stream->context->blocking_captures, 1, __ATOMIC_RELAXED);
}

static void leave(struct sim_stream *stream)
{
    struct sim_stream **link = &stream->capture->members;
    while (*link != stream)
        link = &(*link)->captured_next;
    *link = stream->captured_next;
    stream->capture->streams--;
    __atomic_store_n(&stream->capture, NULL, __ATOMIC_RELAXED);
    __atomic_sub_fetch(&stream->context->captures, 1, __ATOMIC_RELAXED);
    if (stream->blocking)
        __atomic_sub_fetch(&stream->context->blocking_captures, 1, __ATOMIC_RELAXED);
}

CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct sim_capture *capture = event->capture;
    if (capture->over || stream == stream->context->legacy)
        result = stream == stream->context->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_CAPTURED_EVENT;
    else if (stream->capture == NULL)
        join(stream, capture);
    else if (stream->capture != capture)
        result = CUDA_ERROR_STREAM_CAPTURE_MERGE;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult begin(CUstream handle, CUgraph graph_handle, CUstreamCaptureMode mode, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct sim_capture *capture = calloc(1, sizeof *capture);
    struct graph *graph = (struct graph *)graph_handle;
    if (graph == NULL)
        graph = calloc(1, sizeof *graph);
    if (capture == NULL || graph == NULL) {
        free(capture);
        if (graph_handle == NULL)
            free(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graph->magic = GRAPH_MAGIC;
    *capture = (struct sim_capture){.graph = graph,
                                    .origin = stream,
                                    .context = stream->context,
                                    .mode = mode,
                                    .thread = pthread_self(),
                                    .borrowed = graph_handle != NULL};
    pthread_mutex_lock(&lock);
    capture->id = next_id++;
    capture->next = captures;
    captures = capture;
    join(stream, capture);
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        __atomic_add_fetch(&own_mode_captures, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamBeginCapture, _ptsz, (CUstream stream), begin(stream, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, meant))
SIM_PAIR(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, CUstreamCaptureMode mode), begin(stream, NULL, mode, meant))
SIM_PAIR(cuStreamBeginCaptureToGraph, _ptsz,
         (CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges, size_t count,
          CUstreamCaptureMode mode),
         ((void)dependencies, (void)edges, (void)count,
          graph == NULL ? CUDA_ERROR_INVALID_VALUE : begin(stream, graph, mode, meant)))

static void release_object(struct user_object *object, unsigned count)
{
    if (__atomic_sub_fetch(&object->references, count, __ATOMIC_ACQ_REL) != 0)
        return;
    object->magic = 0;
    object->destroy(object->pointer);
    free(object);
}

static void node_free(struct node *node);

static void graph_free(struct graph *graph)
{
    for (struct retained *retained = graph->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        release_object(retained->object, retained->count);
        free(retained);
    }
    for (struct node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        node_free(node);
    }
    sim_conditions_release(graph->conditions);
    graph->magic = 0;
    free(graph);
}

static void free_bodies(struct graph **bodies, unsigned count)
{
    for (unsigned i = 0; bodies != NULL && i < count; i++)
        if (bodies[i] != NULL)
            graph_free(bodies[i]);
    free(bodies);
}

static void node_free(struct node *node)
{
    if (node->bodies != NULL)
        free_bodies(node->bodies, sim_conditional_size(node->op));
    if (node->op != NULL)
        sim_op_release(node->op);
    if (node->child != NULL)
        graph_free(node->child);
    node->magic = 0;
    free(node->pointers);
    free(node->dependencies);
    free(node);
}

/* Takes all streams out of the capture, whatever their contexts; true if it is invalid. */
static bool finish(struct sim_capture *capture)
{
    pthread_mutex_lock(&lock);
    while (capture->members != NULL)
        leave(capture->members);
    for (struct sim_capture **place = &captures; *place != NULL; place = &(*place)->next) {
        if (*place == capture) {
            *place = capture->next;
            break;
        }
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        __atomic_sub_fetch(&own_mode_captures, 1, __ATOMIC_RELAXED);
    capture->over = true; /* kept: events may still say that they were recorded into it */
    bool invalid = capture->invalid;
    pthread_mutex_unlock(&lock);
    if (invalid && !capture->borrowed)
        graph_free(capture->graph);
    return invalid;
}

void sim_capture_abandon(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return;
    sim_capture_invalidate(capture);
    if (stream == capture->origin) {
        finish(capture);
        return;
    }
    pthread_mutex_lock(&lock);
    leave(stream);
    pthread_mutex_unlock(&lock);
}

static CUresult end(CUstream handle, CUgraph *out, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(out != NULL);
    struct sim_capture *capture = stream->capture;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (stream != capture->origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *out = NULL;
    if (finish(capture))
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *out = (CUgraph)capture->graph;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), end(stream, graph, meant))

static CUstreamCaptureStatus status_of(const struct sim_stream *stream)
{
    return stream->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    SIM_REQUIRE(status != NULL);
    if (stream == stream->context->legacy && stream->context->blocking_captures > 0)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamIsCapturing, _ptsz, (CUstream stream, CUstreamCaptureStatus *status),
         is_capturing(stream, status, meant))

static CUresult capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count,
                             enum sim_stream_default meant)
{
    struct sim_stream *stream;
    SIM_TRY(is_capturing(handle, status, meant));
    SIM_TRY(sim_stream_enter(handle, meant, &stream));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id != NULL)
        *id = stream->capture->id;
    if (graph != NULL)
        *graph = (CUgraph)stream->capture->graph;
    if (dependencies != NULL)
        *dependencies =
            stream->capture->graph->last == NULL ? NULL : (const CUgraphNode *)&stream->capture->graph->last;
    if (edges != NULL)
        *edges = NULL;
    if (count != NULL)
        *count = stream->capture->graph->last == NULL ? 0 : 1;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamGetCaptureInfo, _ptsz, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
         capture_info(stream, status, id, NULL, NULL, NULL, NULL, meant))
SIM_PAIR(cuStreamGetCaptureInfo_v2, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count),
         capture_info(stream, status, id, graph, dependencies, NULL, count, meant))
SIM_PAIR(cuStreamGetCaptureInfo_v3, _ptsz,
         (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
         capture_info(stream, status, id, graph, dependencies, edges, count, meant))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER();
    SIM_REQUIRE(mode != NULL && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    CUstreamCaptureMode old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUresult find_graph(CUgraph handle, struct graph **graph)
{
    SIM_ENTER();
    *graph = (struct graph *)handle;
    return handle != NULL && (*graph)->magic == GRAPH_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && flags == 0);
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->magic = GRAPH_MAGIC;
    *out = (CUgraph)graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph handle)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(graph->around == NULL);
    graph_free(graph);
    return CUDA_SUCCESS;
}

static CUresult list(struct graph *graph, CUgraphNode *nodes, size_t *count, bool roots)
{
    SIM_REQUIRE(count != NULL);
    size_t found = 0;
    for (struct node *node = graph->first; node != NULL; node = node->next) {
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
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    return list(graph, nodes, count, false);
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    return list(graph, nodes, count, true);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
    SIM_ENTER();
    const struct node *node = (const struct node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC && type != NULL);
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult sim_graph_add(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                       struct sim_op *op)
{
    struct graph *graph;
    CUresult result = find_graph(handle, &graph);
    if (result == CUDA_SUCCESS && (out == NULL || (count > 0 && dependencies == NULL)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
        if (op != NULL)
            sim_op_release(op);
        return result;
    }
    pthread_mutex_lock(&lock);
    result = add(graph, op, (struct node *const *)dependencies, count, (struct node **)out);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    return sim_graph_add(node, graph, dependencies, count, NULL);
}

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(count == 0 || (from != NULL && to != NULL));
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = depend((struct node *)to[i], (struct node *const *)&from[i], 1);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *edges, size_t count)
{
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

static size_t count_all(const struct graph *graph)
{
    size_t count = 0;
    for (const struct node *node = graph->first; node != NULL; node = node->next)
        count += node->child != NULL ? count_all(node->child) : 1;
    return count;
}

/* Destroyed last, given out first. */
static struct exec *destroyed;
static pthread_mutex_t destroyed_lock = PTHREAD_MUTEX_INITIALIZER;

static struct exec *take_destroyed(void)
{
    pthread_mutex_lock(&destroyed_lock);
    struct exec *exec = destroyed;
    if (exec != NULL)
        destroyed = exec->next;
    pthread_mutex_unlock(&destroyed_lock);
    return exec;
}

static void put_destroyed(struct exec *exec)
{
    pthread_mutex_lock(&destroyed_lock);
    *exec = (struct exec){.next = destroyed};
    destroyed = exec;
    pthread_mutex_unlock(&destroyed_lock);
}

static struct exec *exec_new(const struct graph *graph)
{
    struct exec *exec = take_destroyed();
    if (exec == NULL)
        exec = malloc(sizeof *exec);
    size_t size = count_all(graph) + 1;
    if (exec == NULL)
        return NULL;
    *exec = (struct exec){.magic = 0};
    exec->ops = calloc(size, sizeof(*exec->ops));
    exec->nodes = calloc(size, sizeof(*exec->nodes));
    if (exec->ops != NULL && exec->nodes != NULL)
        return exec;
    free(exec->ops);
    free(exec->nodes);
    put_destroyed(exec);
    return NULL;
}

static void exec_free(struct exec *exec)
{
    for (struct retained *retained = exec->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        release_object(retained->object, retained->count);
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

/* Order. */

static CUresult compile(struct graph *graph, struct exec **out);

static bool is_allowed_in_body(const struct sim_op *op)
{
    return op->kind == SIM_OP_KERNEL || op->kind == SIM_OP_COPY || op->kind == SIM_OP_SET ||
           op->kind == SIM_OP_CONDITIONAL;
}

static bool is_body(const struct exec *exec)
{
    bool allowed = true;
    for (size_t i = 0; i < exec->count; i++)
        allowed = allowed && is_allowed_in_body(exec->ops[i]);
    return allowed;
}

/* Gives a conditional node's operation what its bodies are now. */
static CUresult place_bodies(struct sim_op *op, struct graph *const *bodies)
{
    for (unsigned i = 0; i < sim_conditional_size(op); i++) {
        struct exec *body;
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

static CUresult place_op(const struct node *node, struct exec *exec)
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

static CUresult place_all(struct graph *graph, struct exec *exec);

/* Depth first; a cycle is not valid. */
static CUresult place(struct node *node, struct exec *exec)
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

static CUresult place_all(struct graph *graph, struct exec *exec)
{
    CUresult result = CUDA_SUCCESS;
    for (struct node *node = graph->first; node != NULL; node = node->next)
        node->mark = 0;
    for (struct node *node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        result = place(node, exec);
    return result;
}

static CUresult compile(struct graph *graph, struct exec **out)
{
    struct exec *exec = exec_new(graph);
    if (exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = place_all(graph, exec);
    if (result == CUDA_SUCCESS)
        *out = exec;
    else
        exec_free(exec);
    return result;
}

static bool retain(struct retained **list, struct user_object *object, unsigned count, bool more)
{
    struct retained *retained = malloc(sizeof *retained);
    if (retained == NULL)
        return false;
    if (more)
        __atomic_add_fetch(&object->references, count, __ATOMIC_RELAXED);
    *retained = (struct retained){*list, object, count};
    *list = retained;
    return true;
}

CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned count, unsigned flags)
{
    SIM_ENTER();
    SIM_REQUIRE(out != NULL && destroy != NULL && count > 0 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    struct user_object *object = malloc(sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object = (struct user_object){OBJECT_MAGIC, pointer, destroy, count};
    *out = (CUuserObject)object;
    return CUDA_SUCCESS;
}

static CUresult find_object(CUuserObject handle, unsigned count, struct user_object **object)
{
    SIM_ENTER();
    *object = (struct user_object *)handle;
    return handle != NULL && (*object)->magic == OBJECT_MAGIC && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRetain(CUuserObject handle, unsigned count)
{
    struct user_object *object;
    SIM_TRY(find_object(handle, count, &object));
    __atomic_add_fetch(&object->references, count, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject handle, unsigned count)
{
    struct user_object *object;
    SIM_TRY(find_object(handle, count, &object));
    release_object(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count, unsigned flags)
{
    struct graph *graph;
    struct user_object *object;
    SIM_TRY(find_graph(graph_handle, &graph));
    SIM_TRY(find_object(handle, count, &object));
    pthread_mutex_lock(&lock);
    bool retained = retain(&graph->retained, object, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) == 0);
    pthread_mutex_unlock(&lock);
    return retained ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphReleaseUserObject(CUgraph graph_handle, CUuserObject handle, unsigned count)
{
    struct graph *graph;
    struct user_object *object;
    SIM_TRY(find_graph(graph_handle, &graph));
    SIM_TRY(find_object(handle, count, &object));
    pthread_mutex_lock(&lock);
    struct retained **place = &graph->retained;
    while (*place != NULL && ((*place)->object != object || (*place)->count != count))
        place = &(*place)->next;
    struct retained *found = *place;
    if (found != NULL)
        *place = found->next;
    pthread_mutex_unlock(&lock);
    SIM_REQUIRE(found != NULL);
    free(found);
    release_object(object, count);
    return CUDA_SUCCESS;
}

/* Whether all conditions that were made for the graph, and for what is inside of it, have nodes. */
static bool uses_conditions(const struct graph *graph)
{
    bool used = sim_conditions_are_used(graph->conditions);
    for (const struct node *node = graph->first; node != NULL && used; node = node->next) {
        if (node->child != NULL)
            used = uses_conditions(node->child);
        for (unsigned i = 0; node->bodies != NULL && i < sim_conditional_size(node->op) && used; i++)
            used = uses_conditions(node->bodies[i]);
    }
    return used;
}

/* There can be one executable at a time of memory nodes and of conditional ones. */
static CUresult claim(struct exec *exec)
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
    struct graph *graph;
    struct exec *exec;
    SIM_TRY(find_graph(handle, &graph));
    SIM_TRY(sim_process_check());
    SIM_REQUIRE(out != NULL && graph->around == NULL);
    pthread_mutex_lock(&lock);
    CUresult result = uses_conditions(graph) ? compile(graph, &exec) : CUDA_ERROR_INVALID_VALUE;
    bool whole = true;
    for (struct retained *retained = graph->retained; retained != NULL && result == CUDA_SUCCESS && whole;
         retained = retained->next)
        whole = retain(&exec->retained, retained->object, 1, true);
    pthread_mutex_unlock(&lock);
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
    struct graph *found;
    CUresult result = instantiate(exec, graph, parameters->flags);
    parameters->hErrNode_out = NULL;
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_ERROR_INVALID_VALUE && find_graph(graph, &found) == CUDA_SUCCESS && !uses_conditions(found))
        parameters->result_out = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    return result;
}

SIM_PAIR(cuGraphInstantiateWithParams, _ptsz,
         (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters),
         ((void)meant, instantiate_with(exec, graph, parameters)))

static CUresult find_exec(CUgraphExec handle, struct exec **exec)
{
    SIM_ENTER();
    *exec = (struct exec *)handle;
    return handle != NULL && (*exec)->magic == EXEC_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
    SIM_INJECT(cuGraphExecDestroy);
    struct exec *exec;
    SIM_TRY(find_exec(handle, &exec));
    exec_free(exec);
    return CUDA_SUCCESS;
}

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

static bool has_memory(const struct exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        if (exec->ops[i]->kind == SIM_OP_ALLOCATE || exec->ops[i]->kind == SIM_OP_FREE)
            return true;
    return false;
}

static bool has_conditions(const struct exec *exec)
{
    for (size_t i = 0; i < exec->count; i++)
        if (exec->ops[i]->kind == SIM_OP_CONDITIONAL)
            return true;
    return false;
}

/* What is launched into a capture becomes a graph inside of its graph. */
static CUresult capture_launch(struct sim_stream *stream, const struct exec *exec)
{
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (has_memory(exec) || has_conditions(exec))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct graph *child = calloc(1, sizeof *child);
    if (child == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    child->magic = GRAPH_MAGIC;
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        __atomic_add_fetch(&exec->ops[i]->references, 1, __ATOMIC_RELAXED);
        result = add_after(child, exec->ops[i], NULL);
    }
    struct node *node = NULL;
    if (result == CUDA_SUCCESS)
        result = add_after(stream->capture->graph, NULL, &node);
    if (result == CUDA_SUCCESS) {
        node->child = child;
        node->type = CU_GRAPH_NODE_TYPE_GRAPH;
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS)
        graph_free(child);
    return result;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct exec *exec;
    struct sim_marks *marks;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(find_exec(handle, &exec));
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
    pthread_mutex_lock(&lock);
    sim_op_wait_for(op, exec->last);
    pthread_mutex_unlock(&lock);
    struct sim_point point = {NULL, 0};
    result = sim_stream_submit(stream, op, &point);
    pthread_mutex_lock(&lock);
    exec->last = point;
    pthread_mutex_unlock(&lock);
    return result;
}

SIM_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), launch(exec, stream, meant))

static CUresult upload(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct exec *exec;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(find_exec(handle, &exec));
    return sim_graph_memory_upload(exec->ops, exec->count);
}

SIM_PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), upload(exec, stream, meant))

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
    struct exec *exec;
    SIM_TRY(find_exec(handle, &exec));
    SIM_REQUIRE(flags != NULL);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

/* Memory nodes. */

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
    struct graph *found;
    SIM_TRY(find_graph(graph, &found));
    struct sim_op *op;
    SIM_TRY(sim_op_allocate(&op, context, found, p->bytesize, &p->poolProps,
                            access_mask(p->accessDescs, p->accessDescCount)));
    p->dptr = sim_op_memory(op);
    return sim_graph_add(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr address)
{
    struct graph *found;
    SIM_TRY(find_graph(graph, &found));
    struct sim_op *op;
    SIM_TRY(sim_op_free(&op, found, address));
    return sim_graph_add(node, graph, dependencies, count, op);
}

static CUresult find_node(CUgraphNode handle, CUgraphNodeType type, struct node **node)
{
    SIM_ENTER();
    *node = (struct node *)handle;
    return handle != NULL && (*node)->magic == NODE_MAGIC && (*node)->type == type ? CUDA_SUCCESS
                                                                                   : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_node_find(CUgraphNode handle, enum sim_op_kind kind, struct sim_op **op)
{
    struct node *node;
    SIM_TRY(find_node(handle, type_of_kind(kind), &node));
    *op = node->op;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node));
    SIM_REQUIRE(parameters != NULL);
    sim_op_allocation(node->op, parameters);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *address)
{
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_MEM_FREE, &node));
    SIM_REQUIRE(address != NULL);
    *address = sim_op_memory(node->op);
    return CUDA_SUCCESS;
}

/* What a node's parameters make. */

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

/* Takes over the reference. Executables that were made before keep what they have. */
void sim_node_set(CUgraphNode handle, struct sim_op *op)
{
    struct node *node = (struct node *)handle;
    pthread_mutex_lock(&lock);
    struct sim_op *old = node->op;
    node->op = op;
    pthread_mutex_unlock(&lock);
    sim_op_release(old);
}

/* Whether an executable that has one operation can have the other, of the same kind, in its place. */
static bool may_replace(const struct sim_op *old, const struct sim_op *new)
{
    return old->kind == SIM_OP_BATCH         ? sim_op_batch_is_alike(old, new)
           : old->kind == SIM_OP_CONDITIONAL ? sim_conditional_is_alike(old, new)
                                             : true;
}

/* Takes over the reference, also on failure. */
CUresult sim_exec_set(CUgraphExec handle, CUgraphNode node, struct sim_op *op)
{
    struct exec *exec;
    struct sim_op *old = NULL;
    CUresult result = find_exec(handle, &exec);
    if (result != CUDA_SUCCESS) {
        sim_op_release(op);
        return result;
    }
    pthread_mutex_lock(&lock);
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
    pthread_mutex_unlock(&lock);
    sim_op_release(old != NULL ? old : op);
    return old != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define SETTERS(name, suffix, type, parameters, make, ...)                                                             \
    CUresult cuGraph##name##NodeSetParams##suffix(CUgraphNode handle, const parameters *p)                             \
    {                                                                                                                  \
        struct node *node;                                                                                             \
        struct sim_op *op;                                                                                             \
        SIM_TRY(find_node(handle, type, &node));                                                                       \
        SIM_TRY(make(&op, p));                                                                                         \
        sim_node_set(handle, op);                                                                                      \
        return CUDA_SUCCESS;                                                                                           \
    }                                                                                                                  \
    CUresult cuGraphExec##name##NodeSetParams##suffix(CUgraphExec exec_handle, CUgraphNode handle,                     \
                                                      const parameters *p __VA_ARGS__)                                 \
    {                                                                                                                  \
        struct exec *exec;                                                                                             \
        struct node *node;                                                                                             \
        struct sim_op *op;                                                                                             \
        SIM_TRY(find_exec(exec_handle, &exec));                                                                        \
        SIM_TRY(find_node(handle, type, &node));                                                                       \
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
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
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
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
    SIM_REQUIRE(description != NULL);
    sim_copy_describe((const struct sim_copy *)node->op->payload, description);
    return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *parameters)
{
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
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
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
    SIM_REQUIRE(parameters != NULL);
    sim_op_host_call(node->op, &parameters->fn, &parameters->userData);
    return CUDA_SUCCESS;
}

/* Clones and children. Operations never change, so that a clone can have the same. */

static bool has_memory_nodes(const struct graph *graph)
{
    for (const struct node *node = graph->first; node != NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child != NULL && has_memory_nodes(node->child)))
            return true;
    return false;
}

/* Memory and conditions are of one graph alone. */
static bool has_single_nodes(const struct graph *graph)
{
    for (const struct node *node = graph->first; node != NULL; node = node->next)
        if (node->bodies != NULL || (node->child != NULL && has_single_nodes(node->child)))
            return true;
    return has_memory_nodes(graph);
}

static struct node *clone_in(const struct graph *clone, const struct node *original)
{
    struct node *node = clone->first;
    while (node != NULL && node->original != original)
        node = node->next;
    return node;
}

/* Under the lock. */
static CUresult clone_graph(const struct graph *graph, struct graph **out)
{
    if (has_single_nodes(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct graph *copy = calloc(1, sizeof *copy);
    if (copy == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    copy->magic = GRAPH_MAGIC;
    CUresult result = CUDA_SUCCESS;
    for (const struct node *node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        struct node *twin = NULL;
        if (node->op != NULL)
            __atomic_add_fetch(&node->op->references, 1, __ATOMIC_RELAXED);
        result = add(copy, node->op, NULL, 0, &twin);
        if (result != CUDA_SUCCESS)
            break;
        twin->original = node;
        twin->type = node->type;
        if (node->child != NULL)
            result = clone_graph(node->child, &twin->child);
    }
    for (struct node *twin = copy->first; twin != NULL && result == CUDA_SUCCESS; twin = twin->next)
        for (size_t i = 0; i < twin->original->dependency_count && result == CUDA_SUCCESS; i++)
            result = depend(twin, (struct node *[]){clone_in(copy, twin->original->dependencies[i])}, 1);
    for (struct retained *retained = graph->retained; retained != NULL && result == CUDA_SUCCESS;
         retained = retained->next)
        result = retain(&copy->retained, retained->object, 1, true) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = copy;
    else
        graph_free(copy);
    return result;
}

CUresult cuGraphClone(CUgraph *out, CUgraph handle)
{
    struct graph *graph, *copy;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(out != NULL);
    pthread_mutex_lock(&lock);
    CUresult result = clone_graph(graph, &copy);
    pthread_mutex_unlock(&lock);
    SIM_TRY(result);
    *out = (CUgraph)copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph handle)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(out != NULL);
    struct node *found = clone_in(graph, (const struct node *)original);
    SIM_REQUIRE(original != NULL && found != NULL);
    *out = (CUgraphNode)found;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child_handle)
{
    struct graph *child, *copy;
    SIM_TRY(find_graph(child_handle, &child));
    SIM_REQUIRE(out != NULL && handle != child_handle);
    pthread_mutex_lock(&lock);
    CUresult result = clone_graph(child, &copy);
    pthread_mutex_unlock(&lock);
    SIM_TRY(result);
    result = sim_graph_add(out, handle, dependencies, count, NULL);
    if (result != CUDA_SUCCESS) {
        graph_free(copy);
        return result;
    }
    struct node *node = (struct node *)*out;
    node->child = copy;
    node->type = CU_GRAPH_NODE_TYPE_GRAPH;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph)
{
    struct node *node;
    SIM_TRY(find_node(handle, CU_GRAPH_NODE_TYPE_GRAPH, &node));
    SIM_REQUIRE(graph != NULL && node->child != NULL);
    *graph = (CUgraph)node->child;
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

/* The operation of a node that is nothing but one. */
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
    struct graph *graph;
    SIM_TRY(find_graph(graph_handle, &graph));
    pthread_mutex_lock(&lock);
    CUresult result = sim_condition_add(&graph->conditions, graph, context, initial, flags, handle);
    pthread_mutex_unlock(&lock);
    return result;
}

/* A graph can use the conditions of those that it is inside of. */
static bool has_condition(const struct graph *graph, const struct sim_op *op)
{
    while (graph != NULL && graph != sim_conditional_graph(op))
        graph = graph->around;
    return graph != NULL;
}

static struct graph **make_bodies(struct graph *around, unsigned count)
{
    struct graph **bodies = calloc(count, sizeof(struct graph *));
    bool whole = bodies != NULL;
    for (unsigned i = 0; i < count && whole; i++) {
        bodies[i] = calloc(1, sizeof *bodies[i]);
        whole = bodies[i] != NULL;
        if (whole)
            *bodies[i] = (struct graph){.magic = GRAPH_MAGIC, .around = around};
    }
    if (whole)
        return bodies;
    free_bodies(bodies, count);
    return NULL;
}

static CUresult add_conditional(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                                CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct graph *graph;
    struct sim_op *op;
    SIM_TRY(find_graph(handle, &graph));
    SIM_TRY(sim_op_conditional(&op, p));
    struct graph **bodies = make_bodies(graph, p->size);
    if (bodies == NULL || !has_condition(graph, op)) {
        free_bodies(bodies, p->size);
        sim_op_release(op);
        return bodies == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_graph_add(out, handle, dependencies, count, op);
    if (result != CUDA_SUCCESS) {
        free_bodies(bodies, p->size);
        return result;
    }
    ((struct node *)*out)->bodies = bodies;
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
    struct node *node;
    struct sim_op *op;
    SIM_REQUIRE(p != NULL);
    SIM_TRY(find_node(handle, p->type, &node));
    SIM_TRY(op_of(&op, p));
    sim_node_set(handle, op);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeParams *p)
{
    struct exec *exec;
    struct node *node;
    struct sim_op *op;
    SIM_TRY(find_exec(exec_handle, &exec));
    SIM_REQUIRE(p != NULL);
    SIM_TRY(find_node(handle, p->type, &node));
    SIM_TRY(op_of(&op, p));
    return sim_exec_set(exec_handle, handle, op);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *parameters)
{
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, count, parameters);
}

/* Replaces what the executable does by what another graph of the same shape does. */
CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo *info)
{
    struct exec *exec;
    struct graph *graph;
    SIM_TRY(find_exec(handle, &exec));
    SIM_TRY(find_graph(graph_handle, &graph));
    SIM_REQUIRE(info != NULL);
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    pthread_mutex_lock(&lock);
    struct exec *update = NULL;
    if (graph->around == NULL && compile(graph, &update) == CUDA_SUCCESS) {
        info->result = update->count != exec->count ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
                       : has_memory(exec)           ? CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED
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
    pthread_mutex_unlock(&lock);
    if (update != NULL)
        exec_free(update);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

/* Shape. */

CUresult cuGraphDestroyNode(CUgraphNode handle)
{
    SIM_ENTER();
    struct node *node = (struct node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC);
    struct graph *graph = node->graph;
    if (has_memory_nodes(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    struct node *previous = NULL;
    for (struct node *other = graph->first; other != NULL; other = other->next) {
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
    pthread_mutex_unlock(&lock);
    node_free(node);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(count != NULL && (from == NULL) == (to == NULL));
    size_t found = 0;
    for (struct node *node = graph->first; node != NULL; node = node->next) {
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
    const struct node *node = (const struct node *)handle;
    SIM_REQUIRE(node != NULL && node->magic == NODE_MAGIC && count != NULL);
    size_t found = 0;
    for (struct node *other = node->graph->first; other != NULL; other = other->next) {
        const struct node *of = dependent ? other : node, *wanted = dependent ? node : other;
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

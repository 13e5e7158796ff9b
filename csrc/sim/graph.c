/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph.h"

#include "context.h"
#include "copy.h"
#include "event.h"
#include "launch.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC UINT64_C(0x53494d4752504831)
#define NODE_MAGIC UINT64_C(0x53494d4e4f444531)
#define OBJECT_MAGIC UINT64_C(0x53494d4f424a5431)
#define EXEC_MAGIC UINT64_C(0x53494d4558454331)

struct node {
    uint64_t magic;
    struct node *next;
    struct sim_op *op; /* NULL: an empty node */
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
    struct retained *retained;
    struct node *first, *last;
    size_t count;
};

struct exec {
    uint64_t magic;
    struct retained *retained;
    size_t count;
    struct sim_op **ops; /* in an order that the dependencies allow */
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
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards captures and graphs */
static struct sim_capture *captures;
static unsigned global_captures;   /* of mode global */
static unsigned own_mode_captures; /* of mode global or thread-local */
static unsigned long long next_id = 1;
static __thread CUstreamCaptureMode thread_mode __attribute__((tls_model("initial-exec")));

bool sim_capture_active(const struct sim_capture *capture)
{
    return capture != NULL && !capture->invalid;
}

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

static CUgraphNodeType type_of(const struct sim_op *op)
{
    switch (op == NULL ? SIM_OP_OTHER : op->kind) {
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
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
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
        *node = (struct node){.magic = NODE_MAGIC, .op = op, .type = type_of(op)};
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

CUresult sim_capture_record(struct sim_stream *stream, struct sim_op *op)
{
    struct sim_capture *capture = stream->capture;
    if (capture->invalid) {
        sim_op_release(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    pthread_mutex_lock(&lock);
    /* The order of capture is one that all dependencies allow; a chain of them says so. */
    struct node *previous = capture->graph->last;
    CUresult result = add(capture->graph, op, &previous, previous == NULL ? 0 : 1, NULL);
    pthread_mutex_unlock(&lock);
    return result;
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
    stream->capture = capture;
    capture->streams++;
    __atomic_add_fetch(&stream->context->captures, 1, __ATOMIC_RELAXED);
    if (stream->blocking)
        __atomic_add_fetch(&stream->context->blocking_captures, 1, __ATOMIC_RELAXED);
}

static void leave(struct sim_stream *stream)
{
    stream->capture->streams--;
    stream->capture = NULL;
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
    *capture = (struct sim_capture){
        .graph = graph, .origin = stream, .context = stream->context, .mode = mode, .thread = pthread_self()};
    pthread_mutex_lock(&lock);
    capture->id = next_id++;
    capture->next = captures;
    captures = capture;
    join(stream, capture);
    if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        global_captures++;
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        own_mode_captures++;
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

static void graph_free(struct graph *graph)
{
    for (struct retained *retained = graph->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        release_object(retained->object, retained->count);
        free(retained);
    }
    for (struct node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        if (node->op != NULL)
            sim_op_release(node->op);
        node->magic = 0;
        free(node->dependencies);
        free(node);
    }
    graph->magic = 0;
    free(graph);
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
    pthread_mutex_lock(&capture->context->order);
    for (struct sim_stream *other = capture->context->streams; other != NULL; other = other->next)
        if (other->capture == capture && other != stream)
            leave(other);
    pthread_mutex_unlock(&capture->context->order);
    pthread_mutex_lock(&lock);
    leave(stream);
    for (struct sim_capture **place = &captures; *place != NULL; place = &(*place)->next) {
        if (*place == capture) {
            *place = capture->next;
            break;
        }
    }
    if (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
        global_captures--;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        own_mode_captures--;
    capture->over = true; /* kept: events may still say that they were recorded into it */
    bool invalid = capture->invalid;
    pthread_mutex_unlock(&lock);
    *out = NULL;
    if (invalid) {
        if (!capture->borrowed)
            graph_free(capture->graph);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
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

static CUresult add_checked(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
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
    return add_checked(node, graph, dependencies, count, NULL);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *p)
{
    SIM_ENTER();
    SIM_REQUIRE(p != NULL);
    struct sim_kernel *kernel;
    SIM_TRY(sim_kernel_find(p->func != NULL ? p->func : (CUfunction)(void *)p->kern, &kernel));
    struct sim_op *op;
    SIM_TRY(sim_op_launch(&op, kernel, (const unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
                          (const unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
                          p->kernelParams, p->extra));
    return add_checked(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *description, CUcontext context)
{
    SIM_ENTER();
    (void)context;
    struct sim_copy copy;
    SIM_TRY(sim_copy_3d(description, &copy));
    struct sim_op *op = sim_op_copy(&copy);
    return op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add_checked(node, graph, dependencies, count, op);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context)
{
    SIM_ENTER();
    (void)context;
    SIM_REQUIRE(p != NULL && (p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4));
    struct sim_op *op = sim_op_set(&(struct sim_set){p->dst, p->pitch, p->width, p->height, p->value, p->elementSize});
    return op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add_checked(node, graph, dependencies, count, op);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *p)
{
    SIM_ENTER();
    SIM_REQUIRE(p != NULL && p->fn != NULL);
    struct sim_op *op = sim_op_host(p->fn, p->userData);
    return op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add_checked(node, graph, dependencies, count, op);
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

/* Depth first; false on a cycle. */
static bool place(struct node *node, struct exec *exec)
{
    if (node->mark == 2)
        return true;
    if (node->mark == 1)
        return false;
    node->mark = 1;
    for (size_t i = 0; i < node->dependency_count; i++)
        if (!place(node->dependencies[i], exec))
            return false;
    node->mark = 2;
    if (node->op != NULL) {
        __atomic_add_fetch(&node->op->references, 1, __ATOMIC_RELAXED);
        exec->ops[exec->count++] = node->op;
    }
    return true;
}

static void exec_free(struct exec *exec)
{
    for (struct retained *retained = exec->retained, *next; retained != NULL; retained = next) {
        next = retained->next;
        release_object(retained->object, retained->count);
        free(retained);
    }
    for (size_t i = 0; i < exec->count; i++)
        sim_op_release(exec->ops[i]);
    free(exec->ops);
    exec->magic = 0;
    free(exec);
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

static CUresult instantiate(CUgraphExec *out, CUgraph handle)
{
    struct graph *graph;
    SIM_TRY(find_graph(handle, &graph));
    SIM_REQUIRE(out != NULL);
    struct exec *exec = calloc(1, sizeof *exec);
    struct sim_op **ops = calloc(graph->count + 1, sizeof *ops);
    if (exec == NULL || ops == NULL) {
        free(exec);
        free(ops);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->magic = EXEC_MAGIC;
    exec->ops = ops;
    bool valid = true;
    pthread_mutex_lock(&lock);
    for (struct node *node = graph->first; node != NULL; node = node->next)
        node->mark = 0;
    for (struct node *node = graph->first; node != NULL && valid; node = node->next)
        valid = place(node, exec);
    for (struct retained *retained = graph->retained; retained != NULL && valid; retained = retained->next)
        valid = retain(&exec->retained, retained->object, 1, true);
    pthread_mutex_unlock(&lock);
    if (!valid) {
        exec_free(exec);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    if (error_node != NULL)
        *error_node = NULL;
    if (log != NULL && size > 0)
        log[0] = '\0';
    return instantiate(exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    return cuGraphInstantiate(exec, graph, error_node, log, size);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    SIM_REQUIRE(parameters != NULL);
    CUresult result = instantiate(exec, graph);
    parameters->hErrNode_out = NULL;
    parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
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
    struct exec *exec;
    SIM_TRY(find_exec(handle, &exec));
    exec_free(exec);
    return CUDA_SUCCESS;
}

struct run {
    size_t count;
    struct sim_op *ops[];
};

static CUresult run_graph(struct sim_context *context, struct sim_op *op)
{
    struct run *run = (struct run *)op->payload;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < run->count && result == CUDA_SUCCESS; i++)
        result = run->ops[i]->run(context, run->ops[i]);
    return result;
}

static void dispose_run(struct sim_op *op)
{
    struct run *run = (struct run *)op->payload;
    for (size_t i = 0; i < run->count; i++)
        sim_op_release(run->ops[i]);
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct exec *exec;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    SIM_TRY(find_exec(handle, &exec));
    struct sim_op *op = sim_op_new(SIM_OP_GRAPH, sizeof(struct run) + exec->count * sizeof(struct sim_op *), run_graph);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct run *run = (struct run *)op->payload;
    run->count = exec->count;
    for (size_t i = 0; i < exec->count; i++) {
        run->ops[i] = exec->ops[i];
        __atomic_add_fetch(&exec->ops[i]->references, 1, __ATOMIC_RELAXED);
    }
    op->dispose = dispose_run;
    return sim_stream_submit(stream, op, NULL);
}

SIM_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), launch(exec, stream, meant))

static CUresult upload(CUgraphExec handle, CUstream stream_handle, enum sim_stream_default meant)
{
    struct sim_stream *stream;
    struct exec *exec;
    SIM_TRY(sim_stream_enter(stream_handle, meant, &stream));
    return find_exec(handle, &exec);
}

SIM_PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), upload(exec, stream, meant))

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
    struct exec *exec;
    SIM_TRY(find_exec(handle, &exec));
    SIM_REQUIRE(flags != NULL);
    *flags = 0;
    return CUDA_SUCCESS;
}

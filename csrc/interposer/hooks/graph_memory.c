/* SPDX-License-Identifier: BSD-3-Clause */
/* Hooks on graphs that may have allocation nodes (graph_memory.h). */
#include "hooks/graph_memory.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/enter.h"
#include "gate/work.h"
#include "loader/real.h"
#include "memory/admission.h"
#include "protocol.h"

#include <stdlib.h>
#include <string.h>

/* An executable graph that allocates memory. */
struct exec {
    struct gs_node node; /* by handle */
    uint64_t bytes[GPUSHARE_MAX_GPUS];
};

static struct {
    struct gs_mutex lock;
    struct gs_map execs;
    uint64_t counted[GPUSHARE_MAX_GPUS];
    bool allocates[GPUSHARE_MAX_GPUS]; /* an executable graph allocates on the device, or has done so */
    int used;
} graphs = {.lock = GS_MUTEX(GS_RANK_GRAPHS)};

void gs_graph_memory_used(void)
{
    __atomic_store_n(&graphs.used, 1, __ATOMIC_RELAXED);
}

static bool in_use(void)
{
    return __builtin_expect(__atomic_load_n(&graphs.used, __ATOMIC_RELAXED), 0) && gs_session_attached();
}

static uint64_t reserved_on(CUdevice device)
{
    GS_LEAVES_CAPTURES_ALONE;
    cuuint64_t reserved = 0;
    GS_REAL(cuDeviceGetGraphMemAttribute)(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved);
    return reserved;
}

/*
 * Counts what the driver holds. Before a trim, counts at least what was admitted, because a launch may not have
 * allocated it yet.
 */
static void settle(bool trimmed)
{
    gs_mutex_lock(&graphs.lock);
    for (int device = 0; device < GPUSHARE_MAX_GPUS; device++) {
        if (!graphs.allocates[device])
            continue;
        uint64_t counted = graphs.counted[device], reserved = reserved_on(device);
        if (reserved > counted || trimmed) {
            graphs.counted[device] = reserved;
            gs_memory_count_unevictable(device, (int64_t)(reserved - counted));
        }
    }
    gs_mutex_unlock(&graphs.lock);
}

/* Adds up all allocation nodes. Only the driver knows how many of them exist at one time. */
static void add_up(CUgraph graph, uint64_t bytes[GPUSHARE_MAX_GPUS])
{
    GS_LEAVES_CAPTURES_ALONE;
    size_t count = 0;
    if (GS_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes == NULL || GS_REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUgraph child;
        if (GS_REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            GS_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
            add_up(child, bytes);
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
            GS_REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &allocation) == CUDA_SUCCESS &&
            allocation.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            (unsigned)allocation.poolProps.location.id < GPUSHARE_MAX_GPUS)
            bytes[allocation.poolProps.location.id] += allocation.bytesize;
    }
    free(nodes);
}

static struct exec *take(CUgraphExec handle)
{
    gs_mutex_lock(&graphs.lock);
    struct exec *exec = (struct exec *)gs_map_remove(&graphs.execs, (uintptr_t)handle);
    gs_mutex_unlock(&graphs.lock);
    return exec;
}

/* If a graph with that handle is still in the table, it was destroyed without the interposer's knowledge. */
static void put(struct exec *exec)
{
    gs_mutex_lock(&graphs.lock);
    free(gs_map_remove(&graphs.execs, exec->node.key));
    gs_map_insert(&graphs.execs, &exec->node);
    for (int device = 0; device < GPUSHARE_MAX_GPUS; device++)
        graphs.allocates[device] = graphs.allocates[device] || exec->bytes[device] != 0;
    gs_mutex_unlock(&graphs.lock);
}

static CUresult instantiated(CUresult result, const CUgraphExec *handle, CUgraph graph)
{
    if (result != CUDA_SUCCESS || !in_use())
        return result;
    struct exec *exec = calloc(1, sizeof(*exec));
    if (exec == NULL)
        return result;
    add_up(graph, exec->bytes);
    exec->node.key = (uintptr_t)*handle;
    put(exec);
    return result;
}

/*
 * How many bytes the device's pool lacks before it can hold everything that the graph allocates. Counts them if they
 * are already booked.
 */
static uint64_t count_booked(CUgraphExec handle, CUdevice device, uint64_t booked)
{
    gs_mutex_lock(&graphs.lock);
    const struct exec *exec = (const struct exec *)gs_map_floor(&graphs.execs, (uintptr_t)handle);
    bool known = exec != NULL && exec->node.key == (uintptr_t)handle;
    uint64_t missing =
        known && exec->bytes[device] > graphs.counted[device] ? exec->bytes[device] - graphs.counted[device] : 0;
    if (missing <= booked)
        graphs.counted[device] += missing;
    gs_mutex_unlock(&graphs.lock);
    return missing;
}

/*
 * Nothing is counted before it is booked. Meanwhile another launch may count it, or a trim may subtract what was
 * counted before. Then more is missing than was booked.
 */
static CUresult admit_on(CUgraphExec handle, CUdevice device)
{
    uint64_t booked = 0, missing, counted;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && (missing = count_booked(handle, device, booked)) > booked) {
        result = gs_memory_reserve_unevictable(device, missing - booked);
        booked = result == CUDA_SUCCESS ? missing : booked;
    }
    counted = result == CUDA_SUCCESS ? missing : 0;
    if (booked != counted)
        gs_memory_release_unevictable(device, booked - counted);
    return result;
}

/* Before a launch: the pool of each device may grow to the size that this graph allocates. */
static CUresult admit(CUgraphExec handle)
{
    CUresult result = CUDA_SUCCESS;
    for (int device = 0; device < GPUSHARE_MAX_GPUS && result == CUDA_SUCCESS; device++)
        result = admit_on(handle, device);
    return result;
}

void gs_graph_memory_trim(void)
{
    if (!in_use() || !gs_capture_forbid())
        return;
    for (int device = 0; device < GPUSHARE_MAX_GPUS; device++) {
        gs_mutex_lock(&graphs.lock);
        bool allocates = graphs.allocates[device];
        gs_mutex_unlock(&graphs.lock);
        if (allocates)
            GS_REAL(cuDeviceGraphMemTrim)(device);
    }
    gs_capture_allow();
    settle(true);
}

void gs_graph_memory_after_fork(void)
{
    gs_mutex_after_fork(&graphs.lock);
}

/* --- Hooks --- */

static CUresult launch(CUgraphExec exec, CUstream stream, enum gs_stream_kind kind, uintptr_t work,
                       CUresult (*real)(CUgraphExec, CUstream))
{
    bool counts = in_use() && !gs_capture_includes(stream, kind);
    CUresult result = counts ? admit(exec) : CUDA_SUCCESS;
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        return result;
    struct gs_slot *entered;
    result = gs_gate_enter(&entered, stream, kind, work);
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        return result;
    result = real(exec, stream);
    gs_gate_leave(entered);
    if (__builtin_expect(counts, 0))
        settle(false);
    return result;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, GS_STREAM_LEGACY, GS_WORK_GRAPH(exec), GS_REAL(cuGraphLaunch));
}

CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, GS_STREAM_PTSZ, GS_WORK_GRAPH(exec), GS_REAL(cuGraphLaunch_ptsz));
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, GS_STREAM_LEGACY, GS_WORK_ORDER, GS_REAL(cuGraphUpload));
}

CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, GS_STREAM_PTSZ, GS_WORK_ORDER, GS_REAL(cuGraphUpload_ptsz));
}

/* Instantiation allocates and uploads, so it happens inside the gate. */
#define INSTANTIATE(call)                                                                                              \
    do {                                                                                                               \
        struct gs_slot *entered;                                                                                       \
        CUresult result = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);                                 \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        result = instantiated(call, exec, graph);                                                                      \
        gs_gate_leave(entered);                                                                                        \
        return result;                                                                                                 \
    } while (0)

CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    INSTANTIATE(GS_REAL(cuGraphInstantiate)(exec, graph, error, log, size));
}

CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    INSTANTIATE(GS_REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size));
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    INSTANTIATE(GS_REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    INSTANTIATE(GS_REAL(cuGraphInstantiateWithParams)(exec, graph, params));
}

CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    INSTANTIATE(GS_REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params));
}

/* As soon as the driver has the handle back, it may belong to another graph. */
CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle)
{
    struct exec *exec = in_use() ? take(handle) : NULL;
    CUresult result = GS_REAL(cuGraphExecDestroy)(handle);
    if (exec != NULL && result != CUDA_SUCCESS)
        put(exec);
    else
        free(exec);
    return result;
}

CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = GS_REAL(cuDeviceGraphMemTrim)(device);
    if (result == CUDA_SUCCESS && in_use())
        settle(true);
    return result;
}

CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    gs_graph_memory_used();
    return GS_REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, params);
}

static void look_at(const CUgraphNodeParams *params)
{
    if (params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        gs_graph_memory_used();
}

/* The driver looks up the addresses of a node. */
#define ADD_NODE(call)                                                                                                 \
    struct gs_slot *entered;                                                                                           \
    CUresult result = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);                                     \
    if (result != CUDA_SUCCESS)                                                                                        \
        return result;                                                                                                 \
    look_at(params);                                                                                                   \
    result = call;                                                                                                     \
    gs_gate_leave(entered);                                                                                            \
    return result

CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUgraphNodeParams *params)
{
    ADD_NODE(GS_REAL(cuGraphAddNode)(node, graph, dependencies, count, params));
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
    ADD_NODE(GS_REAL(cuGraphAddNode_v2)(node, graph, dependencies, data, count, params));
}

CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
    ADD_NODE(GS_REAL(cuGraphAddNode_v3)(node, graph, dependencies, data, count, params));
}

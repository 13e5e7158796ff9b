/* SPDX-License-Identifier: BSD-3-Clause */
#include "operations.h"

#include "../protocol.h"
#include "driver.h"
#include "injection.h"
#include "model.h"
#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

unsigned concurrent;

/* alloc SLOT KIND SIZE STREAM [WIDTH]: 0 cuMemAlloc, 1 cuMemAllocPitch, 2 cuMemAllocAsync */
static void op_alloc(struct thread *thread, const struct operation *operation)
{
    struct block *block = &thread->blocks[operation->n[0] % SLOTS];
    if (block->at != 0 || thread->capturing != NULL)
        return;
    int stream = (int)(operation->n[3] % STREAMS);
    size_t size = operation->n[2], pitch = 0, width = operation->n[4] % 4096 + 1;
    CUdeviceptr at = 0;
    CUresult result;
    if (operation->n[1] == 1) {
        size_t rows = size / width + 1;
        result = driver_cuMemAllocPitch(&at, &pitch, width, rows, 4);
        size = pitch * rows;
    } else if (operation->n[1] == 2) {
        result = driver_cuMemAllocAsync(&at, size, thread->streams[stream]);
    } else {
        result = driver_cuMemAlloc(&at, size);
    }
    if (!took_effect(thread, result))
        return;
    block->model = malloc(size);
    if (block->model == NULL)
        give_up("fuzz: out of host memory for the model");
    block->at = at;
    block->size = size;
    block->pitch = pitch;
    block->last = operation->n[1] == 2 ? stream : -1;
}

/* free SLOT KIND STREAM: 0 cuMemFree, 2 cuMemFreeAsync */
static void op_free(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    if (block == NULL || thread->capturing != NULL)
        return;
    int stream = (int)(operation->n[2] % STREAMS);
    CUresult result;
    if (operation->n[1] == 2) {
        order(thread, block, stream);
        result = driver_cuMemFreeAsync(block->at, thread->streams[stream]);
    } else {
        result = driver_cuMemFree(block->at);
    }
    if (took_effect(thread, result))
        forget(block);
}

static void op_work(struct thread *thread, const struct operation *given, const struct kind *kind)
{
    struct operation operation = *given;
    operation.n[kind->stream] %= STREAMS;
    struct graph *graph = thread->capturing;
    if (graph != NULL) {
        if (graph->count == GRAPH_STEPS)
            return;
        operation.n[kind->stream] = NON_BLOCKING;
        if (kind->async >= 0)
            operation.n[kind->async] = 1;
    } else if (kind->async >= 0 && operation.n[kind->async] == 0) {
        operation.n[kind->stream] = LEGACY;
    }
    CUresult result = kind->drive(thread, &operation);
    if (result == CUDA_ERROR_NOT_FOUND || !took_effect(thread, result))
        return;
    if (graph == NULL) {
        kind->model(thread, &operation);
        return;
    }
    struct step *step = &graph->steps[graph->count++];
    step->operation = operation;
    for (unsigned i = 0; i < kind->blocks; i++)
        step->generations[i] = block_at(thread, operation.n[i])->generation;
}

/* read SLOT STREAM ASYNC OFFSET LENGTH: device to host */
static void op_read(struct thread *thread, const struct operation *operation)
{
    bool async = operation->n[2] != 0;
    int stream = async ? (int)(operation->n[1] % STREAMS) : LEGACY;
    struct block *block = thread->capturing == NULL ? use(thread, operation->n[0], stream) : NULL;
    unsigned long long offset = operation->n[3], length = operation->n[4];
    if (block == NULL || !clip(block, &offset, &length))
        return;
    unsigned char *found = malloc(length), *expected = malloc(length);
    if (found == NULL || expected == NULL)
        give_up("fuzz: out of host memory for a read");
    memset(found, 0xee, length);
    memcpy(expected, block->model + offset, length);
    CUresult result = async ? driver_cuMemcpyDtoHAsync(found, block->at + offset, length, thread->streams[stream])
                            : driver_cuMemcpyDtoH(found, block->at + offset, length);
    if (took_effect(thread, result) && async) {
        thread->reads[thread->read_count++] = (struct read){found, expected, length, operation->line};
        if (thread->read_count == READS)
            compare_reads(thread);
        return;
    }
    if (result == CUDA_SUCCESS)
        compare(thread, found, expected, length, operation->line);
    free(found);
    free(expected);
}

/* read2d SLOT WIDTH HEIGHT */
static void op_read2d(struct thread *thread, const struct operation *operation)
{
    struct block *block = thread->capturing == NULL ? use(thread, operation->n[0], LEGACY) : NULL;
    if (block == NULL || block->pitch == 0)
        return;
    size_t width = operation->n[1] % block->pitch + 1, height = operation->n[2] % (block->size / block->pitch) + 1;
    unsigned char *found = malloc(width * height);
    if (found == NULL)
        give_up("fuzz: out of host memory for a read");
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = block->at,
                          .srcPitch = block->pitch,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = found,
                          .dstPitch = width,
                          .WidthInBytes = width,
                          .Height = height};
    if (took_effect(thread, driver_cuMemcpy2D(&copy)))
        for (size_t row = 0; row < height; row++)
            compare(thread, found + row * width, block->model + row * block->pitch, width, operation->line);
    free(found);
}

/* capture GRAPH: records the next operations, until "replay" or the end */
static void op_capture(struct thread *thread, const struct operation *operation)
{
    if (thread->capturing != NULL)
        return;
    struct graph *graph = &thread->graphs[operation->n[0] % GRAPHS];
    for (unsigned i = 0; i < SLOTS; i++)
        if (thread->blocks[i].at != 0 && use(thread, i, NON_BLOCKING) == NULL)
            return;
    if (graph->executable != NULL)
        driver_cuGraphExecDestroy(graph->executable);
    graph->executable = NULL;
    graph->count = 0;
    if (took_effect(thread,
                    driver_cuStreamBeginCapture(thread->streams[NON_BLOCKING], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)))
        thread->capturing = graph;
}

static void end_capture(struct thread *thread)
{
    CUgraph captured = NULL;
    struct graph *graph = thread->capturing;
    if (graph == NULL)
        return;
    thread->capturing = NULL;
    if (took_effect(thread, driver_cuStreamEndCapture(thread->streams[NON_BLOCKING], &captured)) &&
        !took_effect(thread, driver_cuGraphInstantiateWithFlags(&graph->executable, captured, 0)))
        graph->executable = NULL;
    if (captured != NULL)
        driver_cuGraphDestroy(captured);
}

/* replay GRAPH STREAM */
static void op_replay(struct thread *thread, const struct operation *operation)
{
    end_capture(thread);
    struct graph *graph = &thread->graphs[operation->n[0] % GRAPHS];
    int stream = (int)(operation->n[1] % STREAMS);
    bool valid = graph->executable != NULL;
    for (unsigned i = 0; valid && i < graph->count; i++) {
        const struct step *step = &graph->steps[i];
        for (unsigned b = 0; b < kind_of(&step->operation)->blocks; b++) {
            struct block *block = block_at(thread, step->operation.n[b]);
            valid = valid && block != NULL && block->generation == step->generations[b];
        }
    }
    if (!valid)
        return;
    for (unsigned i = 0; i < graph->count; i++)
        for (unsigned b = 0; b < kind_of(&graph->steps[i].operation)->blocks; b++)
            order(thread, block_at(thread, graph->steps[i].operation.n[b]), stream);
    if (!took_effect(thread, driver_cuGraphLaunch(graph->executable, thread->streams[stream])))
        return;
    for (unsigned i = 0; i < graph->count; i++)
        kind_of(&graph->steps[i].operation)->model(thread, &graph->steps[i].operation);
}

/* query SLOT OFFSET: checks what the driver reports about an address, wherever its memory is */
static void op_query(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    if (block == NULL)
        return;
    CUdeviceptr base = 0, inside = block->at + operation->n[1] % block->size;
    size_t size = 0, available = 0, total = 0;
    CUmemorytype type = 0;
    if (took_effect(thread, driver_cuMemGetAddressRange(&base, &size, inside)) &&
        (base != block->at || size < block->size))
        wrong(thread, "cuMemGetAddressRange returned a wrong range");
    if (took_effect(thread, driver_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside)) &&
        type != CU_MEMORYTYPE_DEVICE)
        wrong(thread, "cuPointerGetAttribute returned the memory type %d", (int)type);
    if (took_effect(thread, driver_cuMemGetInfo(&available, &total)) && available > total)
        wrong(thread, "cuMemGetInfo returned more free memory than total memory");
}

/* sync STREAM */
static void op_sync(struct thread *thread, const struct operation *operation)
{
    if (thread->capturing != NULL)
        return;
    if (operation->n[0] >= STREAMS)
        compare_reads(thread);
    else
        took_effect(thread, driver_cuStreamSynchronize(thread->streams[operation->n[0]]));
}

/* cell PHASE */
static void op_cell(struct thread *thread, const struct operation *operation)
{
    (void)thread;
    void (*phase)(const char *) = operation->n[0] != 0 ? cell_begin : cell_end;
    if (phase != NULL)
        phase("fuzz");
}

static void ask(const char *name)
{
    char request[192], reply[512];
    if (control == NULL)
        return;
    snprintf(request, sizeof(request), "{\"op\":\"%s\",\"protocol\":%d,\"group\":\"%s\"}", name,
             GPUSHARE_CONTROL_VERSION, group());
    control(request, reply, sizeof(reply));
}

/* ask OP: 0 release, 1 evict (all), 2 cancel (like an interrupt) */
static void op_ask(struct thread *thread, const struct operation *operation)
{
    static const char *const names[] = {"release", "evict", "cancel"};
    (void)thread;
    ask(names[operation->n[0] % 3]);
}

static uint64_t hashed_so_far(void)
{
    uint64_t figures[COUNTERS] = {0};
    if (counters != NULL)
        counters(figures, sizeof(figures));
    return figures[COUNTER_HASHED];
}

/*
 * evict MILLISECONDS: evicts everything, and waits until something is hashed. Then the gate is shut, so that the next
 * operations come after the eviction. Nothing may be hashed: the wait ends after that time at the latest.
 */
static void op_evict(struct thread *thread, const struct operation *operation)
{
    uint64_t before = hashed_so_far();
    ask("evict");
    for (unsigned long long waited = 0; waited < operation->n[0] * 5; waited++) {
        if (hashed_so_far() != before) {
            thread->hashed++;
            return;
        }
        usleep(200);
    }
}

/* pause MICROSECONDS */
static void op_pause(struct thread *thread, const struct operation *operation)
{
    (void)thread;
    usleep((useconds_t)operation->n[0]);
}

/* fork: in the child, the interposer must be inactive */
static void op_fork(struct thread *thread, const struct operation *operation)
{
    (void)operation;
    if (attached == NULL || thread->capturing != NULL)
        return;
    pid_t child = fork();
    if (child == 0)
        _exit(attached(NULL) < 0 ? 0 : 1);
    int status = -1;
    if (child > 0 && waitpid(child, &status, 0) == child && status != 0)
        wrong(thread, "a forked child ended with status %d", status);
}

void make_streams(struct thread *thread)
{
    CUresult result = driver_cuStreamCreate(&thread->streams[NON_BLOCKING], CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver_cuStreamCreate(&thread->streams[BLOCKING], CU_STREAM_DEFAULT);
    if (result == CUDA_SUCCESS)
        result = driver_cuEventCreate(&thread->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        give_up("fuzz: cannot create streams: CUDA error %d", (int)result);
    thread->streams[LEGACY] = NULL;
    thread->streams[PER_THREAD] = CU_STREAM_PER_THREAD;
}

/* reset: everything in the context is destroyed */
static void op_reset(struct thread *thread, const struct operation *operation)
{
    (void)operation;
    if (concurrent > 1 || thread->capturing != NULL)
        return;
    compare_reads(thread);
    for (unsigned i = 0; i < GRAPHS; i++) {
        if (thread->graphs[i].executable != NULL)
            driver_cuGraphExecDestroy(thread->graphs[i].executable);
        thread->graphs[i] = (struct graph){0};
    }
    if (!took_effect(thread, driver_cuDevicePrimaryCtxReset(0)))
        return;
    for (unsigned i = 0; i < SLOTS; i++)
        if (thread->blocks[i].at != 0)
            forget(&thread->blocks[i]);
    CUresult result = CUDA_ERROR_NOT_INITIALIZED;
    for (unsigned tries = 0; tries < 1000 && result != CUDA_SUCCESS; tries++)
        result = driver_cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = driver_cuCtxSetCurrent(context);
    if (result != CUDA_SUCCESS)
        give_up("fuzz: cannot create a context after a reset: CUDA error %d", (int)result);
    load_module();
    make_streams(thread);
}

static const struct {
    const char *name;
    void (*run)(struct thread *, const struct operation *);
} others[] = {{"alloc", op_alloc},     {"free", op_free},     {"read", op_read},   {"read2d", op_read2d},
              {"capture", op_capture}, {"replay", op_replay}, {"query", op_query}, {"sync", op_sync},
              {"cell", op_cell},       {"ask", op_ask},       {"pause", op_pause}, {"fork", op_fork},
              {"reset", op_reset},     {"inject", op_inject}, {"evict", op_evict}};

void run_operation(struct thread *thread, const struct operation *operation)
{
    const struct kind *kind = kind_of(operation);
    thread->current = operation;
    thread->done++;
    if (kind != NULL) {
        op_work(thread, operation, kind);
        return;
    }
    for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(operation->name, others[i].name) == 0) {
            others[i].run(thread, operation);
            return;
        }
    give_up("fuzz: line %u is not an operation: %s", operation->line, operation->name);
}

/* Compares every byte, and frees everything. */
void finish(struct thread *thread)
{
    end_capture(thread);
    compare_reads(thread);
    for (unsigned i = 0; i < SLOTS; i++) {
        struct block *block = &thread->blocks[i];
        if (block->at == 0)
            continue;
        for (unsigned tries = 0; block->defined && tries < 1000; tries++) {
            struct operation whole = {.line = ~0u, .name = "read", .n = {i, LEGACY, 0, 0, block->size}};
            uint64_t before = thread->compared;
            op_read(thread, &whole);
            if (thread->compared != before || thread->problem_line != 0)
                break;
        }
        for (unsigned tries = 0; tries < 1000 && driver_cuMemFree(block->at) != CUDA_SUCCESS; tries++)
            usleep(1000);
        forget(block);
    }
    for (unsigned i = 0; i < GRAPHS; i++)
        if (thread->graphs[i].executable != NULL)
            driver_cuGraphExecDestroy(thread->graphs[i].executable);
    driver_cuEventDestroy(thread->event);
    driver_cuStreamDestroy(thread->streams[NON_BLOCKING]);
    driver_cuStreamDestroy(thread->streams[BLOCKING]);
}

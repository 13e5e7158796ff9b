/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runs the fuzzer's programs against the driver and, beside it, against a plain model: a host copy of every block that
 * the same operations change. Whenever bytes come back from the device they are compared with the model.
 *
 * Programs come on standard input, one operation a line, and end with "end"; what was found is answered in one line:
 *
 *     ok OPERATIONS REFUSED BYTES COMPARED INJECTED
 *     failed LINE what was wrong
 *
 * An operation is "THREAD NAME NUMBER...": its thread, 0 to 3, and what its function below says. All threads start
 * together; each has blocks, streams and graphs of its own, so that the model needs no lock and the order of the
 * operations on a block is that of the lines. Operations on a block from several streams are ordered by events. An
 * operation on a block that does not exist does nothing, so a program from which lines were taken is a program too.
 *
 * An operation that the driver refuses is to have changed nothing. Which refusals are right: OUT_OF_MEMORY always,
 * a cancelled wait always, others while failures are injected.
 *
 * It is a library, loaded into a Python process, because a library can be built for old systems where a program cannot.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "mix.h"

#include <cuda.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CALLS(CALL)                                                                                                    \
    CALL(cuInit)                                                                                                       \
    CALL(cuDevicePrimaryCtxRetain)                                                                                     \
    CALL(cuDevicePrimaryCtxReset)                                                                                      \
    CALL(cuCtxSetCurrent)                                                                                              \
    CALL(cuModuleLoad)                                                                                                 \
    CALL(cuModuleGetFunction)                                                                                          \
    CALL(cuMemAlloc)                                                                                                   \
    CALL(cuMemAllocPitch)                                                                                              \
    CALL(cuMemAllocAsync)                                                                                              \
    CALL(cuMemFree)                                                                                                    \
    CALL(cuMemFreeAsync)                                                                                               \
    CALL(cuMemsetD8)                                                                                                   \
    CALL(cuMemsetD16)                                                                                                  \
    CALL(cuMemsetD32)                                                                                                  \
    CALL(cuMemsetD2D8)                                                                                                 \
    CALL(cuMemsetD8Async)                                                                                              \
    CALL(cuMemsetD16Async)                                                                                             \
    CALL(cuMemsetD32Async)                                                                                             \
    CALL(cuMemsetD2D8Async)                                                                                            \
    CALL(cuMemcpyHtoD)                                                                                                 \
    CALL(cuMemcpyDtoH)                                                                                                 \
    CALL(cuMemcpyDtoD)                                                                                                 \
    CALL(cuMemcpyHtoDAsync)                                                                                            \
    CALL(cuMemcpyDtoHAsync)                                                                                            \
    CALL(cuMemcpyDtoDAsync)                                                                                            \
    CALL(cuMemcpy2D)                                                                                                   \
    CALL(cuLaunchKernel)                                                                                               \
    CALL(cuStreamCreate)                                                                                               \
    CALL(cuStreamDestroy)                                                                                              \
    CALL(cuStreamSynchronize)                                                                                          \
    CALL(cuStreamWaitEvent)                                                                                            \
    CALL(cuStreamBeginCapture)                                                                                         \
    CALL(cuStreamEndCapture)                                                                                           \
    CALL(cuGraphInstantiateWithFlags)                                                                                  \
    CALL(cuGraphLaunch)                                                                                                \
    CALL(cuGraphExecDestroy)                                                                                           \
    CALL(cuGraphDestroy)                                                                                               \
    CALL(cuEventCreate)                                                                                                \
    CALL(cuEventRecord)                                                                                                \
    CALL(cuEventDestroy)                                                                                               \
    CALL(cuPointerGetAttribute)                                                                                        \
    CALL(cuMemGetAddressRange)                                                                                         \
    CALL(cuMemGetInfo)

#define TEXT_OF(symbol) #symbol
#define DECLARE(call) static __typeof__(&call) driver_##call;
CALLS(DECLARE)

enum { THREADS = 4, SLOTS = 12, STREAMS = 4, GRAPHS = 2, GRAPH_STEPS = 16, READS = 16, PATTERN = 4 << 20 };
enum { LEGACY, NON_BLOCKING, BLOCKING, PER_THREAD };

struct operation {
    unsigned line;
    unsigned thread;
    char name[12];
    unsigned long long n[7];
    char text[160]; /* of `inject` */
};

struct block {
    CUdeviceptr at;
    size_t size, pitch;
    unsigned char *model;
    bool defined; /* the model knows the bytes: fresh memory holds anything */
    unsigned generation;
    int last; /* stream whose work the block's next user has to wait for */
};

/* A read whose bytes are compared once its stream has been waited for. */
struct read {
    unsigned char *found, *expected;
    size_t size;
    unsigned line;
};

/* What a graph does to the model. */
struct step {
    struct operation operation;
    unsigned generations[2];
};

struct graph {
    CUgraphExec executable;
    struct step steps[GRAPH_STEPS];
    unsigned count;
};

struct thread {
    pthread_t self;
    unsigned number;
    struct operation *operations; /* the whole program's */
    unsigned count;
    struct block blocks[SLOTS];
    CUstream streams[STREAMS];
    CUevent event;
    struct graph graphs[GRAPHS];
    struct graph *capturing;
    struct read reads[READS];
    unsigned read_count;
    const struct operation *current;
    uint64_t done, refused, bytes, compared;
    char problem[256];
    unsigned problem_line;
};

static CUcontext context;
static CUmodule module;
static CUfunction kernel;
static const char *module_path;
static unsigned char *pattern;
static unsigned concurrent;
static unsigned arrived;
static int (*inject)(const char *);
static void (*counters)(uint64_t *, size_t);
static void (*cell_begin)(const char *), (*cell_end)(const char *);
static int (*attached)(const char **);
static const char *(*group)(void);
static int64_t (*control)(const char *, char *, size_t);

/* Failures are injected until then, and refusals are right until a little later: calls under way have seen them. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t until, tolerated_until;
} injection = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

__attribute__((format(printf, 2, 3))) static void wrong(struct thread *thread, const char *format, ...)
{
    if (thread->problem_line != 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(thread->problem, sizeof(thread->problem), format, arguments);
    va_end(arguments);
    thread->problem_line = thread->current != NULL ? thread->current->line : ~0u;
}

/* --- Injected failures --- */

static void *end_injections(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&injection.lock);
    for (;;) {
        if (injection.until == 0) {
            pthread_cond_wait(&injection.changed, &injection.lock);
        } else if (now() >= injection.until) {
            inject("");
            injection.until = 0;
        } else {
            struct timespec until = {.tv_sec = (time_t)(injection.until / 1000000000u),
                                     .tv_nsec = (long)(injection.until % 1000000000u)};
            pthread_cond_timedwait(&injection.changed, &injection.lock, &until);
        }
    }
    return NULL;
}

static bool injected_lately(void)
{
    pthread_mutex_lock(&injection.lock);
    bool lately = now() < injection.tolerated_until || injection.until != 0;
    pthread_mutex_unlock(&injection.lock);
    return lately;
}

/* inject MILLISECONDS RULES */
static void op_inject(struct thread *thread, const struct operation *operation)
{
    if (inject == NULL)
        return;
    pthread_mutex_lock(&injection.lock);
    if (inject(operation->text) != 0)
        wrong(thread, "the rule was refused: %s", operation->text);
    injection.until = now() + operation->n[0] * 1000000u;
    injection.tolerated_until = injection.until + 30 * UINT64_C(1000000000);
    pthread_cond_signal(&injection.changed);
    pthread_mutex_unlock(&injection.lock);
}

/* --- The model --- */

/* True if the operation took effect. */
static bool took_effect(struct thread *thread, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY && result != CUDA_ERROR_OPERATING_SYSTEM && !injected_lately())
        wrong(thread, "%s: CUDA error %d", thread->current != NULL ? thread->current->name : "the end", (int)result);
    thread->refused++;
    return false;
}

static void compare(struct thread *thread, const unsigned char *found, const unsigned char *expected, size_t size,
                    unsigned line)
{
    thread->compared += size;
    if (memcmp(found, expected, size) == 0)
        return;
    size_t first = 0, different = 0;
    for (size_t i = size; i-- > 0;)
        if (found[i] != expected[i]) {
            first = i;
            different++;
        }
    wrong(thread, "bytes read by line %u: %zu of %zu differ, first at %zu: %02x instead of %02x", line, different, size,
          first, found[first], expected[first]);
}

/* Not for the context: that would end another thread's capture. */
static bool wait_for_all(struct thread *thread)
{
    bool complete = true;
    for (unsigned i = 0; i < STREAMS; i++) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        /* A wait that was refused says nothing of the work: again. */
        for (unsigned tries = 0; result != CUDA_SUCCESS && tries < 1000; tries++)
            result = driver_cuStreamSynchronize(thread->streams[i]);
        complete = complete && result == CUDA_SUCCESS;
    }
    return complete;
}

static void compare_reads(struct thread *thread)
{
    bool complete = thread->read_count == 0 || wait_for_all(thread);
    if (!complete)
        wrong(thread, "waiting for the streams does not succeed");
    for (unsigned i = 0; i < thread->read_count; i++) {
        struct read *read = &thread->reads[i];
        if (complete)
            compare(thread, read->found, read->expected, read->size, read->line);
        free(read->found);
        free(read->expected);
    }
    thread->read_count = 0;
}

static struct block *block_at(struct thread *thread, unsigned long long slot)
{
    struct block *block = &thread->blocks[slot % SLOTS];
    return block->at != 0 ? block : NULL;
}

/* What `stream` does next happens after all that was done to the block. */
static void order(struct thread *thread, struct block *block, int stream)
{
    if (block->last != stream && block->last >= 0) {
        CUresult result = driver_cuEventRecord(thread->event, thread->streams[block->last]);
        if (result == CUDA_SUCCESS)
            result = driver_cuStreamWaitEvent(thread->streams[stream], thread->event, 0);
        /* A cancelled wait: the GPU is waited for instead. */
        if (result != CUDA_SUCCESS && !wait_for_all(thread))
            wrong(thread, "work cannot be ordered: CUDA error %d", (int)result);
    }
    block->last = stream;
}

/* Gives fresh memory known bytes before it is used in part. */
static bool define(struct thread *thread, struct block *block, int stream)
{
    if (block->defined)
        return true;
    if (thread->capturing != NULL ||
        !took_effect(thread, driver_cuMemsetD8Async(block->at, 0x5a, block->size, thread->streams[stream])))
        return false;
    memset(block->model, 0x5a, block->size);
    block->defined = true;
    return true;
}

static struct block *use(struct thread *thread, unsigned long long slot, int stream)
{
    struct block *block = block_at(thread, slot);
    if (block == NULL)
        return NULL;
    if (thread->capturing == NULL)
        order(thread, block, stream);
    return define(thread, block, stream) ? block : NULL;
}

static void forget(struct block *block)
{
    free(block->model);
    *block = (struct block){.generation = block->generation + 1, .last = -1};
}

/* Keeps offset and length inside of the block. False if nothing is left. */
static bool clip(const struct block *block, unsigned long long *offset, unsigned long long *length)
{
    *offset %= block->size;
    if (*length > block->size - *offset)
        *length = block->size - *offset;
    return *length != 0;
}

/* --- Operations --- */

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
        give_up("fuzz: the host has no memory for the model");
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

static void model_set(unsigned char *at, unsigned long long value, unsigned width, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memcpy(at + i * width, &value, width);
}

/* Steps that a graph may hold: the driver's call, then the model's change, which a launch of the graph repeats. */

/* set SLOT STREAM ASYNC WIDTH OFFSET LENGTH VALUE */
static CUresult drive_set(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    if (block == NULL)
        return CUDA_ERROR_NOT_FOUND;
    unsigned long long offset = operation->n[4], length = operation->n[5], value = operation->n[6];
    unsigned width = (unsigned)operation->n[3];
    if (!clip(block, &offset, &length))
        return CUDA_ERROR_NOT_FOUND;
    offset -= offset % width;
    CUdeviceptr at = block->at + offset;
    size_t count = length / width;
    CUstream stream = thread->streams[operation->n[1]];
    if (count == 0)
        return CUDA_ERROR_NOT_FOUND;
    if (operation->n[2] != 0)
        return width == 1   ? driver_cuMemsetD8Async(at, (unsigned char)value, count, stream)
               : width == 2 ? driver_cuMemsetD16Async(at, (unsigned short)value, count, stream)
                            : driver_cuMemsetD32Async(at, (unsigned)value, count, stream);
    return width == 1   ? driver_cuMemsetD8(at, (unsigned char)value, count)
           : width == 2 ? driver_cuMemsetD16(at, (unsigned short)value, count)
                        : driver_cuMemsetD32(at, (unsigned)value, count);
}

static void model_set_step(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    unsigned long long offset = operation->n[4], length = operation->n[5];
    unsigned width = (unsigned)operation->n[3];
    clip(block, &offset, &length);
    offset -= offset % width;
    model_set(block->model + offset, operation->n[6], width, length / width);
    thread->bytes += length;
}

/* set2d SLOT STREAM ASYNC WIDTH HEIGHT VALUE */
static CUresult drive_set2d(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    if (block == NULL || block->pitch == 0)
        return CUDA_ERROR_NOT_FOUND;
    size_t width = operation->n[3] % block->pitch + 1, height = operation->n[4] % (block->size / block->pitch) + 1;
    unsigned char value = (unsigned char)operation->n[5];
    return operation->n[2] != 0 ? driver_cuMemsetD2D8Async(block->at, block->pitch, value, width, height,
                                                           thread->streams[operation->n[1]])
                                : driver_cuMemsetD2D8(block->at, block->pitch, value, width, height);
}

static void model_set2d(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    size_t width = operation->n[3] % block->pitch + 1, height = operation->n[4] % (block->size / block->pitch) + 1;
    for (size_t row = 0; row < height; row++)
        memset(block->model + row * block->pitch, (unsigned char)operation->n[5], width);
    thread->bytes += width * height;
}

static size_t pattern_offset(unsigned long long number, unsigned long long *length)
{
    size_t offset = number % (PATTERN / 2);
    if (*length > PATTERN - offset)
        *length = PATTERN - offset;
    return offset;
}

/* write SLOT STREAM ASYNC OFFSET LENGTH SOURCE: host to device */
static CUresult drive_write(struct thread *thread, const struct operation *operation)
{
    struct block *block = use(thread, operation->n[0], (int)operation->n[1]);
    unsigned long long offset = operation->n[3], length = operation->n[4];
    if (block == NULL || !clip(block, &offset, &length))
        return CUDA_ERROR_NOT_FOUND;
    const unsigned char *source = pattern + pattern_offset(operation->n[5], &length);
    return operation->n[2] != 0
               ? driver_cuMemcpyHtoDAsync(block->at + offset, source, length, thread->streams[operation->n[1]])
               : driver_cuMemcpyHtoD(block->at + offset, source, length);
}

static void model_write(struct thread *thread, const struct operation *operation)
{
    struct block *block = block_at(thread, operation->n[0]);
    unsigned long long offset = operation->n[3], length = operation->n[4];
    clip(block, &offset, &length);
    const unsigned char *source = pattern + pattern_offset(operation->n[5], &length);
    memcpy(block->model + offset, source, length);
    thread->bytes += length;
}

static bool clip_pair(const struct block *a, const struct block *b, unsigned long long *at_a, unsigned long long *at_b,
                      unsigned long long *length)
{
    return a != b && clip(a, at_a, length) && clip(b, at_b, length);
}

/* copy SLOT SLOT STREAM ASYNC OFFSET OFFSET LENGTH: the second to the first */
static CUresult drive_copy(struct thread *thread, const struct operation *operation)
{
    int stream = (int)operation->n[2];
    struct block *a = use(thread, operation->n[0], stream), *b = a != NULL ? use(thread, operation->n[1], stream) : a;
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    if (a == NULL || b == NULL || !clip_pair(a, b, &at_a, &at_b, &length))
        return CUDA_ERROR_NOT_FOUND;
    return operation->n[3] != 0 ? driver_cuMemcpyDtoDAsync(a->at + at_a, b->at + at_b, length, thread->streams[stream])
                                : driver_cuMemcpyDtoD(a->at + at_a, b->at + at_b, length);
}

static void model_copy(struct thread *thread, const struct operation *operation)
{
    struct block *a = block_at(thread, operation->n[0]), *b = block_at(thread, operation->n[1]);
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    clip_pair(a, b, &at_a, &at_b, &length);
    memcpy(a->model + at_a, b->model + at_b, length);
    thread->bytes += length;
}

/* mix SLOT SLOT STREAM KEY OFFSET OFFSET LENGTH: the kernel */
static CUresult drive_mix(struct thread *thread, const struct operation *operation)
{
    int stream = (int)operation->n[2];
    struct block *a = use(thread, operation->n[0], stream), *b = a != NULL ? use(thread, operation->n[1], stream) : a;
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    if (a == NULL || b == NULL || !clip_pair(a, b, &at_a, &at_b, &length))
        return CUDA_ERROR_NOT_FOUND;
    CUdeviceptr first = a->at + at_a, second = b->at + at_b;
    unsigned key = (unsigned)operation->n[3];
    void *arguments[] = {&first, &second, &length, &key};
    return driver_cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, thread->streams[stream], arguments, NULL);
}

static void model_mix(struct thread *thread, const struct operation *operation)
{
    struct block *a = block_at(thread, operation->n[0]), *b = block_at(thread, operation->n[1]);
    unsigned long long at_a = operation->n[4], at_b = operation->n[5], length = operation->n[6];
    clip_pair(a, b, &at_a, &at_b, &length);
    fuzz_mix(a->model + at_a, b->model + at_b, length, (unsigned)operation->n[3]);
    thread->bytes += 2 * length;
}

static const struct kind {
    const char *name;
    CUresult (*drive)(struct thread *, const struct operation *);
    void (*model)(struct thread *, const struct operation *);
    unsigned blocks, stream; /* how many blocks it names, and where its stream stands */
    int async;               /* where it says whether it is asynchronous; -1: it always is */
} kinds[] = {{"set", drive_set, model_set_step, 1, 1, 2},
             {"set2d", drive_set2d, model_set2d, 1, 1, 2},
             {"write", drive_write, model_write, 1, 1, 2},
             {"copy", drive_copy, model_copy, 2, 2, 3},
             {"mix", drive_mix, model_mix, 2, 2, -1}};

static const struct kind *kind_of(const struct operation *operation)
{
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(operation->name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
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
        give_up("fuzz: the host has no memory for a read");
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
        give_up("fuzz: the host has no memory for a read");
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

/* capture GRAPH: what comes next is recorded, until "replay" or the end */
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

/* query SLOT OFFSET: what the driver says of an address, wherever its memory is */
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
        wrong(thread, "the range of an address is wrong");
    if (took_effect(thread, driver_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside)) &&
        type != CU_MEMORYTYPE_DEVICE)
        wrong(thread, "the memory type of an address is %d", (int)type);
    if (took_effect(thread, driver_cuMemGetInfo(&available, &total)) && available > total)
        wrong(thread, "more memory is free than there is");
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

/* ask OP: 0 release, 1 offload (evict all), 2 cancel (as an interrupt does) */
static void op_ask(struct thread *thread, const struct operation *operation)
{
    static const char *const names[] = {"release", "offload", "cancel"};
    char request[192], reply[512];
    (void)thread;
    if (control == NULL)
        return;
    snprintf(request, sizeof(request), "{\"op\":\"%s\",\"protocol\":1,\"group\":\"%s\"}", names[operation->n[0] % 3],
             group());
    control(request, reply, sizeof(reply));
}

/* pause MICROSECONDS */
static void op_pause(struct thread *thread, const struct operation *operation)
{
    (void)thread;
    usleep((useconds_t)operation->n[0]);
}

/* fork: the child must find us out of the way */
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

static void load_module(void)
{
    if (driver_cuModuleLoad(&module, module_path) != CUDA_SUCCESS ||
        driver_cuModuleGetFunction(&kernel, module, "mix") != CUDA_SUCCESS)
        give_up("fuzz: the module %s cannot be loaded", module_path);
}

static void make_streams(struct thread *thread)
{
    CUresult result = driver_cuStreamCreate(&thread->streams[NON_BLOCKING], CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver_cuStreamCreate(&thread->streams[BLOCKING], CU_STREAM_DEFAULT);
    if (result == CUDA_SUCCESS)
        result = driver_cuEventCreate(&thread->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        give_up("fuzz: no streams: CUDA error %d", (int)result);
    thread->streams[LEGACY] = NULL;
    thread->streams[PER_THREAD] = CU_STREAM_PER_THREAD;
}

/* reset: all that the context held is gone */
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
        give_up("fuzz: no context after a reset: CUDA error %d", (int)result);
    load_module();
    make_streams(thread);
}

static const struct {
    const char *name;
    void (*run)(struct thread *, const struct operation *);
} others[] = {{"alloc", op_alloc},     {"free", op_free},     {"read", op_read},   {"read2d", op_read2d},
              {"capture", op_capture}, {"replay", op_replay}, {"query", op_query}, {"sync", op_sync},
              {"cell", op_cell},       {"ask", op_ask},       {"pause", op_pause}, {"fork", op_fork},
              {"reset", op_reset},     {"inject", op_inject}};

/* --- Programs --- */

static void run_operation(struct thread *thread, const struct operation *operation)
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
    give_up("fuzz: line %u names no operation: %s", operation->line, operation->name);
}

/* Every byte is compared, and everything is given back. */
static void finish(struct thread *thread)
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

static void *run_thread(void *argument)
{
    struct thread *thread = argument;
    if (driver_cuCtxSetCurrent(context) != CUDA_SUCCESS)
        give_up("fuzz: a thread has no context");
    for (unsigned i = 0; i < SLOTS; i++)
        thread->blocks[i].last = -1;
    make_streams(thread);
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < concurrent)
        usleep(20);
    for (unsigned i = 0; i < thread->count && thread->problem_line == 0; i++)
        if (thread->operations[i].thread == thread->number)
            run_operation(thread, &thread->operations[i]);
    thread->current = NULL;
    if (thread->problem_line == 0)
        finish(thread);
    return NULL;
}

/* False once a difference was found: what memory holds now means nothing any more. */
static bool run_program(struct operation *operations, unsigned count)
{
    static struct thread threads[THREADS];
    uint64_t done = 0, refused = 0, bytes = 0, compared = 0, figures[7] = {0};
    const struct thread *failed = NULL;
    bool used[THREADS] = {true};
    memset(threads, 0, sizeof(threads));
    for (unsigned i = 0; i < count; i++)
        used[operations[i].thread] = true;
    concurrent = 0;
    for (unsigned i = 0; i < THREADS; i++)
        concurrent += used[i];
    arrived = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i].number = i;
        threads[i].operations = operations;
        threads[i].count = count;
        if (used[i] && pthread_create(&threads[i].self, NULL, run_thread, &threads[i]) != 0)
            give_up("fuzz: no thread");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        if (!used[i])
            continue;
        pthread_join(threads[i].self, NULL);
        done += threads[i].done;
        refused += threads[i].refused;
        bytes += threads[i].bytes;
        compared += threads[i].compared;
        if (threads[i].problem_line != 0 && failed == NULL)
            failed = &threads[i];
    }
    if (counters != NULL)
        counters(figures, sizeof(figures));
    if (failed != NULL)
        printf("failed %d %s\n", (int)failed->problem_line, failed->problem);
    else
        printf("ok %llu %llu %llu %llu %llu\n", (unsigned long long)done, (unsigned long long)refused,
               (unsigned long long)bytes, (unsigned long long)compared, (unsigned long long)figures[6]);
    return failed == NULL;
}

static void set_up(void)
{
    void *ours = dlopen("libcuda.so.1", RTLD_NOW);
    if (ours == NULL)
        give_up("fuzz: %s", dlerror());
#define RESOLVE(call)                                                                                                  \
    driver_##call = (__typeof__(driver_##call))dlsym(ours, TEXT_OF(call));                                             \
    if (driver_##call == NULL)                                                                                         \
        give_up("fuzz: the driver has no %s", TEXT_OF(call));
    CALLS(RESOLVE)
    cell_begin = (void (*)(const char *))dlsym(ours, "gpushare_cell_begin");
    cell_end = (void (*)(const char *))dlsym(ours, "gpushare_cell_end");
    attached = (int (*)(const char **))dlsym(ours, "gpushare_attached");
    group = (const char *(*)(void))dlsym(ours, "gpushare_group");
    control = (int64_t (*)(const char *, char *, size_t))dlsym(ours, "gpushare_control");
    CUresult result = driver_cuInit(0);
    if (result == CUDA_SUCCESS)
        result = driver_cuDevicePrimaryCtxRetain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = driver_cuCtxSetCurrent(context);
    if (result != CUDA_SUCCESS)
        give_up("fuzz: no context: CUDA error %d", (int)result);
    load_module();
    const char *path = getenv("GPUSHARE_DRIVER");
    void *simulated = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
    if (simulated != NULL) {
        inject = (int (*)(const char *))dlsym(simulated, "gpushare_sim_fail");
        counters = (void (*)(uint64_t *, size_t))dlsym(simulated, "gpushare_sim_counters");
    }
    pthread_t timer;
    if (inject != NULL && pthread_create(&timer, NULL, end_injections, NULL) != 0)
        give_up("fuzz: no thread");
    pattern = malloc(PATTERN);
    if (pattern == NULL)
        give_up("fuzz: the host has no memory");
    uint64_t state = UINT64_C(88172645463325252);
    for (size_t i = 0; i < PATTERN; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pattern[i] = (unsigned char)state;
    }
}

static bool read_operation(const char *line, unsigned number, struct operation *operation)
{
    int used = 0;
    memset(operation, 0, sizeof(*operation));
    operation->line = number;
    if (sscanf(line, "%u %11s %n", &operation->thread, operation->name, &used) < 2 || operation->thread >= THREADS)
        return false;
    line += used;
    for (unsigned i = 0; i < 7 && sscanf(line, "%llu %n", &operation->n[i], &used) == 1; i++)
        line += used;
    snprintf(operation->text, sizeof(operation->text), "%s", line);
    operation->text[strcspn(operation->text, "\n")] = '\0';
    return true;
}

__attribute__((visibility("default"))) int gpushare_fuzz(const char *kernels)
{
    char line[256];
    unsigned count = 0, room = 0;
    struct operation *operations = NULL;
    module_path = kernels;
    setvbuf(stdout, NULL, _IOLBF, 0);
    set_up();
    printf("ready\n");
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (strcmp(line, "end\n") == 0) {
            if (!run_program(operations, count))
                _exit(3);
            count = 0;
            continue;
        }
        if (count == room) {
            room = room * 2 + 256;
            operations = realloc(operations, room * sizeof(*operations));
            if (operations == NULL)
                give_up("fuzz: the host has no memory for the program");
        }
        if (!read_operation(line, count + 1, &operations[count]))
            give_up("fuzz: line %u is no operation: %s", count + 1, line);
        count++;
    }
    free(operations);
    return 0;
}

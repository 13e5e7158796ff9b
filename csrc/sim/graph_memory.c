/* SPDX-License-Identifier: BSD-3-Clause */
#include "graph_memory.h"

#include "context.h"
#include "ranges.h"
#include "segment/devices.h"
#include "segment/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

struct memory {
    struct memory *next;
    uint64_t base, bytes;
    size_t size;
    const struct sim_context *context;
    unsigned device;
    CUmemPoolProps properties;
    const void *owner, *freed_in; /* graphs, only compared */
    unsigned references;          /* from operations */
    unsigned executables;
    unsigned running; /* launches and frees in progress */
    bool gone;        /* its context has ended */
    bool taken;       /* device memory was taken for it */
    bool live, planned;
};

struct use {
    struct memory *memory;
    bool alone; /* not used by a graph any more */
};

/* The memory for graphs on a device. */
struct share {
    uint64_t reserved, reserved_high, used, used_high;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the table's lock may be taken while this is held */
static struct memory *memories;
static struct share shares[SIM_MAX_DEVICES];

static struct memory *memory_of(const struct sim_op *op)
{
    return op->kind == SIM_OP_ALLOCATE || op->kind == SIM_OP_FREE ? ((const struct use *)op->payload)->memory : NULL;
}

/* Called with the lock held, like all functions that follow. */
static void shrink(unsigned device)
{
    struct share *share = &shares[device];
    if (share->reserved > share->used)
        sim_segment_refund(device, SIM_CHARGE_MEMORY, share->reserved - share->used);
    share->reserved = share->used;
}

static void untake(struct memory *memory)
{
    if (!memory->taken || memory->live || memory->running > 0)
        return;
    memory->taken = false;
    shares[memory->device].used -= memory->bytes;
}

static CUresult take(struct memory *memory)
{
    struct share *share = &shares[memory->device];
    if (memory->taken)
        return CUDA_SUCCESS;
    uint64_t spare = share->reserved - share->used;
    uint64_t missing = memory->bytes > spare ? memory->bytes - spare : 0;
    if (missing > 0 && !sim_segment_charge(memory->device, SIM_CHARGE_MEMORY, missing))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->taken = true;
    share->reserved += missing;
    share->used += memory->bytes;
    if (share->reserved > share->reserved_high)
        share->reserved_high = share->reserved;
    if (share->used > share->used_high)
        share->used_high = share->used;
    return CUDA_SUCCESS;
}

static void unreference(struct memory *memory)
{
    if (--memory->references > 0 || memory->live)
        return;
    untake(memory);
    if (!memory->gone) {
        pthread_rwlock_wrlock(&sim_ranges_lock);
        struct sim_range *range = sim_range_find(memory->base);
        if (range != NULL)
            sim_range_remove(range);
        pthread_rwlock_unlock(&sim_ranges_lock);
    }
    for (struct memory **place = &memories; *place != NULL; place = &(*place)->next) {
        if (*place == memory) {
            *place = memory->next;
            break;
        }
    }
    free(memory);
}

static struct memory *find(CUdeviceptr address)
{
    struct memory *memory = memories;
    while (memory != NULL && (memory->base != address || memory->gone))
        memory = memory->next;
    return memory;
}

static void end_use(struct memory *memory)
{
    if (memory->gone)
        return;
    memory->running--;
    if (memory->executables == 0)
        untake(memory);
}

static CUresult run_allocate(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    const struct memory *memory = memory_of(op);
    return sim_memory_back(memory->base, memory->bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult run_free(struct sim_context *context, struct sim_op *op)
{
    (void)context;
    struct use *use = (struct use *)op->payload;
    pthread_mutex_lock(&lock);
    if (!use->memory->gone)
        sim_memory_unback(use->memory->base, use->memory->bytes);
    if (use->alone)
        end_use(use->memory);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void sim_graph_memory_clear(const struct sim_op *op)
{
    const struct memory *memory = memory_of(op);
    sim_memory_unback(memory->base, memory->bytes);
}

static void dispose(struct sim_op *op)
{
    pthread_mutex_lock(&lock);
    unreference(memory_of(op));
    pthread_mutex_unlock(&lock);
}

static struct sim_op *op_new(struct memory *memory, enum sim_op_kind kind, bool alone)
{
    struct sim_op *op = sim_op_new(kind, sizeof(struct use), kind == SIM_OP_ALLOCATE ? run_allocate : run_free);
    if (op == NULL)
        return NULL;
    *(struct use *)op->payload = (struct use){memory, alone};
    op->dispose = dispose;
    memory->references++;
    return op;
}

CUresult sim_op_allocate(struct sim_op **op, struct sim_context *context, const void *graph, size_t size,
                         const CUmemPoolProps *properties, unsigned accessible)
{
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (properties->location.id < 0 || (unsigned)properties->location.id >= sim_segment_devices())
        return CUDA_ERROR_INVALID_DEVICE;
    SIM_REQUIRE(size > 0 && size <= sim_segment_unit((unsigned)properties->location.id)->memory);
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct memory){.size = size,
                              .context = context,
                              .device = (unsigned)properties->location.id,
                              .properties = *properties,
                              .owner = graph};
    pthread_mutex_lock(&lock);
    *op = op_new(memory, SIM_OP_ALLOCATE, false);
    if (*op != NULL) {
        pthread_rwlock_wrlock(&sim_ranges_lock);
        struct sim_range *range = sim_range_reserve(SIM_RANGE_GRAPH, 0, size, 4096);
        if (range != NULL) {
            range->context = context;
            range->device = memory->device;
            range->flags = accessible | 1u << memory->device;
            memory->base = range->base;
            memory->bytes = range->mapped;
        }
        pthread_rwlock_unlock(&sim_ranges_lock);
        memory->next = memories;
        memories = memory;
        memory->gone = range == NULL;
    }
    pthread_mutex_unlock(&lock);
    if (*op == NULL) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!memory->gone)
        return CUDA_SUCCESS;
    sim_op_release(*op);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_op_free(struct sim_op **op, const void *graph, CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct memory *memory = find(address);
    /* It can be freed once in the graph that allocates it, or in other graphs. */
    if (memory != NULL && (memory->freed_in == NULL || (memory->freed_in != memory->owner && graph != memory->owner))) {
        *op = op_new(memory, SIM_OP_FREE, false);
        result = *op == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        memory->freed_in = graph;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUdeviceptr sim_op_memory(const struct sim_op *op)
{
    return memory_of(op)->base;
}

void sim_op_allocation(const struct sim_op *op, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    const struct memory *memory = memory_of(op);
    *parameters =
        (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = memory->properties, .bytesize = memory->size, .dptr = memory->base};
}

bool sim_graph_memory_instantiate(struct sim_op *const *ops, size_t count)
{
    bool first = true;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (ops[i]->kind == SIM_OP_ALLOCATE && memory_of(ops[i])->executables > 0)
            first = false;
    for (size_t i = 0; i < count && first; i++)
        if (ops[i]->kind == SIM_OP_ALLOCATE)
            memory_of(ops[i])->executables++;
    pthread_mutex_unlock(&lock);
    return first;
}

void sim_graph_memory_abandon(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (ops[i]->kind == SIM_OP_ALLOCATE && --memory_of(ops[i])->executables == 0)
            untake(memory_of(ops[i]));
    pthread_mutex_unlock(&lock);
}

/* Whether the launch is valid. If so, `planned` is what is allocated after it. */
static bool plan(struct sim_op *const *ops, size_t count, bool free_first)
{
    for (size_t i = 0; i < count; i++)
        if (memory_of(ops[i]) != NULL)
            memory_of(ops[i])->planned = memory_of(ops[i])->live;
    for (size_t i = 0; i < count && free_first; i++)
        if (ops[i]->kind == SIM_OP_ALLOCATE)
            memory_of(ops[i])->planned = false;
    for (size_t i = 0; i < count; i++) {
        struct memory *memory = memory_of(ops[i]);
        if (memory == NULL)
            continue;
        bool allocates = ops[i]->kind == SIM_OP_ALLOCATE;
        if (memory->gone || memory->planned == allocates)
            return false;
        memory->planned = allocates;
    }
    return true;
}

static CUresult take_all(struct sim_op *const *ops, size_t count)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (ops[i]->kind == SIM_OP_ALLOCATE)
            result = take(memory_of(ops[i]));
    return result;
}

CUresult sim_graph_memory_upload(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    CUresult result = take_all(ops, count);
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult sim_graph_memory_launch(struct sim_op *const *ops, size_t count, bool free_first)
{
    pthread_mutex_lock(&lock);
    CUresult result = plan(ops, count, free_first) ? take_all(ops, count) : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct memory *memory = memory_of(ops[i]);
        if (memory == NULL)
            continue;
        memory->live = memory->planned;
        memory->running++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void sim_graph_memory_finish(struct sim_op *const *ops, size_t count)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (memory_of(ops[i]) != NULL)
            end_use(memory_of(ops[i]));
    pthread_mutex_unlock(&lock);
}

CUresult sim_graph_memory_free_async(struct sim_stream *stream, CUdeviceptr address)
{
    struct sim_op *op = NULL;
    pthread_mutex_lock(&lock);
    struct memory *memory = find(address);
    bool live = memory != NULL && memory->live;
    if (live)
        op = op_new(memory, SIM_OP_FREE, true);
    if (op != NULL) {
        memory->live = false;
        memory->running++;
    }
    pthread_mutex_unlock(&lock);
    SIM_REQUIRE(live);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->despite_error = true;
    return sim_stream_submit(stream, op, NULL);
}

CUresult sim_graph_memory_free(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    struct memory *memory = find(address);
    bool live = memory != NULL && memory->live;
    if (live) {
        sim_memory_unback(memory->base, memory->bytes);
        memory->live = false;
        if (memory->executables == 0)
            untake(memory);
        memory->references++;
        unreference(memory);
    }
    pthread_mutex_unlock(&lock);
    return live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_graph_memory_forget(const struct sim_context *context)
{
    pthread_mutex_lock(&lock);
    for (struct memory *memory = memories, *next; memory != NULL; memory = next) {
        next = memory->next;
        if (memory->context != context)
            continue;
        memory->gone = true;
        memory->live = false;
        memory->running = 0;
        untake(memory);
        memory->references++;
        unreference(memory);
    }
    shrink(context->device);
    pthread_mutex_unlock(&lock);
}

bool sim_graph_memory_reach(bool reach)
{
    bool done = true;
    pthread_mutex_lock(&lock);
    for (struct memory *memory = memories; memory != NULL; memory = memory->next)
        if (memory->live)
            done = mprotect((void *)(uintptr_t)memory->base, memory->bytes,
                            reach ? PROT_READ | PROT_WRITE : PROT_NONE) == 0 &&
                   done;
    pthread_mutex_unlock(&lock);
    return done;
}

static CUresult check(CUdevice device)
{
    SIM_ENTER();
    return device >= 0 && (unsigned)device < sim_segment_devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_TRY(check(device));
    pthread_mutex_lock(&lock);
    for (struct memory *memory = memories; memory != NULL; memory = memory->next)
        if (memory->device == (unsigned)device)
            untake(memory);
    shrink((unsigned)device);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    SIM_TRY(check(device));
    SIM_REQUIRE(value != NULL);
    const struct share *share = &shares[device];
    const uint64_t *const found[] = {
        [CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = &share->used,
        [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = &share->used_high,
        [CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = &share->reserved,
        [CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = &share->reserved_high,
    };
    SIM_REQUIRE((size_t)attribute < sizeof found / sizeof found[0]);
    pthread_mutex_lock(&lock);
    *(uint64_t *)value = *found[attribute];
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    SIM_TRY(check(device));
    bool used = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
    SIM_REQUIRE(value != NULL && *(uint64_t *)value == 0 && (used || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
    pthread_mutex_lock(&lock);
    struct share *share = &shares[device];
    if (used)
        share->used_high = share->used;
    else
        share->reserved_high = share->reserved;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

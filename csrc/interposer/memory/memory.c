/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/memory.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/say.h"
#include "base/session.h"
#include "client/client.h"
#include "gate/contexts.h"
#include "gate/enter.h"
#include "gate/meter.h"
#include "gate/work.h"
#include "hooks/array.h"
#include "hooks/capture.h"
#include "hooks/graph_memory.h"
#include "hooks/ipc.h"
#include "hooks/peer.h"
#include "hooks/pool.h"
#include "loader/real.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/host.h"
#include "memory/mover.h"
#include "memory/slab.h"
#include "memory/vmm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
/* Programs have a context on each device, or two. */
enum { MOST_USERS = 16 };

struct gs_allocation {
    struct gs_node node; /* by address */
    size_t size;
    uint64_t id;
    struct gs_device *device;
    CUcontext context;      /* NULL: of a pool, and the device has no context at present */
    bool of_pool;           /* it goes with the device, not with the context */
    struct gs_block *block; /* NULL: of the `plain` backend, pinned */
    struct gs_range *range; /* NULL: has the block to itself */
    struct gs_allocation *next, **link;
    bool freed;                  /* by the application: it goes once nothing uses it any more */
    CUevent passed;              /* where the stream is past the free */
    struct gs_allocation *later; /* in its queue */
};

/* What was freed in a stream, in the order of the stream: if the first of them is not due, none is. */
struct free_queue {
    CUcontext context;
    CUstream stream;  /* NULL: freed during a capture, and due when none is open */
    pthread_t thread; /* of a per-thread stream */
    struct gs_allocation *first, **last;
    struct free_queue *next;
};

static struct {
    const struct gs_backend *backend; /* NULL: plain */
    /* Read without a lock. */
    enum { OVERSUBSCRIBE_UNSAID, OVERSUBSCRIBE_NEVER, OVERSUBSCRIBE_NOW, OVERSUBSCRIBE_BEFORE } oversubscribe;
    /* Under gs_memory_lock. */
    struct gs_map allocations;
    struct free_queue *queues; /* none is empty */
    unsigned freed_count;      /* in all queues; read without the lock */
    uint64_t next_id;
    /* All work of that context was done when the gate's count was this, with nobody inside. */
    CUcontext idle_context;
    uint64_t idle_passes;
} memory;

static int attribute(CUdevice_attribute which, CUdevice ordinal)
{
    int value = 0;
    return GS_REAL(cuDeviceGetAttribute)(&value, which, ordinal) == CUDA_SUCCESS ? value : 0;
}

static bool managed_forbidden(void)
{
    const char *forbid = getenv("GPUSHARE_FORBID_MANAGED");
    return forbid != NULL && strcmp(forbid, "1") == 0;
}

/* Of all devices; NULL if they can do it. */
static const char *why_no_oversubscription(void)
{
    if (managed_forbidden())
        return "GPUSHARE_FORBID_MANAGED=1 rules managed memory out, which holding more than the GPU has needs";
    if (memory.backend == NULL)
        return "backend plain keeps all memory on the GPU; holding more than the GPU has needs backend swap or managed";
    int count = 0;
    if (GS_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return "the driver cannot say what its devices can do";
    for (int i = 0; i < count; i++)
        if (!attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, i))
            return "the device cannot migrate managed memory on demand, which holding more than the GPU has needs";
    return NULL;
}

static int oversubscription(void)
{
    return __atomic_load_n(&memory.oversubscribe, __ATOMIC_ACQUIRE);
}

bool gs_memory_oversubscribe(bool on, const char **why)
{
    *why = NULL;
    if (on && gs_session_attached())
        *why = why_no_oversubscription();
    else if (on && managed_forbidden())
        *why = why_no_oversubscription();
    if (*why != NULL)
        return false;
    int now = oversubscription();
    bool before = now == OVERSUBSCRIBE_BEFORE || (now == OVERSUBSCRIBE_NOW && gs_session_attached());
    int then = on ? OVERSUBSCRIBE_NOW : before ? OVERSUBSCRIBE_BEFORE : OVERSUBSCRIBE_NEVER;
    __atomic_store_n(&memory.oversubscribe, then, __ATOMIC_RELEASE);
    return true;
}

bool gs_memory_oversubscribes(void)
{
    return oversubscription() == OVERSUBSCRIBE_NOW;
}

bool gs_memory_oversubscribed(void)
{
    return oversubscription() == OVERSUBSCRIBE_NOW || oversubscription() == OVERSUBSCRIBE_BEFORE;
}

/* What was said before the first cuInit counts; else the environment. Sharing goes on without it all the same. */
static void begin_oversubscription(void)
{
    const char *wanted = getenv("GPUSHARE_OVERSUBSCRIBE");
    if (oversubscription() == OVERSUBSCRIBE_UNSAID && wanted != NULL && strcmp(wanted, "1") == 0)
        memory.oversubscribe = OVERSUBSCRIBE_NOW;
    else if (wanted != NULL && *wanted != '\0' && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0)
        gs_say("GPUSHARE_OVERSUBSCRIBE=%s is ignored: set it to 1 to let this process hold more than the GPU has, or 0",
               wanted);
    const char *why = gs_memory_oversubscribes() ? why_no_oversubscription() : NULL;
    if (why == NULL)
        return;
    gs_say("%s; this process can hold as much as the GPU has", why);
    memory.oversubscribe = OVERSUBSCRIBE_NEVER;
}

bool gs_memory_choose_backend(uint32_t *backend, const char **why)
{
    const char *wanted = getenv("GPUSHARE_BACKEND");
    bool may_manage = !managed_forbidden();
    bool can_swap = attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
    bool can_manage = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    *backend = GPUSHARE_BACKEND_PLAIN;
    if (wanted == NULL || *wanted == '\0' || strcmp(wanted, "auto") == 0) {
        if (can_swap)
            *backend = GPUSHARE_BACKEND_SWAP;
        else if (can_manage && may_manage)
            *backend = GPUSHARE_BACKEND_MANAGED;
    } else if (strcmp(wanted, "swap") == 0) {
        *backend = GPUSHARE_BACKEND_SWAP;
        if (!can_swap)
            *why = "the driver has no virtual memory management, which backend swap needs";
    } else if (strcmp(wanted, "managed") == 0) {
        *backend = GPUSHARE_BACKEND_MANAGED;
        if (!may_manage)
            *why = "backend managed was asked for, but GPUSHARE_FORBID_MANAGED=1 rules it out";
        else if (!can_manage)
            *why = "the device cannot migrate managed memory on demand, which backend managed needs";
    } else if (strcmp(wanted, "plain") != 0) {
        gs_say("GPUSHARE_BACKEND=%s is no backend: use auto, swap, managed or plain; running without sharing", wanted);
        *why = "GPUSHARE_BACKEND names no backend";
        return false;
    }
    if (*why != NULL) {
        gs_say("%s; running without sharing", *why);
        return false;
    }
    memory.backend = *backend == GPUSHARE_BACKEND_SWAP      ? &gs_backend_swap
                     : *backend == GPUSHARE_BACKEND_MANAGED ? &gs_backend_managed
                                                            : NULL;
    begin_oversubscription();
    return true;
}

/* --- Allocations --- */

static void insert_locked(struct gs_device *device, struct gs_allocation *allocation)
{
    allocation->id = ++memory.next_id;
    allocation->next = device->allocations;
    allocation->link = &device->allocations;
    if (device->allocations != NULL)
        device->allocations->link = &allocation->next;
    device->allocations = allocation;
    gs_map_insert(&memory.allocations, &allocation->node);
    if (allocation->block != NULL)
        allocation->block->allocations++;
}

/* The one that begins there, or NULL. */
static struct gs_allocation *find_locked(CUdeviceptr pointer)
{
    struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, pointer);
    return allocation != NULL && allocation->node.key == pointer ? allocation : NULL;
}

static void remove_locked(struct gs_allocation *allocation)
{
    gs_map_remove(&memory.allocations, allocation->node.key);
    *allocation->link = allocation->next;
    if (allocation->next != NULL)
        allocation->next->link = allocation->link;
}

static CUresult allocate_plain(struct gs_device *device, struct gs_allocation *allocation)
{
    CUresult result = gs_device_book(device, 0, allocation->size, 0);
    if (result != CUDA_SUCCESS)
        return result;
    CUdeviceptr pointer;
    result = GS_REAL(cuMemAlloc_v2)(&pointer, allocation->size);
    if (result != CUDA_SUCCESS) {
        gs_device_unbook(device, 0, allocation->size, 0);
        return result;
    }
    allocation->node.key = pointer;
    gs_mutex_lock(&gs_memory_lock);
    insert_locked(device, allocation);
    gs_mutex_unlock(&gs_memory_lock);
    return CUDA_SUCCESS;
}

/* What the allocation goes with. */
static const void *home_of(const struct gs_allocation *allocation)
{
    return allocation->of_pool ? (const void *)allocation->device : (const void *)allocation->context;
}

static bool allocate_in_slab(struct gs_device *device, struct gs_allocation *allocation)
{
    gs_mutex_lock(&gs_memory_lock);
    struct gs_range *range = gs_slab_take_locked(home_of(allocation), allocation->size);
    if (range != NULL) {
        allocation->range = range;
        allocation->block = gs_range_block(range);
        allocation->node.key = gs_range_address(range);
        insert_locked(device, allocation);
    }
    gs_mutex_unlock(&gs_memory_lock);
    return range != NULL;
}

static bool make_block(struct gs_device *device, const struct gs_backend *backend, struct gs_allocation *allocation,
                       size_t size, bool small)
{
    struct gs_block *block = gs_block_new(device, backend, allocation->context, size, device->piece_size);
    if (block == NULL)
        return false;
    block->of_pool = allocation->of_pool;
    allocation->range = small ? gs_slab_make(block, home_of(allocation), allocation->size) : NULL;
    if ((!small || allocation->range != NULL) && block->backend->reserve(block) == CUDA_SUCCESS) {
        allocation->block = block;
        allocation->node.key = block->base;
        return true;
    }
    allocation->range = NULL;
    gs_block_free(block);
    return false;
}

/* What is promised already may be more than the GPU has: then memory that has to be on the GPU may find no room. */
static bool has_room(struct gs_device *device, const struct gs_backend *backend, size_t size)
{
    gs_mutex_lock(&gs_memory_lock);
    bool room = backend->stay != NULL || device->limit == UINT64_MAX || device->footprint + size <= device->limit;
    gs_mutex_unlock(&gs_memory_lock);
    return room;
}

static const struct gs_backend *backend_of_new(void)
{
    return gs_memory_oversubscribes() ? &gs_backend_managed : memory.backend;
}

static CUresult allocate_block(struct gs_device *device, struct gs_allocation *allocation, bool small)
{
    GS_LEAVES_CAPTURES_ALONE;
    const struct gs_backend *backend = allocation->of_pool ? &gs_backend_swap : backend_of_new();
    size_t size = small ? device->slab_size : gs_round_up(allocation->size, GS_GRANULARITY);
    if (!has_room(device, backend, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = gs_device_book(device, size, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    if (!make_block(device, backend, allocation, size, small)) {
        gs_device_unbook(device, size, 0, 0);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct gs_block *block = allocation->block;
    struct gs_slot *entered;
    gs_mutex_lock(&gs_memory_lock);
    bool populate = gs_block_add_locked(device, block, &entered);
    if (small && !populate)
        gs_slab_open_locked(block->slab);
    insert_locked(device, allocation);
    gs_mutex_unlock(&gs_memory_lock);
    if (populate)
        gs_block_populate(device, block, entered);
    return CUDA_SUCCESS;
}

/* Gives back the slabs that nothing is in any more; under the lock, which is let go meanwhile. */
static void retire_surplus_locked(struct gs_device *device, const void *home)
{
    struct gs_block *block;
    while ((block = gs_slab_surplus_locked(home)) != NULL) {
        bool destroy = gs_block_retire_locked(device, block);
        gs_mutex_unlock(&gs_memory_lock);
        if (destroy)
            gs_block_destroy(device, block);
        gs_mutex_lock(&gs_memory_lock);
    }
}

/* The allocation is in no table any more, and nothing uses its memory. */
static void dispose(struct gs_allocation *allocation)
{
    struct gs_device *device = allocation->device;
    struct gs_block *block = allocation->block;
    if (block == NULL) {
        gs_device_unbook(device, 0, allocation->size, 0);
        free(allocation);
        return;
    }
    bool destroy = false;
    gs_mutex_lock(&gs_memory_lock);
    block->allocations--;
    if (allocation->range != NULL) {
        gs_slab_give_locked(allocation->range);
        retire_surplus_locked(device, home_of(allocation));
    } else if (block->allocations == 0) {
        destroy = gs_block_retire_locked(device, block);
    }
    gs_mutex_unlock(&gs_memory_lock);
    free(allocation);
    if (destroy)
        gs_block_destroy(device, block);
}

/* The same. */
static CUresult release(struct gs_allocation *allocation)
{
    CUresult result = allocation->block == NULL ? GS_REAL(cuMemFree_v2)(allocation->node.key) : CUDA_SUCCESS;
    dispose(allocation);
    return result;
}

/* --- What is freed, and still used --- */

/* Nothing uses the memory any more. The context may have taken it away. */
static CUresult free_now(CUdeviceptr pointer, uint64_t id)
{
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    if (allocation != NULL && allocation->id == id)
        remove_locked(allocation);
    else
        allocation = NULL;
    gs_mutex_unlock(&gs_memory_lock);
    return allocation != NULL ? release(allocation) : CUDA_SUCCESS;
}

static bool is_of(const struct free_queue *queue, CUcontext context, CUstream stream)
{
    return queue->stream == stream &&
           (stream == NULL || (queue->context == context &&
                               (stream != CU_STREAM_PER_THREAD || pthread_equal(queue->thread, pthread_self()))));
}

/* False: there is no memory for the queue. */
static bool queue_locked(struct gs_allocation *allocation, CUcontext context, CUstream stream)
{
    struct free_queue *queue = memory.queues;
    while (queue != NULL && !is_of(queue, context, stream))
        queue = queue->next;
    if (queue == NULL) {
        queue = malloc(sizeof(*queue));
        if (queue == NULL)
            return false;
        *queue =
            (struct free_queue){.context = context, .stream = stream, .thread = pthread_self(), .next = memory.queues};
        queue->last = &queue->first;
        memory.queues = queue;
    }
    allocation->later = NULL;
    *queue->last = allocation;
    queue->last = &allocation->later;
    __atomic_add_fetch(&memory.freed_count, 1, __ATOMIC_RELAXED);
    return true;
}

/* Takes the first out of the queue, and the queue away with its last. */
static struct gs_allocation *unqueue_first_locked(struct free_queue **link)
{
    struct free_queue *queue = *link;
    struct gs_allocation *allocation = queue->first;
    queue->first = allocation->later;
    if (queue->first == NULL) {
        *link = queue->next;
        free(queue);
    }
    __atomic_sub_fetch(&memory.freed_count, 1, __ATOMIC_RELAXED);
    return allocation;
}

static bool is_due(const struct gs_allocation *allocation, bool wait)
{
    if (allocation->passed == NULL)
        return !gs_capture_open();
    return wait || GS_REAL(cuEventQuery)(allocation->passed) != CUDA_ERROR_NOT_READY;
}

static bool free_later(CUdeviceptr pointer, uint64_t id, CUcontext context);
static CUresult free_when_done(CUdeviceptr pointer, uint64_t id, CUcontext context);

/* Frees what is due; with `wait`, also what the GPU has not got past yet. */
static void reap(bool wait)
{
    if (__atomic_load_n(&memory.freed_count, __ATOMIC_RELAXED) == 0)
        return;
    GS_LEAVES_CAPTURES_ALONE;
    while (__atomic_load_n(&memory.freed_count, __ATOMIC_RELAXED) != 0) {
        struct gs_allocation *due = NULL;
        gs_mutex_lock(&gs_memory_lock);
        for (struct free_queue **link = &memory.queues; *link != NULL && due == NULL;) {
            if (is_due((*link)->first, wait))
                due = unqueue_first_locked(link);
            else
                link = &(*link)->next;
        }
        CUdeviceptr pointer = due != NULL ? due->node.key : 0;
        uint64_t id = due != NULL ? due->id : 0;
        CUcontext context = due != NULL ? due->context : NULL;
        CUevent passed = due != NULL ? due->passed : NULL;
        gs_mutex_unlock(&gs_memory_lock);
        if (due == NULL)
            return;
        if (passed == NULL) {
            if (wait || !free_later(pointer, id, context))
                free_when_done(pointer, id, context);
            continue;
        }
        GS_REAL(cuEventSynchronize)(passed);
        GS_REAL(cuEventDestroy_v2)(passed);
        free_now(pointer, id);
    }
}

void gs_memory_reap(void)
{
    reap(false);
}

bool gs_memory_has_freed(void)
{
    return __atomic_load_n(&memory.freed_count, __ATOMIC_RELAXED) != 0;
}

struct name {
    CUdeviceptr base;
    uint64_t id;
};

static struct gs_block *find_block_locked(const void *what)
{
    const struct name *name = what;
    const struct gs_allocation *allocation = find_locked(name->base);
    return allocation != NULL && allocation->id == name->id ? allocation->block : NULL;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, bool of_pool)
{
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct gs_device *device;
    CUcontext context;
    CUresult result = gs_device_current(&device, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (size > device->total && !gs_memory_oversubscribes())
        return CUDA_ERROR_OUT_OF_MEMORY;
    reap(false);
    struct gs_allocation *allocation = calloc(1, sizeof(*allocation));
    if (allocation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->size = size;
    allocation->device = device;
    allocation->context = context;
    /* Memory of other backends is the driver's to take away with the context. */
    allocation->of_pool = of_pool && backend_of_new() == &gs_backend_swap;
    bool small = size <= device->slab_size / 8;
    for (bool again = true;; again = false) {
        if (memory.backend == NULL)
            result = allocate_plain(device, allocation);
        else if (small && allocate_in_slab(device, allocation))
            result = CUDA_SUCCESS;
        else
            result = allocate_block(device, allocation, small);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !again)
            break;
        reap(true);
    }
    if (result != CUDA_SUCCESS) {
        free(allocation);
        return result;
    }
    struct name name = {allocation->node.key, allocation->id};
    if (__builtin_expect(gs_gate_is_shut(), 0))
        gs_block_reach(device, find_block_locked, &name);
    *pointer = name.base;
    return CUDA_SUCCESS;
}

CUresult gs_memory_alloc(CUdeviceptr *pointer, size_t size)
{
    return allocate(pointer, size, false);
}

CUresult gs_memory_alloc_of_pool(CUdeviceptr *pointer, size_t size)
{
    return allocate(pointer, size, true);
}

static CUresult synchronize_context(CUcontext context)
{
    CUcontext before = NULL, ignored;
    GS_REAL(cuCtxGetCurrent)(&before);
    if (before == context)
        return GS_REAL(cuCtxSynchronize)();
    CUresult result = GS_REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = GS_REAL(cuCtxSynchronize)();
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
    return result;
}

/* Other GPUs may use the context's memory, too. */
static bool has_peers(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    return gs_peer_accessors(context, accessors) != 0;
}

static void synchronize_peers(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    CUcontext users[MOST_USERS];
    unsigned count = gs_peer_accessors(context, accessors);
    for (unsigned i = 0; i < count; i++) {
        unsigned found = gs_context_all_on(accessors[i], users, MOST_USERS);
        while (found > 0)
            if (--found < MOST_USERS)
                synchronize_context(users[found]);
    }
}

/* A new event that is recorded in the stream, which is of the current context. */
static CUresult record(CUevent *event, CUstream stream, bool per_thread)
{
    CUresult result = GS_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        return result;
    result = per_thread ? GS_REAL(cuEventRecord_ptsz)(*event, stream) : GS_REAL(cuEventRecord)(*event, stream);
    if (result != CUDA_SUCCESS)
        GS_REAL(cuEventDestroy_v2)(*event);
    return result;
}

/* A new event that is passed once the work is done that the context has now, whatever its peers do; or NULL. */
static CUevent mark_alone(CUcontext context)
{
    CUcontext ignored;
    CUevent event = NULL;
    if (!gs_real_has(GS_FN_cuCtxRecordEvent) || GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    if (GS_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        event = NULL;
    } else if (GS_REAL(cuCtxRecordEvent)(context, event) != CUDA_SUCCESS) {
        GS_REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return event;
}

/* Lets the stream wait for what the context has now. */
static bool join(CUstream stream, CUcontext context)
{
    CUevent event = mark_alone(context);
    bool joined = event != NULL && GS_REAL(cuStreamWaitEvent)(stream, event, 0) == CUDA_SUCCESS;
    if (event != NULL)
        GS_REAL(cuEventDestroy_v2)(event);
    return joined;
}

/* In a stream that waits for the context and its peers, and for nothing else. */
static CUevent mark_with_peers(CUcontext context, const CUdevice *accessors, unsigned count)
{
    CUcontext users[MOST_USERS], ignored;
    CUstream stream;
    CUevent event = NULL;
    if (GS_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return NULL;
    if (GS_REAL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
        bool joined = join(stream, context);
        for (unsigned i = 0; i < count && joined; i++) {
            unsigned found = gs_context_all_on(accessors[i], users, MOST_USERS);
            joined = found <= MOST_USERS;
            while (joined && found > 0)
                joined = join(stream, users[--found]);
        }
        if (joined && record(&event, stream, false) != CUDA_SUCCESS)
            event = NULL;
        GS_REAL(cuStreamDestroy_v2)(stream);
    }
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return event;
}

/* A new event that is passed once the work is done that may use the context's memory. NULL: only waiting would tell. */
static CUevent mark_context(CUcontext context)
{
    CUdevice accessors[GPUSHARE_MAX_GPUS];
    unsigned count = gs_peer_accessors(context, accessors);
    return count == 0 ? mark_alone(context) : mark_with_peers(context, accessors, count);
}

/* What there was to wait for is over, and nobody was inside the gate then. */
static void note_idle(CUcontext context, uint64_t passes)
{
    gs_context_synchronized(context, passes);
    gs_mutex_lock(&gs_memory_lock);
    memory.idle_context = context;
    memory.idle_passes = passes;
    gs_mutex_unlock(&gs_memory_lock);
}

/*
 * The work that may use the memory ends first, as the driver's free does it. Without a lease there is none. While a
 * context is synchronised, no capture may begin in it; the caller has forbidden captures, if it could. Where the driver
 * can mark the work, they are allowed before the wait: the work may wait for a thread that is to begin one.
 */
static void synchronize(CUcontext context, bool forbidden)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t passes = gs_gate_passes();
    bool empty = gs_gate_empty(), peers = has_peers(context);
    CUevent passed = NULL;
    CUresult result = CUDA_SUCCESS;
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT && empty && !gs_client_leased()) {
        empty = false; /* what was idle before is still all that is known */
    } else if (!forbidden || (passed = mark_context(context)) == NULL) {
        result = synchronize_context(context);
        synchronize_peers(context);
    }
    if (forbidden)
        gs_capture_allow();
    if (passed != NULL) {
        result = GS_REAL(cuEventSynchronize)(passed);
        GS_REAL(cuEventDestroy_v2)(passed);
    }
    if (!peers && result == CUDA_SUCCESS && empty)
        note_idle(context, passes);
}

void gs_memory_await_work(CUcontext context)
{
    if (gs_capture_forbid())
        synchronize(context, true);
}

/* Nothing has been submitted since all was seen done: there is nothing to wait for. */
static bool idle_locked(CUcontext context)
{
    return memory.idle_context == context && memory.idle_passes == gs_gate_passes() && !gs_capture_open();
}

static CUresult free_when_done(CUdeviceptr pointer, uint64_t id, CUcontext context)
{
    /* Synchronising would break a capture; the free waits for its end. */
    bool forbidden = gs_capture_forbid(), queued = false;
    if (!forbidden) {
        gs_mutex_lock(&gs_memory_lock);
        struct gs_allocation *allocation = find_locked(pointer);
        queued = allocation == NULL || allocation->id != id || queue_locked(allocation, NULL, NULL);
        gs_mutex_unlock(&gs_memory_lock);
    }
    if (queued)
        return CUDA_SUCCESS;
    synchronize(context, forbidden);
    return free_now(pointer, id);
}

/*
 * The program freed the memory during a capture, and makes another call now: one that the driver would not let wait for
 * work that may in turn wait for the program. False if the work's end cannot be told without waiting.
 */
static bool free_later(CUdeviceptr pointer, uint64_t id, CUcontext context)
{
    if (!gs_capture_forbid())
        return false;
    CUevent passed = mark_context(context);
    gs_capture_allow();
    if (passed == NULL)
        return false;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    bool queued = allocation != NULL && allocation->id == id && queue_locked(allocation, NULL, NULL);
    if (queued)
        allocation->passed = passed;
    gs_mutex_unlock(&gs_memory_lock);
    if (!queued)
        GS_REAL(cuEventDestroy_v2)(passed);
    return queued;
}

CUresult gs_memory_free(CUdeviceptr pointer)
{
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    if (allocation == NULL || allocation->freed) {
        gs_mutex_unlock(&gs_memory_lock);
        return allocation == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext context = allocation->context;
    uint64_t id = allocation->id;
    bool idle = idle_locked(context);
    if (idle)
        remove_locked(allocation);
    allocation->freed = true;
    gs_mutex_unlock(&gs_memory_lock);
    return idle ? release(allocation) : free_when_done(pointer, id, context);
}

/* The event is recorded in a stream of that context. */
static CUresult queue_free(CUdeviceptr pointer, CUcontext context, CUstream stream, CUevent passed)
{
    CUresult result = CUDA_SUCCESS;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    if (allocation == NULL || allocation->freed)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (!queue_locked(allocation, context, stream))
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) {
        allocation->freed = true;
        allocation->passed = passed;
    }
    gs_mutex_unlock(&gs_memory_lock);
    return result;
}

/* Whether it begins there and is not freed yet. */
static CUresult check_free(CUdeviceptr pointer)
{
    gs_mutex_lock(&gs_memory_lock);
    const struct gs_allocation *allocation = find_locked(pointer);
    CUresult result = allocation == NULL  ? CUDA_ERROR_NOT_FOUND
                      : allocation->freed ? CUDA_ERROR_INVALID_VALUE
                                          : CUDA_SUCCESS;
    gs_mutex_unlock(&gs_memory_lock);
    return result;
}

/* A new event that is recorded in the stream, in its context, which may be another than the current one. */
static CUresult record_anywhere(CUevent *event, CUcontext *context, CUstream stream, bool per_thread)
{
    CUresult result = GS_REAL(cuCtxGetCurrent)(context);
    if (result == CUDA_SUCCESS)
        result = record(event, stream, per_thread);
    CUcontext other, ignored;
    if (result != CUDA_ERROR_INVALID_HANDLE || GS_REAL(cuStreamGetCtx)(stream, &other) != CUDA_SUCCESS ||
        other == *context || GS_REAL(cuCtxPushCurrent_v2)(other) != CUDA_SUCCESS)
        return result;
    *context = other;
    result = record(event, stream, per_thread);
    GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    return result;
}

CUresult gs_memory_free_async(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    GS_LEAVES_CAPTURES_ALONE;
    CUcontext context;
    CUevent passed;
    CUresult result = check_free(pointer);
    if (result == CUDA_SUCCESS)
        result = record_anywhere(&passed, &context, stream, per_thread);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream == NULL)
        stream = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    result = queue_free(pointer, context, stream, passed);
    if (result != CUDA_SUCCESS)
        GS_REAL(cuEventDestroy_v2)(passed);
    if (result == CUDA_ERROR_NOT_FOUND)
        return gs_memory_free(pointer); /* no memory for the queue */
    reap(false);
    return result;
}

bool gs_memory_find(CUdeviceptr address, struct gs_memory_view *view)
{
    bool found = false;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, address);
    if (allocation != NULL && address - allocation->node.key < allocation->size) {
        found = true;
        *view = (struct gs_memory_view){.base = allocation->node.key,
                                        .size = allocation->size,
                                        .device = allocation->device->ordinal,
                                        .context = allocation->context,
                                        .id = allocation->id,
                                        .freed = allocation->freed,
                                        .managed = allocation->block != NULL &&
                                                   allocation->block->backend == &gs_backend_managed};
    }
    gs_mutex_unlock(&gs_memory_lock);
    return found;
}

/* --- Figures for the application --- */

CUresult gs_memory_info(size_t *available, size_t *total)
{
    struct gs_device *device;
    CUresult result = gs_device_current(&device, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    reap(false);
    gs_mutex_lock(&gs_memory_lock);
    uint64_t held = device->footprint + device->usage.pinned + device->usage.context;
    gs_mutex_unlock(&gs_memory_lock);
    *total = device->total + (gs_memory_oversubscribes() ? gs_host_limit() : 0);
    uint64_t most = gs_session_cap() != 0 && gs_session_cap() < *total ? gs_session_cap() : *total;
    *available = most > held ? most - held : 0;
    return CUDA_SUCCESS;
}

/* --- Pinned bytes and contexts --- */

bool gs_memory_can_move(void)
{
    return memory.backend != NULL;
}

CUresult gs_memory_pin(CUdevice ordinal, size_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    return device != NULL ? gs_device_book(device, 0, bytes, 0) : CUDA_ERROR_INVALID_DEVICE;
}

void gs_memory_count_pinned(CUdevice ordinal, int64_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device == NULL || bytes == 0)
        return;
    gs_mutex_lock(&gs_memory_lock);
    if (bytes < 0)
        gs_device_subtract_locked(&device->usage.pinned, -(uint64_t)bytes);
    else
        device->usage.pinned += (uint64_t)bytes;
    device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

/* The last allocation that begins before `end`, if it reaches beyond `start`. */
static struct gs_allocation *last_within_locked(CUdeviceptr start, CUdeviceptr end)
{
    struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, end - 1);
    return allocation != NULL && allocation->node.key + allocation->size > start ? allocation : NULL;
}

bool gs_memory_any(CUdeviceptr address, size_t size)
{
    struct gs_memory_view ignored;
    gs_mutex_lock(&gs_memory_lock);
    bool any = size != 0 && last_within_locked(address, address + size) != NULL;
    gs_mutex_unlock(&gs_memory_lock);
    return any || gs_ipc_find(address, &ignored);
}

static CUresult pin_allocations(CUdeviceptr start, CUdeviceptr end)
{
    struct gs_slot *entered;
    CUresult result = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
    if (result != CUDA_SUCCESS)
        return result;
    gs_mutex_lock(&gs_memory_lock);
    for (struct gs_allocation *allocation; result == CUDA_SUCCESS && end > start; end = allocation->node.key) {
        allocation = last_within_locked(start, end);
        if (allocation == NULL)
            break;
        if (allocation->block != NULL && !gs_block_pin_locked(allocation->block))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    gs_mutex_unlock(&gs_memory_lock);
    gs_gate_leave(entered);
    gs_device_flush_reports();
    return result;
}

CUresult gs_memory_pin_range(CUdeviceptr address, size_t size)
{
    gs_mutex_lock(&gs_memory_lock);
    bool ours = last_within_locked(address, address + size) != NULL;
    gs_mutex_unlock(&gs_memory_lock);
    if (memory.backend == NULL)
        return CUDA_SUCCESS; /* nothing moves */
    CUresult result = ours ? pin_allocations(address, address + size) : gs_vmm_pin_range(address, size);
    return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

bool gs_memory_with_block(CUdeviceptr base, uint64_t id, void (*use)(struct gs_block *, size_t, void *), void *argument)
{
    struct gs_block *block;
    gs_mutex_lock(&gs_memory_lock);
    do { /* while it waits for the block, the allocation may go */
        struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, base);
        bool found = allocation != NULL && allocation->node.key == base && allocation->id == id;
        block = found ? allocation->block : NULL;
    } while (block != NULL && !gs_block_try_hold_locked(block));
    gs_mutex_unlock(&gs_memory_lock);
    if (block == NULL)
        return false;
    use(block, base - block->base, argument);
    gs_block_let_go(block);
    return true;
}

void gs_memory_unpin(CUdevice ordinal, size_t bytes)
{
    struct gs_device *device = gs_device_of(ordinal);
    if (device != NULL)
        gs_device_unbook(device, 0, bytes, 0);
}

/*
 * What a context takes before anything is allocated is not known in advance; the scheduler corrects the charge by what
 * it measures. 512 MiB is the order of an idle PyTorch process on a data-centre GPU; a small (simulated) GPU is asked
 * for less.
 */
static uint64_t context_bytes(const struct gs_device *device)
{
    return device->total / 64 < 512 * MIB ? device->total / 64 : 512 * MIB;
}

CUresult gs_memory_admit_context(CUdevice ordinal)
{
    gs_session_report_fork();
    CUresult result = gs_client_await_scheduler();
    if (result != CUDA_SUCCESS || !gs_session_attached())
        return result;
    struct gs_device *device = gs_device_of(ordinal);
    if (device == NULL)
        return CUDA_SUCCESS; /* the driver will say what is wrong with it */
    return gs_device_book(device, 0, 0, context_bytes(device));
}

void gs_memory_context_begun(CUdevice ordinal)
{
    struct gs_device *device = gs_session_attached() ? gs_device_of(ordinal) : NULL;
    if (device == NULL)
        return;
    gs_mutex_lock(&gs_memory_lock);
    device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_flush_reports();
}

void gs_memory_context_gone(CUdevice ordinal)
{
    struct gs_device *device = gs_session_attached() ? gs_device_of(ordinal) : NULL;
    if (device != NULL)
        gs_device_unbook(device, 0, 0, context_bytes(device));
}

/* Nobody says what it takes. A large library's code takes some hundred MiB. */
static uint64_t load_bytes(const struct gs_device *device)
{
    return 2 * context_bytes(device);
}

bool gs_memory_begin_load(struct gs_load *load)
{
    if (!gs_session_attached() || gs_device_current(&load->device, NULL) != CUDA_SUCCESS ||
        gs_device_book(load->device, 0, 0, load_bytes(load->device)) != CUDA_SUCCESS)
        return false;
    if (gs_gate_enter(&load->entered, NULL, GS_STREAM_NONE, GS_WORK_NONE) == CUDA_SUCCESS)
        return true;
    gs_device_unbook(load->device, 0, 0, load_bytes(load->device));
    return false;
}

void gs_memory_end_load(const struct gs_load *load)
{
    gs_gate_leave(load->entered);
    gs_device_unbook(load->device, 0, 0, load_bytes(load->device));
}

static void unqueue_locked(const struct gs_allocation *allocation)
{
    for (struct free_queue **link = &memory.queues; *link != NULL; link = &(*link)->next) {
        struct free_queue *queue = *link;
        struct gs_allocation **place = &queue->first;
        while (*place != NULL && *place != allocation)
            place = &(*place)->later;
        if (*place == NULL)
            continue;
        *place = allocation->later;
        if (*place == NULL)
            queue->last = place;
        if (queue->first == NULL) {
            *link = queue->next;
            free(queue);
        }
        __atomic_sub_fetch(&memory.freed_count, 1, __ATOMIC_RELAXED);
        return;
    }
}

static struct gs_allocation *any_of_context(struct gs_device *device, CUcontext context)
{
    struct gs_allocation *found = NULL;
    gs_mutex_lock(&gs_memory_lock);
    for (struct gs_allocation *allocation = device->allocations; allocation != NULL && found == NULL;
         allocation = allocation->next)
        if (allocation->context == context && !allocation->of_pool)
            found = allocation;
    if (found != NULL) {
        if (found->freed)
            unqueue_locked(found); /* another thread frees it just now */
        remove_locked(found);
    }
    gs_mutex_unlock(&gs_memory_lock);
    return found;
}

/*
 * What was freed goes with its context. Where only the stream of the free ends, it is done: all of the context's work
 * is. The events go with the context either way.
 */
static void forget_freed(CUcontext context)
{
    gs_mutex_lock(&gs_memory_lock);
    for (struct free_queue **link = &memory.queues; *link != NULL;) {
        struct free_queue *queue = *link;
        bool ends = queue->stream != NULL && queue->context == context;
        queue->last = &queue->first;
        while (*queue->last != NULL) {
            struct gs_allocation *allocation = *queue->last;
            if (allocation->context == context && !allocation->of_pool) {
                *queue->last = allocation->later;
                allocation->freed = false;
                __atomic_sub_fetch(&memory.freed_count, 1, __ATOMIC_RELAXED);
                continue;
            }
            if (ends)
                allocation->passed = NULL;
            queue->last = &allocation->later;
        }
        if (queue->first == NULL) {
            *link = queue->next;
            free(queue);
        } else {
            link = &queue->next;
        }
    }
    gs_mutex_unlock(&gs_memory_lock);
}

void gs_memory_streams_end(CUcontext context)
{
    forget_freed(context);
    gs_device_forget_contexts();
}

bool gs_memory_drop_failed(void)
{
    bool any = false;
    for (CUcontext context; (context = gs_context_take_failed()) != NULL; any = true) {
        gs_debug("a context has failed: its memory is given to others");
        gs_mover_context_ends(context);
        gs_host_context_ends(context);
        for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && gs_devices[i].known; i++)
            gs_blocks_lose_context(&gs_devices[i], context);
    }
    if (any)
        gs_device_flush_reports();
    return any;
}

struct move {
    CUcontext from, to;
    bool incomplete; /* something is not on the GPU */
};

static void move_block(struct gs_block *block, void *argument)
{
    struct move *move = argument;
    if (!block->of_pool || block->written_off || block->context != move->from)
        return;
    gs_mutex_lock(&gs_memory_lock);
    block->context = move->to;
    for (unsigned i = 0; i < block->piece_count; i++)
        move->incomplete = move->incomplete || block->pieces[i].state != GS_PIECE_RESIDENT;
    gs_mutex_unlock(&gs_memory_lock);
}

/*
 * Memory of pools is from now on moved in another context; NULL: in none, so that it stays where it is. True: some of
 * it is not on the GPU.
 */
static bool move_pool_memory(struct gs_device *device, CUcontext from, CUcontext to)
{
    struct move move = {.from = from, .to = to};
    bool any = false;
    gs_mutex_lock(&gs_memory_lock);
    for (const struct gs_block *block = device->blocks; block != NULL && !any; block = block->next)
        any = block->of_pool && block->context == from;
    for (struct gs_allocation *allocation = device->allocations; allocation != NULL; allocation = allocation->next)
        if (allocation->of_pool && allocation->context == from)
            allocation->context = to;
    gs_mutex_unlock(&gs_memory_lock);
    if (any)
        gs_blocks_visit(device, from, move_block, &move);
    return move.incomplete;
}

void gs_memory_context_begins(CUcontext context, CUdevice ordinal)
{
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && gs_devices[i].known; i++)
        /* Nothing missed it so far. */
        if (gs_devices[i].ordinal == ordinal && move_pool_memory(&gs_devices[i], NULL, gs_context_owner(context)))
            gs_client_give_up_lease(GPUSHARE_CAUSE_GROWTH);
}

void gs_memory_context_ends(CUcontext context)
{
    if (!gs_session_attached())
        return;
    GS_LEAVES_CAPTURES_ALONE;
    synchronize(context, false);
    forget_freed(context);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && gs_devices[i].known; i++)
        move_pool_memory(&gs_devices[i], context, gs_context_on(gs_devices[i].ordinal, context));
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
        struct gs_device *device = &gs_devices[i];
        if (!device->known)
            continue;
        struct gs_allocation *allocation;
        while ((allocation = any_of_context(device, context)) != NULL) {
            gs_pool_taken(gs_pool_take(allocation->node.key), true);
            dispose(allocation);
        }
    }
    gs_mutex_lock(&gs_memory_lock);
    if (memory.idle_context == context)
        memory.idle_context = NULL; /* another may get its name */
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_forget_contexts();
    gs_array_context_ends(context);
    gs_ipc_context_ends(context);
    gs_peer_context_ends(context);
    gs_mover_context_ends(context);
    gs_host_context_ends(context);
}

void gs_memory_after_fork(void)
{
    gs_devices_after_fork();
    gs_blocks_after_fork();
    gs_mover_after_fork();
    gs_vmm_after_fork();
    gs_array_after_fork();
    gs_pool_after_fork();
    gs_peer_after_fork();
    gs_ipc_after_fork();
    gs_graph_memory_after_fork();
    gs_host_after_fork();
    /* What is there is the parent's, whose host memory was not even inherited. */
    memory.allocations.root = NULL;
    memory.queues = NULL;
    memory.freed_count = 0;
}

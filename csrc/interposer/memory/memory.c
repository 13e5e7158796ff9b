/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/memory.h"

#include "base/lock.h"
#include "base/ordered_map.h"
#include "base/print.h"
#include "base/session.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/drain.h"
#include "gate/enter.h"
#include "gate/failures.h"
#include "gate/slots.h"
#include "gate/work.h"
#include "loader/real.h"
#include "memory/allocation.h"
#include "memory/backing.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/free_queue.h"
#include "memory/host.h"
#include "memory/host_ahead.h"
#include "memory/lane.h"
#include "memory/promises.h"
#include "memory/slab.h"
#include "memory/view.h"
#include "memory/vmm.h"
#include "memory/work_end.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    /* Guarded by gs_memory_lock. */
    struct gs_map allocations;
    uint64_t next_id;
    /* All work of that context had ended when the gate's count of passes had this value, and no thread was inside. */
    CUcontext idle_context;
    uint64_t idle_passes;
} memory;

/* --- Allocations --- */

/* Identifies an allocation after the lock was released. */
struct name {
    CUdeviceptr base;
    uint64_t id;
};

/* Once the lock is released, another thread may free the allocation. The caller only keeps its name. */
static struct name insert_locked(struct gs_device *device, struct gs_allocation *allocation)
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
    return (struct name){allocation->node.key, allocation->id};
}

/* The allocation that begins there, or NULL. */
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

static CUresult allocate_plain(struct gs_device *device, struct gs_allocation *allocation, struct name *name)
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
    *name = insert_locked(device, allocation);
    gs_mutex_unlock(&gs_memory_lock);
    return CUDA_SUCCESS;
}

/* What the life of the allocation's memory depends on. */
static const void *home_of(const struct gs_allocation *allocation)
{
    return allocation->of_pool ? (const void *)allocation->device : (const void *)allocation->context;
}

static bool allocate_in_slab(struct gs_device *device, struct gs_allocation *allocation, struct name *name)
{
    gs_mutex_lock(&gs_memory_lock);
    struct gs_range *range = gs_slab_take_locked(home_of(allocation), allocation->size);
    if (range != NULL) {
        allocation->range = range;
        allocation->block = gs_range_block(range);
        allocation->node.key = gs_range_address(range);
        *name = insert_locked(device, allocation);
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

/* The existing promises may exceed the GPU's memory. Then memory that has to be on the GPU may have no room. */
static bool has_room(struct gs_device *device, const struct gs_backend *backend, size_t size)
{
    gs_mutex_lock(&gs_memory_lock);
    bool room = backend->stay != NULL || device->limit == UINT64_MAX || device->footprint + size <= device->limit;
    gs_mutex_unlock(&gs_memory_lock);
    return room;
}

static CUresult allocate_block(struct gs_device *device, struct gs_allocation *allocation, bool small,
                               struct name *name)
{
    GS_LEAVES_CAPTURES_ALONE;
    const struct gs_backend *backend = allocation->of_pool ? gs_backing()->swap : gs_backing_of_new();
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
    *name = insert_locked(device, allocation);
    gs_mutex_unlock(&gs_memory_lock);
    if (populate)
        gs_block_populate(device, block, entered);
    return CUDA_SUCCESS;
}

/* Destroys the empty slabs that need not be kept. gs_memory_lock is released while one is destroyed. */
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

/* The allocation is in no table any more, and no work uses its memory. */
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
    /* A new slab is opened only after it has memory, which another thread is providing. */
    if (allocation->range != NULL && gs_range_is_open_locked(allocation->range)) {
        gs_slab_return_locked(allocation->range);
        retire_surplus_locked(device, home_of(allocation));
    } else if (block->allocations == 0) {
        destroy = gs_block_retire_locked(device, block);
    }
    gs_mutex_unlock(&gs_memory_lock);
    free(allocation);
    if (destroy)
        gs_block_destroy(device, block);
}

/* The allocation is in no table any more, and no work uses its memory. */
static CUresult release(struct gs_allocation *allocation)
{
    CUresult result = allocation->block == NULL ? GS_REAL(cuMemFree_v2)(allocation->node.key) : CUDA_SUCCESS;
    dispose(allocation);
    return result;
}

/* --- Memory that was freed but may still be in use --- */

/* No work uses the memory any more. The context may have freed it already. */
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

static bool free_later(CUdeviceptr pointer, uint64_t id, CUcontext context);
static CUresult free_when_done(CUdeviceptr pointer, uint64_t id, CUcontext context);

/* Frees what is due. With `wait`, first waits for the GPU to finish with the other freed allocations. */
static void reap(bool wait)
{
    if (!gs_free_queue_any())
        return;
    GS_LEAVES_CAPTURES_ALONE;
    while (gs_free_queue_any()) {
        gs_mutex_lock(&gs_memory_lock);
        struct gs_allocation *due = gs_free_queue_take_due_locked(wait);
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
    return gs_free_queue_any();
}

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
    if (size > device->total && !gs_memory_oversubscribes()) {
        gs_device_print_too_large(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    reap(false);
    struct gs_allocation *allocation = calloc(1, sizeof(*allocation));
    if (allocation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->size = size;
    allocation->device = device;
    allocation->context = context;
    /* The driver frees memory of other backends with the context. */
    allocation->of_pool = of_pool && gs_backing_of_new() == gs_backing()->swap;
    bool small = size <= device->slab_size / 8;
    struct name name;
    for (bool again = true;; again = false) {
        if (!gs_memory_can_move())
            result = allocate_plain(device, allocation, &name);
        else if (small && allocate_in_slab(device, allocation, &name))
            result = CUDA_SUCCESS;
        else
            result = allocate_block(device, allocation, small, &name);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !again)
            break;
        reap(true);
    }
    if (result != CUDA_SUCCESS) {
        free(allocation);
        return result;
    }
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

/* Records that the work of the context has ended while no thread was inside the gate. */
static void note_idle(CUcontext context, uint64_t passes)
{
    gs_context_synchronized(context, passes);
    gs_mutex_lock(&gs_memory_lock);
    memory.idle_context = context;
    memory.idle_passes = passes;
    gs_mutex_unlock(&gs_memory_lock);
}

/*
 * Like the driver's own free, waits for the work that may use the memory. Without a lease there is no such work. While
 * a context is synchronised, no capture may begin in it; the caller has forbidden captures, if possible. If the driver
 * can mark the end of the work, captures are allowed again before the wait. The work may wait for a thread that is
 * about to begin a capture.
 */
static void synchronize(CUcontext context, bool forbidden)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t passes = gs_gate_passes();
    bool empty = gs_gate_empty(), peers = gs_work_has_peers(context);
    CUevent passed = NULL;
    CUresult result = CUDA_SUCCESS;
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT && empty && !gs_promises()->leased()) {
        empty = false; /* only the earlier state is known */
    } else if (!forbidden || (passed = gs_work_mark(context)) == NULL) {
        result = gs_work_await(context);
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

/* Nothing has been submitted since all work had ended: there is nothing to wait for. */
static bool idle_locked(CUcontext context)
{
    return memory.idle_context == context && memory.idle_passes == gs_gate_passes() && !gs_capture_open();
}

static CUresult free_when_done(CUdeviceptr pointer, uint64_t id, CUcontext context)
{
    /* Synchronising would invalidate a capture, so the free waits for the end of the capture. */
    bool forbidden = gs_capture_forbid(), queued = false;
    if (!forbidden) {
        gs_mutex_lock(&gs_memory_lock);
        struct gs_allocation *allocation = find_locked(pointer);
        queued = allocation == NULL || allocation->id != id || gs_free_queue_add_locked(allocation, NULL, NULL);
        gs_mutex_unlock(&gs_memory_lock);
    }
    if (queued)
        return CUDA_SUCCESS;
    synchronize(context, forbidden);
    return free_now(pointer, id);
}

/*
 * The program freed the memory during a capture, and is now making another call. The driver would not let that call
 * wait for work that may itself wait for the program. False if the end of the work can only be found by waiting.
 */
static bool free_later(CUdeviceptr pointer, uint64_t id, CUcontext context)
{
    if (!gs_capture_forbid())
        return false;
    CUevent passed = gs_work_mark(context);
    gs_capture_allow();
    if (passed == NULL)
        return false;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    bool queued = allocation != NULL && allocation->id == id && gs_free_queue_add_locked(allocation, NULL, NULL);
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

/* Records the event in a stream of that context. */
static CUresult queue_free(CUdeviceptr pointer, CUcontext context, CUstream stream, CUevent passed)
{
    CUresult result = CUDA_SUCCESS;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_allocation *allocation = find_locked(pointer);
    if (allocation == NULL || allocation->freed)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (!gs_free_queue_add_locked(allocation, context, stream))
        result = CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) {
        allocation->freed = true;
        allocation->passed = passed;
    }
    gs_mutex_unlock(&gs_memory_lock);
    return result;
}

/* Whether an allocation begins there and is not freed yet. */
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

/* A new event that is recorded in the stream and in its context, which may differ from the current context. */
static CUresult record_anywhere(CUevent *event, CUcontext *context, CUstream stream, bool per_thread)
{
    CUresult result = GS_REAL(cuCtxGetCurrent)(context);
    if (result == CUDA_SUCCESS)
        result = gs_work_record(event, stream, per_thread);
    CUcontext other, ignored;
    if (result != CUDA_ERROR_INVALID_HANDLE || GS_REAL(cuStreamGetCtx)(stream, &other) != CUDA_SUCCESS ||
        other == *context || GS_REAL(cuCtxPushCurrent_v2)(other) != CUDA_SUCCESS)
        return result;
    *context = other;
    result = gs_work_record(event, stream, per_thread);
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
        return gs_memory_free(pointer); /* out of memory for the queue */
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
                                                   allocation->block->backend == gs_backing()->managed};
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
    uint64_t held = device->footprint + device->usage.unevictable + device->usage.context;
    gs_mutex_unlock(&gs_memory_lock);
    *total = device->total + (gs_memory_oversubscribes() ? gs_host_limit() : 0);
    uint64_t most = gs_session_cap() != 0 && gs_session_cap() < *total ? gs_session_cap() : *total;
    *available = most > held ? most - held : 0;
    return CUDA_SUCCESS;
}

/* --- Unevictable bytes and contexts --- */

/* The last allocation that begins before `end`, if it reaches beyond `start`. */
static struct gs_allocation *last_within_locked(CUdeviceptr start, CUdeviceptr end)
{
    struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, end - 1);
    return allocation != NULL && allocation->node.key + allocation->size > start ? allocation : NULL;
}

bool gs_memory_any(CUdeviceptr address, size_t size)
{
    gs_mutex_lock(&gs_memory_lock);
    bool any = size != 0 && last_within_locked(address, address + size) != NULL;
    gs_mutex_unlock(&gs_memory_lock);
    return any;
}

static CUresult make_allocations_unevictable(CUdeviceptr start, CUdeviceptr end)
{
    struct gs_slot *entered;
    CUresult result = gs_gate_enter(&entered, NULL, GS_STREAM_NONE, GS_WORK_NONE);
    if (result != CUDA_SUCCESS)
        return result;
    struct gs_allocation *allocation;
    gs_mutex_lock(&gs_memory_lock);
    while (result == CUDA_SUCCESS && end > start && (allocation = last_within_locked(start, end)) != NULL) {
        CUdeviceptr begin = allocation->node.key;
        result = allocation->block != NULL ? gs_block_make_unevictable_locked(allocation->block) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS)
            end = begin;
        else if (result == CUDA_ERROR_NOT_READY)
            result = CUDA_SUCCESS; /* during the wait for the block, the allocation may have been freed */
    }
    gs_mutex_unlock(&gs_memory_lock);
    gs_gate_leave(entered);
    gs_device_flush_reports();
    return result;
}

CUresult gs_memory_make_unevictable(CUdeviceptr address, size_t size)
{
    gs_mutex_lock(&gs_memory_lock);
    bool ours = last_within_locked(address, address + size) != NULL;
    gs_mutex_unlock(&gs_memory_lock);
    if (!gs_memory_can_move())
        return CUDA_SUCCESS; /* memory never moves */
    CUresult result =
        ours ? make_allocations_unevictable(address, address + size) : gs_vmm_make_range_unevictable(address, size);
    return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
}

bool gs_memory_with_block(CUdeviceptr base, uint64_t id, void (*use)(struct gs_block *, size_t, void *), void *argument)
{
    struct gs_block *block;
    gs_mutex_lock(&gs_memory_lock);
    do { /* during the wait for the block, the allocation may be freed */
        struct gs_allocation *allocation = (struct gs_allocation *)gs_map_floor(&memory.allocations, base);
        bool found = allocation != NULL && allocation->node.key == base && allocation->id == id;
        block = found ? allocation->block : NULL;
    } while (block != NULL && !gs_block_try_hold_locked(block));
    gs_mutex_unlock(&gs_memory_lock);
    if (block == NULL)
        return false;
    use(block, base - block->base, argument);
    gs_block_release(block);
    return true;
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
            gs_free_queue_remove_locked(found); /* another thread is freeing it now */
        remove_locked(found);
    }
    gs_mutex_unlock(&gs_memory_lock);
    return found;
}

void gs_memory_streams_end(CUcontext context)
{
    gs_free_queue_forget(context);
    gs_device_forget_contexts();
}

bool gs_memory_drop_failed(void)
{
    bool any = false;
    for (CUcontext context; (context = gs_context_take_failed()) != NULL; any = true) {
        gs_debug("a context has failed: its memory is given to others");
        gs_lane_context_ends(context);
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
    bool incomplete; /* some memory is not on the GPU */
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
 * Memory of pools is moved in another context from now on. NULL: in none, so that it stays where it is. True: some of
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
        /* No work was missing it so far. */
        if (gs_devices[i].ordinal == ordinal && move_pool_memory(&gs_devices[i], NULL, gs_context_owner(context)))
            gs_promises()->release_lease(GPUSHARE_CAUSE_GROWTH);
}

void gs_memory_context_ends(CUcontext context, void (*gone)(CUdeviceptr))
{
    GS_LEAVES_CAPTURES_ALONE;
    synchronize(context, false);
    gs_free_queue_forget(context);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && gs_devices[i].known; i++)
        move_pool_memory(&gs_devices[i], context, gs_context_on(gs_devices[i].ordinal, context));
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
        struct gs_device *device = &gs_devices[i];
        if (!device->known)
            continue;
        struct gs_allocation *allocation;
        while ((allocation = any_of_context(device, context)) != NULL) {
            gone(allocation->node.key);
            dispose(allocation);
        }
    }
    gs_mutex_lock(&gs_memory_lock);
    if (memory.idle_context == context)
        memory.idle_context = NULL; /* a new context may get the same handle */
    gs_mutex_unlock(&gs_memory_lock);
    gs_device_forget_contexts();
}

void gs_memory_after_fork(void)
{
    /* The memory belongs to the parent, and its host memory was not inherited. */
    memory.allocations.root = NULL;
    gs_free_queue_after_fork();
}

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Locks, in the order in which they are taken: growth (one at a time asks the scheduler for more, or gives back),
 * memory.lock (all tables), and the client's own. Device figures change under memory.lock alone.
 */
#include "memory.h"

#include "block.h"
#include "capture.h"
#include "client.h"
#include "context.h"
#include "gate.h"
#include "ordered_map.h"
#include "real.h"
#include "say.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GRANULARITY = 2 << 20, ALIGNMENT = 512 };
#define MIB (UINT64_C(1) << 20)

struct allocation {
    struct gs_node node; /* by address */
    size_t size;
    uint64_t id;
    CUdevice ordinal;
    CUcontext context;
    struct gs_block *block; /* NULL: of the `plain` backend, pinned */
    struct allocation *next, **link;
};

/* A stream-ordered free: the allocation goes once the event is complete. */
struct deferred_free {
    CUdeviceptr pointer;
    CUevent event; /* NULL: once no capture is open */
    struct deferred_free *next;
};

struct device {
    bool known;
    CUdevice ordinal;
    struct gpushare_usage usage;
    uint64_t total, footprint;
    size_t piece_size, slab_size;
    bool usage_changed;
    struct gs_block *blocks, **last_block;
    struct allocation *allocations;
    /* The mover's stream, and the context that it belongs to. */
    CUcontext mover_context;
    CUstream mover_stream;
};

static struct {
    pthread_mutex_t growth;
    pthread_mutex_t lock;
    const struct gs_backend *backend; /* NULL: plain */
    uint64_t headroom;
    struct device devices[GPUSHARE_MAX_GPUS];
    struct gs_map allocations;
    struct deferred_free *deferred;
    uint64_t next_id;
    uint64_t last_refusal_ns;
    bool stuck; /* the last eviction failed; the helper's own */
} memory = {.growth = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

/* --- Devices and their figures --- */

static int attribute(CUdevice_attribute which, CUdevice ordinal)
{
    int value = 0;
    return GS_REAL(cuDeviceGetAttribute)(&value, which, ordinal) == CUDA_SUCCESS ? value : 0;
}

bool gs_memory_choose_backend(uint32_t *backend, const char **why)
{
    const char *wanted = getenv("GPUSHARE_BACKEND");
    const char *forbid = getenv("GPUSHARE_FORBID_MANAGED");
    bool may_manage = !(forbid != NULL && strcmp(forbid, "1") == 0);
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
    return true;
}

static size_t round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static size_t between(size_t least, size_t value, size_t most)
{
    return value < least ? least : value > most ? most : value;
}

static struct device *device_of(CUdevice ordinal)
{
    struct device *found = NULL;
    pthread_mutex_lock(&memory.lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && found == NULL; i++) {
        struct device *device = &memory.devices[i];
        if (device->known && device->ordinal == ordinal)
            found = device;
        if (device->known)
            continue;
        CUuuid uuid;
        size_t total;
        if (GS_REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS ||
            GS_REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS)
            break;
        device->known = true;
        device->ordinal = ordinal;
        memcpy(device->usage.gpu, uuid.bytes, sizeof(device->usage.gpu));
        device->total = total;
        /* Handles of 128 MiB cost under 5 % of a move (26 ms for 16 GiB, against 290 ms to copy); a small GPU gets
         * smaller ones, so that a partial eviction has something to choose from. */
        device->piece_size = round_up(between(GRANULARITY, total / 64, 128 * MIB), GRANULARITY);
        device->slab_size = round_up(between(GRANULARITY, total / 256, 32 * MIB), GRANULARITY);
        device->last_block = &device->blocks;
        found = device;
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

static CUresult current_device(struct device **device, CUcontext *context)
{
    CUdevice ordinal;
    CUcontext current = NULL;
    CUresult result = GS_REAL(cuCtxGetCurrent)(&current);
    if (result == CUDA_SUCCESS && current == NULL)
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        result = GS_REAL(cuCtxGetDevice)(&ordinal);
    if (result != CUDA_SUCCESS)
        return result;
    *device = device_of(ordinal);
    if (context != NULL)
        *context = current;
    return *device != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* On a small GPU, what the scheduler suggests would be somebody's room. */
static uint64_t headroom(const struct device *device)
{
    uint64_t suggested = __atomic_load_n(&memory.headroom, __ATOMIC_RELAXED);
    return suggested < device->total / 128 ? suggested : device->total / 128;
}

static struct gpushare_usage usage_locked(const struct device *device)
{
    struct gpushare_usage usage = device->usage;
    usage.host = gs_host_bytes();
    return usage;
}

/*
 * Sends the figures that changed. A growth that is under way states figures too, and the scheduler must see them in
 * order: whoever finds one under way leaves the sending to it.
 */
static void flush_reports(void)
{
    for (;;) {
        if (pthread_mutex_trylock(&memory.growth) != 0)
            return;
        bool more = false;
        for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
            struct device *device = &memory.devices[i];
            pthread_mutex_lock(&memory.lock);
            bool changed = device->known && device->usage_changed;
            device->usage_changed = false;
            uint64_t spare = device->footprint != 0 ? headroom(device) : 0;
            if (changed && device->usage.promised > device->footprint + 2 * spare)
                device->usage.promised = device->footprint + spare;
            struct gpushare_usage usage = usage_locked(device);
            pthread_mutex_unlock(&memory.lock);
            if (changed)
                gs_client_report_usage(&usage);
            more = more || changed;
        }
        pthread_mutex_unlock(&memory.growth);
        if (!more)
            return;
    }
}

static void end_growth(void)
{
    pthread_mutex_unlock(&memory.growth);
    flush_reports();
}

void gs_memory_report(void)
{
    pthread_mutex_lock(&memory.lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        memory.devices[i].usage_changed = memory.devices[i].known;
    pthread_mutex_unlock(&memory.lock);
    flush_reports();
}

/* A library that empties its cache and tries again is refused twice within moments; the user needs one line. */
static void say_refusal(const char *text)
{
    uint64_t now = gs_now_ns();
    pthread_mutex_lock(&memory.lock);
    bool again = now - memory.last_refusal_ns < UINT64_C(1000000000);
    memory.last_refusal_ns = now;
    pthread_mutex_unlock(&memory.lock);
    if (!again && *text != '\0')
        gs_say("%s", text);
}

/*
 * Asks for `evictable` more bytes of footprint, and for `pinned` and `context` more of the others, and books them.
 * Only what the promise does not cover is asked for.
 */
static CUresult book(struct device *device, uint64_t evictable, uint64_t pinned, uint64_t context)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&memory.growth);
    pthread_mutex_lock(&memory.lock);
    uint64_t footprint = device->footprint + evictable;
    if (footprint > device->usage.promised || pinned != 0 || context != 0) {
        struct gpushare_usage least = usage_locked(device);
        if (footprint > least.promised)
            least.promised = footprint;
        least.pinned += pinned;
        least.context += context;
        uint64_t most = footprint > device->usage.promised ? least.promised + headroom(device) : least.promised;
        struct gpushare_grown answer;
        pthread_mutex_unlock(&memory.lock);
        result = gs_client_grow(&least, most, &answer);
        if (result == CUDA_SUCCESS && answer.status > GPUSHARE_GROWTH_SWAPPED) {
            answer.text[sizeof(answer.text) - 1] = '\0';
            say_refusal(answer.text);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        pthread_mutex_lock(&memory.lock);
        if (result == CUDA_SUCCESS)
            device->usage.promised = answer.promised >= least.promised ? answer.promised : least.promised;
    }
    if (result == CUDA_SUCCESS) {
        device->footprint += evictable;
        device->usage.pinned += pinned;
        device->usage.context += context;
    }
    pthread_mutex_unlock(&memory.lock);
    end_growth();
    return result;
}

static void unbook(struct device *device, uint64_t evictable, uint64_t pinned, uint64_t context)
{
    pthread_mutex_lock(&memory.lock);
    device->footprint -= evictable;
    device->usage.pinned -= pinned < device->usage.pinned ? pinned : device->usage.pinned;
    device->usage.context -= context < device->usage.context ? context : device->usage.context;
    device->usage_changed = true;
    pthread_mutex_unlock(&memory.lock);
    flush_reports();
}

/* --- Slabs --- */

/* First fit. False if there is no room. */
static bool slab_take(struct gs_block *slab, size_t size, size_t *offset)
{
    for (struct gs_extent **link = &slab->free; *link != NULL; link = &(*link)->next) {
        struct gs_extent *extent = *link;
        if (extent->size < size)
            continue;
        *offset = extent->offset;
        extent->offset += size;
        extent->size -= size;
        if (extent->size == 0) {
            *link = extent->next;
            free(extent);
        }
        return true;
    }
    return false;
}

/* If there is no memory for an extent of its own, the range is lost to the slab until the slab goes. */
static void slab_give(struct gs_block *slab, size_t offset, size_t size)
{
    struct gs_extent *before = NULL, *after = slab->free;
    while (after != NULL && after->offset < offset) {
        before = after;
        after = after->next;
    }
    if (before != NULL && before->offset + before->size == offset) {
        before->size += size;
        if (after != NULL && before->offset + before->size == after->offset) {
            before->size += after->size;
            before->next = after->next;
            free(after);
        }
    } else if (after != NULL && offset + size == after->offset) {
        after->offset = offset;
        after->size += size;
    } else {
        struct gs_extent *extent = malloc(sizeof(*extent));
        if (extent == NULL)
            return;
        *extent = (struct gs_extent){.offset = offset, .size = size, .next = after};
        *(before != NULL ? &before->next : &slab->free) = extent;
    }
}

/* --- Blocks --- */

static void link_block(struct device *device, struct gs_block *block)
{
    block->next = NULL;
    block->link = device->last_block;
    *device->last_block = block;
    device->last_block = &block->next;
}

static void unlink_block(struct device *device, struct gs_block *block)
{
    *block->link = block->next;
    if (block->next != NULL)
        block->next->link = block->link;
    else
        device->last_block = block->link;
}

static struct gs_block *new_block(struct device *device, CUcontext context, size_t size, bool slab)
{
    unsigned count = (unsigned)((size + device->piece_size - 1) / device->piece_size);
    struct gs_block *block = calloc(1, sizeof(*block) + count * sizeof(block->pieces[0]));
    if (block == NULL)
        return NULL;
    block->size = size;
    block->piece_size = device->piece_size;
    block->piece_count = count;
    block->ordinal = device->ordinal;
    block->context = context;
    block->slab = slab;
    if (slab) {
        block->free = calloc(1, sizeof(*block->free));
        if (block->free == NULL) {
            free(block);
            return NULL;
        }
        block->free->size = size;
    }
    return block;
}

static void free_block(struct gs_block *block)
{
    while (block->free != NULL) {
        struct gs_extent *extent = block->free;
        block->free = extent->next;
        free(extent);
    }
    free(block);
}

static uint64_t resident_bytes(const struct gs_block *block)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < block->piece_count; i++)
        if (block->pieces[i].state == GS_PIECE_RESIDENT)
            bytes += gs_piece_bytes(block, i);
    return bytes;
}

/* The block is in no table any more. */
static void destroy_block(struct device *device, struct gs_block *block)
{
    uint64_t resident = resident_bytes(block);
    for (unsigned i = 0; i < block->piece_count; i++)
        memory.backend->drop(block, i);
    memory.backend->unreserve(block);
    pthread_mutex_lock(&memory.lock);
    device->usage.resident -= resident;
    pthread_mutex_unlock(&memory.lock);
    unbook(device, block->size, 0, 0);
    free_block(block);
}

/* Gives a new block memory under the lease. False if there was none: foreign use took it. */
static bool populate_block(struct device *device, struct gs_block *block)
{
    uint64_t bytes = 0;
    bool complete = true;
    /* The caller is inside the gate and will leave without having submitted: less its own count. */
    uint64_t passes = gs_gate_passes() - 1;
    for (unsigned i = 0; i < block->piece_count && complete; i++) {
        complete = memory.backend->populate(block, i, NULL) == CUDA_SUCCESS;
        block->pieces[i].passes = passes;
        if (complete)
            bytes += gs_piece_bytes(block, i);
    }
    pthread_mutex_lock(&memory.lock);
    device->usage.resident += bytes;
    device->usage_changed = true;
    block->moving = false;
    pthread_mutex_unlock(&memory.lock);
    return complete;
}

/* --- Allocations --- */

static void insert_locked(struct device *device, struct allocation *allocation)
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

static struct allocation *remove_locked(CUdeviceptr pointer)
{
    struct allocation *allocation = (struct allocation *)gs_map_remove(&memory.allocations, pointer);
    if (allocation == NULL)
        return NULL;
    *allocation->link = allocation->next;
    if (allocation->next != NULL)
        allocation->next->link = allocation->link;
    return allocation;
}

static CUresult allocate_plain(struct device *device, struct allocation *allocation)
{
    CUresult result = book(device, 0, allocation->size, 0);
    if (result != CUDA_SUCCESS)
        return result;
    CUdeviceptr pointer;
    result = GS_REAL(cuMemAlloc_v2)(&pointer, allocation->size);
    if (result != CUDA_SUCCESS) {
        unbook(device, 0, allocation->size, 0);
        return result;
    }
    allocation->node.key = pointer;
    pthread_mutex_lock(&memory.lock);
    insert_locked(device, allocation);
    pthread_mutex_unlock(&memory.lock);
    return CUDA_SUCCESS;
}

static bool allocate_in_slab(struct device *device, struct allocation *allocation)
{
    bool found = false;
    size_t offset;
    pthread_mutex_lock(&memory.lock);
    for (struct gs_block *block = device->blocks; block != NULL && !found; block = block->next) {
        if (!block->slab || block->doomed || block->context != allocation->context ||
            !slab_take(block, round_up(allocation->size, ALIGNMENT), &offset))
            continue;
        found = true;
        allocation->block = block;
        allocation->node.key = block->base + offset;
        insert_locked(device, allocation);
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

static CUresult allocate_block(struct device *device, struct allocation *allocation, bool slab)
{
    size_t size = slab ? device->slab_size : round_up(allocation->size, GRANULARITY);
    CUresult result = book(device, size, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    struct gs_block *block = new_block(device, allocation->context, size, slab);
    result = block != NULL ? memory.backend->reserve(block) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        if (block != NULL)
            free_block(block);
        unbook(device, size, 0, 0);
        return result;
    }
    size_t offset = 0;
    if (slab)
        slab_take(block, round_up(allocation->size, ALIGNMENT), &offset);
    allocation->block = block;
    allocation->node.key = block->base + offset;
    struct gs_slot *entered;
    pthread_mutex_lock(&memory.lock);
    link_block(device, block);
    insert_locked(device, allocation);
    /* Decided under the lock: a grant opens the gate under it too, and only if no block lacks memory. */
    bool leased = gs_gate_enter_leased(&entered);
    block->moving = leased;
    pthread_mutex_unlock(&memory.lock);
    if (leased) {
        bool complete = populate_block(device, block);
        if (!complete)
            gs_client_give_up_lease(GPUSHARE_CAUSE_FAILED);
        gs_gate_leave_leased(entered);
        flush_reports();
    }
    return CUDA_SUCCESS;
}

/* Frees what stream-ordered frees left behind; with `wait`, also what the GPU has not got past yet. */
static void reap(bool wait)
{
    for (;;) {
        struct deferred_free *due = NULL;
        pthread_mutex_lock(&memory.lock);
        for (struct deferred_free **link = &memory.deferred; *link != NULL && due == NULL;) {
            struct deferred_free *entry = *link;
            bool ready = entry->event == NULL ? !gs_capture_open()
                                              : wait || GS_REAL(cuEventQuery)(entry->event) != CUDA_ERROR_NOT_READY;
            if (ready) {
                due = entry;
                *link = entry->next;
            } else {
                link = &entry->next;
            }
        }
        pthread_mutex_unlock(&memory.lock);
        if (due == NULL)
            return;
        if (due->event != NULL) {
            GS_REAL(cuEventSynchronize)(due->event);
            GS_REAL(cuEventDestroy_v2)(due->event);
        }
        gs_memory_free(due->pointer);
        free(due);
    }
}

CUresult gs_memory_alloc(CUdeviceptr *pointer, size_t size)
{
    if (pointer == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device;
    CUcontext context;
    CUresult result = current_device(&device, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (size > device->total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    reap(false);
    struct allocation *allocation = calloc(1, sizeof(*allocation));
    if (allocation == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->size = size;
    allocation->ordinal = device->ordinal;
    allocation->context = context;
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
    if (result == CUDA_SUCCESS)
        *pointer = allocation->node.key;
    else
        free(allocation);
    return result;
}

/* The allocation is in no table any more, and nothing uses its memory. */
static void dispose(struct device *device, struct allocation *allocation)
{
    struct gs_block *block = allocation->block;
    if (block == NULL) {
        unbook(device, 0, allocation->size, 0);
        free(allocation);
        return;
    }
    bool destroy = false;
    pthread_mutex_lock(&memory.lock);
    block->allocations--;
    if (block->slab)
        slab_give(block, allocation->node.key - block->base, round_up(allocation->size, ALIGNMENT));
    if (block->allocations == 0) {
        unlink_block(device, block);
        block->doomed = true;
        destroy = !block->moving; /* else whoever moves it destroys it */
    }
    pthread_mutex_unlock(&memory.lock);
    free(allocation);
    if (destroy)
        destroy_block(device, block);
}

/* The work that may use the memory ends first, as the driver's free does it. Evicted memory was drained before. */
static void synchronize(CUcontext context)
{
    if (__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT && gs_gate_empty())
        return;
    CUcontext before = NULL, ignored;
    GS_REAL(cuCtxGetCurrent)(&before);
    if (before == context) {
        GS_REAL(cuCtxSynchronize)();
    } else if (GS_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS) {
        GS_REAL(cuCtxSynchronize)();
        GS_REAL(cuCtxPopCurrent_v2)(&ignored);
    }
}

static bool defer_free(CUdeviceptr pointer, CUevent event)
{
    struct deferred_free *entry = malloc(sizeof(*entry));
    if (entry == NULL)
        return false;
    pthread_mutex_lock(&memory.lock);
    *entry = (struct deferred_free){.pointer = pointer, .event = event, .next = memory.deferred};
    memory.deferred = entry;
    pthread_mutex_unlock(&memory.lock);
    return true;
}

CUresult gs_memory_free(CUdeviceptr pointer)
{
    struct gs_memory_view view;
    if (!gs_memory_find(pointer, &view) || view.base != pointer)
        return CUDA_ERROR_NOT_FOUND;
    /* Synchronising would break the capture; the free waits for its end. */
    if (gs_capture_open() && defer_free(pointer, NULL))
        return CUDA_SUCCESS;
    synchronize(view.context);
    pthread_mutex_lock(&memory.lock);
    struct allocation *allocation = remove_locked(pointer);
    pthread_mutex_unlock(&memory.lock);
    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of(allocation->ordinal);
    CUresult result = allocation->block == NULL ? GS_REAL(cuMemFree_v2)(pointer) : CUDA_SUCCESS;
    dispose(device, allocation);
    return result;
}

CUresult gs_memory_free_async(CUdeviceptr pointer, CUstream stream, bool per_thread)
{
    struct gs_memory_view view;
    if (!gs_memory_find(pointer, &view) || view.base != pointer)
        return CUDA_ERROR_NOT_FOUND;
    CUevent event;
    if (GS_REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return gs_memory_free(pointer);
    CUresult result = per_thread ? GS_REAL(cuEventRecord_ptsz)(event, stream) : GS_REAL(cuEventRecord)(event, stream);
    if (result != CUDA_SUCCESS || !defer_free(pointer, event)) {
        GS_REAL(cuEventDestroy_v2)(event);
        return result != CUDA_SUCCESS ? result : gs_memory_free(pointer);
    }
    reap(false);
    return CUDA_SUCCESS;
}

bool gs_memory_find(CUdeviceptr address, struct gs_memory_view *view)
{
    bool found = false;
    pthread_mutex_lock(&memory.lock);
    struct allocation *allocation = (struct allocation *)gs_map_floor(&memory.allocations, address);
    if (allocation != NULL && address - allocation->node.key < allocation->size) {
        found = true;
        *view = (struct gs_memory_view){.base = allocation->node.key,
                                        .size = allocation->size,
                                        .device = allocation->ordinal,
                                        .context = allocation->context,
                                        .id = allocation->id,
                                        .managed = memory.backend == &gs_backend_managed};
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

/* --- Figures for the application --- */

CUresult gs_memory_info(size_t *available, size_t *total)
{
    struct device *device;
    CUresult result = current_device(&device, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&memory.lock);
    uint64_t held = device->footprint + device->usage.pinned + device->usage.context;
    pthread_mutex_unlock(&memory.lock);
    uint64_t most = gs_client_cap() != 0 && gs_client_cap() < device->total ? gs_client_cap() : device->total;
    *available = most > held ? most - held : 0;
    *total = device->total;
    return CUDA_SUCCESS;
}

bool gs_memory_own(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total)
{
    bool found = false;
    pthread_mutex_lock(&memory.lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && !found; i++) {
        const struct device *device = &memory.devices[i];
        if (!device->known || memcmp(device->usage.gpu, uuid, 16) != 0)
            continue;
        found = true;
        *footprint = device->footprint + device->usage.pinned + device->usage.context;
        *total = device->total;
    }
    pthread_mutex_unlock(&memory.lock);
    return found;
}

/* --- Pinned bytes and contexts --- */

CUresult gs_memory_pin(size_t bytes)
{
    struct device *device;
    CUresult result = current_device(&device, NULL);
    return result == CUDA_SUCCESS ? book(device, 0, bytes, 0) : result;
}

void gs_memory_unpin(CUdevice ordinal, size_t bytes)
{
    struct device *device = device_of(ordinal);
    if (device != NULL)
        unbook(device, 0, bytes, 0);
}

/*
 * What a context takes before anything is allocated is not known in advance; what it takes more than this is seen as
 * foreign use. 512 MiB is the order of an idle PyTorch process on a data-centre GPU; a small (simulated) GPU is asked
 * for less.
 */
static uint64_t context_bytes(const struct device *device)
{
    return device->total / 64 < 512 * MIB ? device->total / 64 : 512 * MIB;
}

CUresult gs_memory_admit_context(CUdevice ordinal)
{
    if (!gs_client_attached())
        return CUDA_SUCCESS;
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return CUDA_SUCCESS; /* the driver will say what is wrong with it */
    return book(device, 0, 0, context_bytes(device));
}

void gs_memory_context_gone(CUdevice ordinal)
{
    struct device *device = gs_client_attached() ? device_of(ordinal) : NULL;
    if (device != NULL)
        unbook(device, 0, 0, context_bytes(device));
}

static struct allocation *any_of_context(struct device *device, CUcontext context)
{
    struct allocation *found = NULL;
    pthread_mutex_lock(&memory.lock);
    for (struct allocation *allocation = device->allocations; allocation != NULL && found == NULL;
         allocation = allocation->next)
        if (allocation->context == context)
            found = remove_locked(allocation->node.key);
    pthread_mutex_unlock(&memory.lock);
    return found;
}

void gs_memory_context_ends(CUcontext context)
{
    if (!gs_client_attached())
        return;
    synchronize(context);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
        struct device *device = &memory.devices[i];
        if (!device->known)
            continue;
        struct allocation *allocation;
        while ((allocation = any_of_context(device, context)) != NULL)
            dispose(device, allocation);
        pthread_mutex_lock(&memory.lock);
        if (device->mover_context == context) {
            device->mover_context = NULL; /* its stream goes with it */
            device->mover_stream = NULL;
        }
        pthread_mutex_unlock(&memory.lock);
    }
}

/* --- Moving: the helper thread --- */

/* The stream of the mover, in the block's context, which is made current. */
static CUresult mover_stream(struct device *device, CUcontext context, CUstream *stream)
{
    CUresult result = GS_REAL(cuCtxSetCurrent)(context);
    if (result != CUDA_SUCCESS)
        return result;
    if (device->mover_context != context) {
        if (device->mover_stream != NULL)
            GS_REAL(cuStreamDestroy_v2)(device->mover_stream);
        device->mover_stream = NULL;
        device->mover_context = NULL;
        result = GS_REAL(cuStreamCreate)(&device->mover_stream, CU_STREAM_NON_BLOCKING);
        if (result != CUDA_SUCCESS)
            return result;
        device->mover_context = context;
    }
    *stream = device->mover_stream;
    return CUDA_SUCCESS;
}

/* Marks the first block that has something to move as moving. */
static struct gs_block *claim(struct device *device, bool outward)
{
    struct gs_block *claimed = NULL;
    pthread_mutex_lock(&memory.lock);
    for (struct gs_block *block = device->blocks; block != NULL && claimed == NULL; block = block->next) {
        if (block->moving)
            continue;
        for (unsigned i = 0; i < block->piece_count && claimed == NULL; i++)
            if ((block->pieces[i].state == GS_PIECE_RESIDENT) == outward)
                claimed = block;
    }
    if (claimed != NULL)
        claimed->moving = true;
    pthread_mutex_unlock(&memory.lock);
    return claimed;
}

static void unclaim(struct device *device, struct gs_block *block, int64_t resident)
{
    pthread_mutex_lock(&memory.lock);
    block->moving = false;
    device->usage.resident += (uint64_t)resident;
    bool destroy = block->doomed;
    pthread_mutex_unlock(&memory.lock);
    if (destroy)
        destroy_block(device, block);
}

/* Moves pieces of one block out until `wanted` bytes have left. While one is copied, host memory for the next is got.
 */
static CUresult move_block_out(struct device *device, struct gs_block *block, uint64_t wanted,
                               struct gpushare_moved *moved)
{
    CUstream stream;
    CUresult result = mover_stream(device, block->context, &stream);
    int64_t left = 0;
    int copying = -1;
    for (unsigned i = 0; result == CUDA_SUCCESS && i <= block->piece_count; i++) {
        bool more = i < block->piece_count && (uint64_t)left < wanted;
        if (more && block->pieces[i].state != GS_PIECE_RESIDENT)
            continue;
        size_t bytes = more ? gs_piece_bytes(block, i) : 0;
        bool copy = more && block->pieces[i].passes != gs_gate_passes();
        CUresult started = CUDA_SUCCESS;
        if (copy)
            started = memory.backend->start_out(block, i, stream);
        if (copying >= 0) {
            result = GS_REAL(cuStreamSynchronize)(stream);
            if (result == CUDA_SUCCESS)
                result = memory.backend->finish_out(block, (unsigned)copying);
            copying = -1;
        }
        if (more && !copy)
            started = memory.backend->discard(block, i);
        if (started != CUDA_SUCCESS) {
            result = started;
        } else if (more) {
            left += (int64_t)bytes;
            moved->copied += copy ? bytes : 0;
            copying = copy ? (int)i : -1;
        }
        gs_client_while_moving();
        if (!more)
            break;
    }
    if (copying >= 0) {
        /* Failed on another piece, or the last one: this one's copy was started and counted. */
        if (GS_REAL(cuStreamSynchronize)(stream) == CUDA_SUCCESS)
            memory.backend->finish_out(block, (unsigned)copying);
        else
            left -= (int64_t)gs_piece_bytes(block, (unsigned)copying);
    }
    moved->bytes += (uint64_t)left;
    unclaim(device, block, -left);
    return result;
}

static CUresult move_block_in(struct device *device, struct gs_block *block, struct gpushare_moved *moved)
{
    CUstream stream;
    CUresult result = mover_stream(device, block->context, &stream);
    int64_t arrived = 0;
    unsigned end = 0;
    uint64_t copied = 0;
    for (; result == CUDA_SUCCESS && end < block->piece_count; end++) {
        struct gs_piece *piece = &block->pieces[end];
        size_t bytes = gs_piece_bytes(block, end);
        if (piece->state == GS_PIECE_EMPTY) {
            piece->passes = gs_gate_passes();
            result = memory.backend->populate(block, end, stream);
            arrived += result == CUDA_SUCCESS ? (int64_t)bytes : 0;
        } else if (piece->state == GS_PIECE_SWAPPED) {
            result = memory.backend->start_in(block, end, stream);
            copied += result == CUDA_SUCCESS ? bytes : 0;
        }
        gs_client_while_moving();
        if (result != CUDA_SUCCESS)
            break;
    }
    /* What was started before a failure is completed: it need not be moved again. */
    bool complete = copied == 0 || GS_REAL(cuStreamSynchronize)(stream) == CUDA_SUCCESS;
    for (unsigned i = 0; i < end; i++) {
        if (block->pieces[i].state != GS_PIECE_SWAPPED)
            continue;
        if (complete) {
            memory.backend->finish_in(block, i);
            arrived += (int64_t)gs_piece_bytes(block, i);
        } else {
            memory.backend->abort_in(block, i);
        }
    }
    moved->bytes += (uint64_t)arrived;
    moved->copied += complete ? copied : 0;
    unclaim(device, block, arrived);
    if (result == CUDA_SUCCESS && !complete)
        result = CUDA_ERROR_UNKNOWN;
    return result;
}

static void conclude(struct device *device, struct gpushare_moved *moved, uint64_t start, bool failed)
{
    moved->duration_ns = gs_now_ns() - start;
    moved->status = !failed ? GPUSHARE_MOVE_DONE : moved->bytes != 0 ? GPUSHARE_MOVE_PARTIAL : GPUSHARE_MOVE_FAILED;
    pthread_mutex_lock(&memory.lock);
    moved->usage = usage_locked(device);
    pthread_mutex_unlock(&memory.lock);
}

void gs_memory_evict(const uint8_t uuid[16], uint64_t bytes, struct gpushare_moved *result)
{
    struct device *device = NULL;
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS && device == NULL; i++)
        if (memory.devices[i].known && memcmp(memory.devices[i].usage.gpu, uuid, 16) == 0)
            device = &memory.devices[i];
    *result = (struct gpushare_moved){.status = GPUSHARE_MOVE_FAILED};
    memcpy(result->usage.gpu, uuid, 16);
    if (device == NULL || memory.backend == NULL)
        return;
    uint64_t start = gs_now_ns();
    CUresult status = CUDA_SUCCESS;
    struct gs_block *block;
    while (status == CUDA_SUCCESS && result->bytes < bytes && (block = claim(device, true)) != NULL)
        status = move_block_out(device, block, bytes - result->bytes, result);
    /* The scheduler tries again; the user needs one line. */
    if (status != CUDA_SUCCESS && !memory.stuck)
        gs_say("memory could not be moved out of the GPU (CUDA error %d); it stays there", (int)status);
    memory.stuck = status != CUDA_SUCCESS;
    conclude(device, result, start, status != CUDA_SUCCESS);
}

/* True, after calling open, if nothing lacks memory. */
static bool open_if_complete(void (*open)(void *), void *argument)
{
    bool complete = true;
    pthread_mutex_lock(&memory.lock);
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS && complete; d++)
        for (struct gs_block *block = memory.devices[d].blocks; block != NULL && complete; block = block->next)
            for (unsigned i = 0; i < block->piece_count && complete; i++)
                complete = block->pieces[i].state == GS_PIECE_RESIDENT;
    if (complete)
        open(argument);
    pthread_mutex_unlock(&memory.lock);
    return complete;
}

unsigned gs_memory_restore(struct gpushare_moved results[GPUSHARE_MAX_GPUS], void (*open)(void *), void *argument)
{
    uint64_t start = gs_now_ns();
    unsigned count = 0;
    bool failed = false;
    memset(results, 0, GPUSHARE_MAX_GPUS * sizeof(results[0]));
    while (!failed && !open_if_complete(open, argument)) {
        for (unsigned d = 0; d < GPUSHARE_MAX_GPUS && !failed; d++) {
            struct device *device = &memory.devices[d];
            struct gs_block *block;
            while (device->known && !failed && (block = claim(device, false)) != NULL)
                failed = move_block_in(device, block, &results[d]) != CUDA_SUCCESS;
        }
    }
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++) {
        if (!memory.devices[d].known)
            continue;
        conclude(&memory.devices[d], &results[d], start, failed);
        /* A grant is worth nothing unless all is resident. */
        if (failed)
            results[d].status = GPUSHARE_MOVE_FAILED;
        count = d + 1;
    }
    return count;
}

/* --- For the client --- */

unsigned gs_memory_usages(struct gpushare_usage usages[GPUSHARE_MAX_GPUS])
{
    unsigned count = 0;
    pthread_mutex_lock(&memory.lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        if (memory.devices[i].known)
            usages[count++] = usage_locked(&memory.devices[i]);
    pthread_mutex_unlock(&memory.lock);
    return count;
}

void gs_memory_set_headroom(uint64_t bytes)
{
    __atomic_store_n(&memory.headroom, bytes, __ATOMIC_RELAXED);
}

void gs_memory_after_fork(void)
{
    pthread_mutex_init(&memory.lock, NULL);
    pthread_mutex_init(&memory.growth, NULL);
    gs_host_after_fork();
}

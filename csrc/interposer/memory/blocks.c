/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/blocks.h"

#include "base/lock.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/drain.h"
#include "gate/slots.h"
#include "memory/promises.h"
#include "memory/slab.h"

#include <stdlib.h>

/* A thread that visits the blocks of a device. */
struct gs_walk {
    struct gs_block *next;
    struct gs_walk *other;
};

/* Guarded by gs_memory_lock. */
static struct {
    pthread_cond_t changed;
    uint64_t count; /* how many moves and holds have ended */
    struct gs_awaiting *awaiting;
} settled = {.changed = PTHREAD_COND_INITIALIZER};

/* ns */
static const uint64_t drain_patience = 20000000;
enum { MOST_TRIES = 50 };

struct gs_block *gs_block_new(struct gs_device *device, const struct gs_backend *backend, CUcontext context,
                              size_t size, size_t piece_size)
{
    unsigned count = (unsigned)((size + piece_size - 1) / piece_size);
    struct gs_block *block = calloc(1, sizeof(*block) + count * sizeof(block->pieces[0]));
    if (block == NULL)
        return NULL;
    block->backend = backend;
    block->size = size;
    block->piece_size = piece_size;
    block->piece_count = count;
    block->ordinal = device->ordinal;
    block->context = context;
    return block;
}

void gs_block_free(struct gs_block *block)
{
    gs_slab_free(block->slab);
    free(block);
}

/* --- Waiting for blocks --- */

static void announce_locked(struct gs_awaiting *awaiting, const struct gs_block *block)
{
    awaiting->settled = settled.count;
    if (awaiting->block == NULL) {
        awaiting->next = settled.awaiting;
        settled.awaiting = awaiting;
    }
    awaiting->block = block;
}

static void stop_awaiting_locked(struct gs_awaiting *awaiting)
{
    if (awaiting->block == NULL)
        return;
    struct gs_awaiting **link = &settled.awaiting;
    while (*link != awaiting)
        link = &(*link)->next;
    *link = awaiting->next;
    awaiting->block = NULL;
}

/* gs_memory_lock is released during the wait. */
static void await_locked(const struct gs_awaiting *awaiting)
{
    while (settled.count == awaiting->settled)
        gs_cond_wait(&settled.changed, &gs_memory_lock);
}

/*
 * Waits until the block may have settled. gs_memory_lock is released during the wait, so the block may have been
 * destroyed afterwards.
 */
static void await_block_locked(const struct gs_block *block)
{
    struct gs_awaiting awaiting = {0};
    announce_locked(&awaiting, block);
    await_locked(&awaiting);
    stop_awaiting_locked(&awaiting);
}

/* --- The life of a block --- */

bool gs_block_add_locked(struct gs_device *device, struct gs_block *block, struct gs_slot **entered)
{
    block->next = NULL;
    block->link = device->last_block;
    *device->last_block = block;
    device->last_block = &block->next;
    /* Decided under the lock: a grant opens the gate under the same lock, and only if no block lacks memory. */
    block->moving = gs_gate_enter_leased(entered);
    return block->moving;
}

/* Whether a piece may be on the GPU. Memory that cannot be used from the host has its room by the promise. */
static bool claim(struct gs_device *device, const struct gs_block *block, unsigned i)
{
    size_t bytes = gs_piece_bytes(block, i);
    gs_mutex_lock(&gs_memory_lock);
    bool fits = block->backend->stay == NULL || device->usage.resident + device->arriving + bytes <= device->limit;
    device->arriving += fits ? bytes : 0;
    gs_mutex_unlock(&gs_memory_lock);
    return fits;
}

static bool lacks_memory(const struct gs_piece *piece)
{
    return piece->state == GS_PIECE_EMPTY && !piece->far;
}

/*
 * Before the call, the block is held and the caller is inside the gate; afterwards, neither. Pieces that have memory
 * keep it. False: there was not enough memory.
 */
static bool populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered, bool opens_slab)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t bytes = 0, claimed = 0;
    bool complete = true;
    /*
     * Work that was submitted earlier might learn the address and write there. That is impossible if it is done before
     * the address is returned.
     */
    uint64_t submissions = gs_gate_submissions();
    bool idle = gs_context_idle(submissions), marked = !idle && gs_context_mark();
    for (unsigned i = 0; i < block->piece_count && complete; i++) {
        if (!lacks_memory(&block->pieces[i]))
            continue;
        block->pieces[i].untouched = GS_WRITTEN;
        block->pieces[i].far = !claim(device, block, i);
        if (block->pieces[i].far) {
            block->backend->stay(block, i);
            continue;
        }
        claimed += gs_piece_bytes(block, i);
        complete = block->backend->populate(block, i, NULL) == CUDA_SUCCESS;
        if (complete) {
            bytes += gs_piece_bytes(block, i);
            block->pieces[i].untouched = submissions;
        }
    }
    if (!idle && !(marked && gs_context_mark_passed()))
        for (unsigned i = 0; i < block->piece_count; i++)
            block->pieces[i].untouched = GS_WRITTEN;
    /* This comes before other threads can allocate from a slab that lacks memory. */
    if (!complete)
        gs_promises()->release_lease(GPUSHARE_CAUSE_FAILED);
    gs_mutex_lock(&gs_memory_lock);
    device->arriving -= claimed;
    device->usage.resident += bytes;
    device->usage_changed = true;
    bool destroy = gs_block_settle_locked(block);
    if (opens_slab && block->slab != NULL && !destroy)
        gs_slab_open_locked(block->slab);
    gs_mutex_unlock(&gs_memory_lock);
    gs_gate_leave_leased(entered);
    if (destroy)
        gs_block_destroy(device, block);
    gs_device_flush_reports();
    return complete;
}

void gs_block_populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered)
{
    populate(device, block, entered, true);
}

/* Asks gs_promises what to do if the block lacks memory. With GS_REACH_NOW, the block is held. */
static enum gs_reach reach_locked(struct gs_block *block, bool promised, struct gs_slot **entered)
{
    bool lacks = false;
    /* The contents of the context are lost, and are no longer booked. */
    for (unsigned i = 0; block != NULL && block->context != NULL && i < block->piece_count; i++)
        lacks = lacks || lacks_memory(&block->pieces[i]);
    enum gs_reach reach = lacks ? gs_promises()->reach(promised, entered) : GS_REACH_NONE;
    if (reach == GS_REACH_NOW)
        block->moving = true;
    return reach;
}

void gs_block_reach(struct gs_device *device, struct gs_block *(*find_locked)(const void *), const void *what)
{
    bool promised = false;
    for (unsigned tries = 0; tries < MOST_TRIES; tries++) {
        struct gs_block *block;
        struct gs_slot *entered = NULL;
        gs_mutex_lock(&gs_memory_lock);
        while ((block = find_locked(what)) != NULL && block->moving)
            await_block_locked(block);
        enum gs_reach reach = reach_locked(block, promised, &entered);
        gs_mutex_unlock(&gs_memory_lock);
        if (reach == GS_REACH_NONE)
            return;
        if (reach == GS_REACH_NOW && populate(device, block, entered, false))
            return;
        /* Most work ends within a moment, and then no work can use memory that is missing. */
        if (gs_promises()->await_released(drain_patience))
            return;
        /*
         * The whole GPU may have been promised to the next process, which waits for this work. Takes the memory that is
         * free.
         */
        if (!promised)
            gs_device_promise_now(device);
        promised = true;
    }
}

bool gs_block_retire_locked(struct gs_device *device, struct gs_block *block)
{
    if (device->cursor == block)
        device->cursor = block->next;
    for (struct gs_walk *walk = device->walks; walk != NULL; walk = walk->other)
        if (walk->next == block)
            walk->next = block->next;
    *block->link = block->next;
    if (block->next != NULL)
        block->next->link = block->link;
    else
        device->last_block = block->link;
    block->doomed = true;
    return !block->moving;
}

/* Returns how many bytes were resident. */
static uint64_t drop_contents(struct gs_block *block)
{
    uint64_t resident = 0;
    for (unsigned i = 0; i < block->piece_count; i++) {
        if (block->pieces[i].state == GS_PIECE_RESIDENT)
            resident += gs_piece_bytes(block, i);
        block->backend->drop(block, i);
        gs_piece_forget_host(&block->pieces[i]);
    }
    return resident;
}

void gs_piece_set_clean_locked(struct gs_device *device, struct gs_piece *piece, uint64_t bytes)
{
    gs_device_subtract_locked(&device->usage.clean, piece->clean);
    device->usage.clean += bytes;
    piece->clean = bytes;
}

/* The block's data counts no longer. */
static void set_not_clean_locked(struct gs_device *device, struct gs_block *block)
{
    for (unsigned i = 0; i < block->piece_count; i++)
        gs_piece_set_clean_locked(device, &block->pieces[i], 0);
}

static void write_off(struct gs_device *device, struct gs_block *block)
{
    uint64_t resident = drop_contents(block);
    gs_mutex_lock(&gs_memory_lock);
    gs_device_subtract_locked(&device->usage.resident, resident);
    set_not_clean_locked(device, block);
    device->usage_changed = true;
    /* A handle of the application outlives its context, and gets memory again in the next one. */
    block->written_off = block->owner == NULL;
    if (block->written_off)
        gs_device_subtract_locked(&device->footprint, block->size);
    gs_mutex_unlock(&gs_memory_lock);
}

struct loss {
    struct gs_device *device;
    CUcontext other;
};

static void lose_context(struct gs_block *block, void *argument)
{
    const struct loss *loss = argument;
    if (block->unevictable)
        return;
    gs_mutex_lock(&gs_memory_lock);
    block->context = block->owner != NULL ? loss->other : NULL;
    gs_mutex_unlock(&gs_memory_lock);
    if (block->context == NULL)
        write_off(loss->device, block);
}

void gs_blocks_lose_context(struct gs_device *device, CUcontext context)
{
    struct loss loss = {.device = device, .other = gs_context_on(device->ordinal, context)};
    gs_blocks_visit(device, context, lose_context, &loss);
}

void gs_block_destroy(struct gs_device *device, struct gs_block *block)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t resident = drop_contents(block);
    block->backend->unreserve(block);
    if (block->written_off) {
        gs_block_free(block);
        return;
    }
    if (block->unevictable) {
        gs_device_unbook(device, 0, block->size, 0);
    } else {
        gs_mutex_lock(&gs_memory_lock);
        gs_device_subtract_locked(&device->usage.resident, resident);
        set_not_clean_locked(device, block);
        gs_mutex_unlock(&gs_memory_lock);
        gs_device_unbook(device, block->size, 0, 0);
    }
    gs_block_free(block);
}

void gs_block_retire(struct gs_device *device, struct gs_block *block)
{
    gs_mutex_lock(&gs_memory_lock);
    bool destroy = gs_block_retire_locked(device, block);
    gs_mutex_unlock(&gs_memory_lock);
    if (destroy)
        gs_block_destroy(device, block);
}

bool gs_block_settle_locked(struct gs_block *block)
{
    block->moving = false;
    settled.count++;
    pthread_cond_broadcast(&settled.changed);
    return block->doomed;
}

bool gs_block_awaited_locked(const struct gs_block *block)
{
    const struct gs_awaiting *awaiting = settled.awaiting;
    while (awaiting != NULL && awaiting->block != block)
        awaiting = awaiting->next;
    return awaiting != NULL;
}

bool gs_block_try_hold_locked(struct gs_block *block)
{
    if (block->moving) {
        await_block_locked(block);
        return false;
    }
    block->moving = true;
    return true;
}

bool gs_block_try_hold(struct gs_block *block, struct gs_awaiting *awaiting)
{
    gs_mutex_lock(&gs_memory_lock);
    bool held = !block->moving;
    if (held) {
        stop_awaiting_locked(awaiting);
        block->moving = true;
    } else {
        announce_locked(awaiting, block);
    }
    gs_mutex_unlock(&gs_memory_lock);
    return held;
}

void gs_block_await(struct gs_awaiting *awaiting)
{
    gs_mutex_lock(&gs_memory_lock);
    await_locked(awaiting);
    gs_mutex_unlock(&gs_memory_lock);
}

void gs_block_stop_awaiting(struct gs_awaiting *awaiting)
{
    if (awaiting->block == NULL)
        return;
    gs_mutex_lock(&gs_memory_lock);
    stop_awaiting_locked(awaiting);
    gs_mutex_unlock(&gs_memory_lock);
}

void gs_block_hold(struct gs_block *block)
{
    gs_mutex_lock(&gs_memory_lock);
    while (!gs_block_try_hold_locked(block))
        ;
    gs_mutex_unlock(&gs_memory_lock);
}

/* Releases a held block. The block may be destroyed, for which gs_memory_lock is released. */
static void release_held_locked(struct gs_device *device, struct gs_block *block)
{
    if (!gs_block_settle_locked(block))
        return;
    gs_mutex_unlock(&gs_memory_lock);
    gs_block_destroy(device, block);
    gs_mutex_lock(&gs_memory_lock);
}

void gs_block_release(struct gs_block *block)
{
    struct gs_device *device = gs_device_of(block->ordinal);
    gs_mutex_lock(&gs_memory_lock);
    release_held_locked(device, block);
    gs_mutex_unlock(&gs_memory_lock);
}

void gs_blocks_visit(struct gs_device *device, CUcontext context, void (*visit)(struct gs_block *, void *),
                     void *argument)
{
    gs_mutex_lock(&gs_memory_lock);
    struct gs_walk walk = {.next = device->blocks, .other = device->walks}, **link;
    device->walks = &walk;
    while (walk.next != NULL) {
        struct gs_block *block = walk.next;
        if (context != NULL && block->context != context) {
            walk.next = block->next;
            continue;
        }
        if (!gs_block_try_hold_locked(block))
            continue; /* the walk may have advanced meanwhile */
        walk.next = block->next;
        gs_mutex_unlock(&gs_memory_lock);
        visit(block, argument);
        gs_mutex_lock(&gs_memory_lock);
        release_held_locked(device, block);
    }
    for (link = &device->walks; *link != &walk;)
        link = &(*link)->other;
    *link = walk.other;
    gs_mutex_unlock(&gs_memory_lock);
}

CUresult gs_block_make_unevictable_locked(struct gs_block *block)
{
    struct gs_device *device = gs_devices;
    if (block->moving) {
        await_block_locked(block);
        return CUDA_ERROR_NOT_READY;
    }
    for (unsigned i = 0; i < block->piece_count; i++)
        if (block->pieces[i].state != GS_PIECE_RESIDENT)
            return CUDA_ERROR_OUT_OF_MEMORY;
    if (block->unevictable)
        return CUDA_SUCCESS;
    while (device->ordinal != block->ordinal)
        device++;
    /* Under the lease its bytes already have room. They only change their category. */
    block->unevictable = true;
    gs_device_subtract_locked(&device->footprint, block->size);
    gs_device_subtract_locked(&device->usage.promised, block->size);
    gs_device_subtract_locked(&device->usage.resident, block->size);
    set_not_clean_locked(device, block);
    device->usage.unevictable += block->size;
    device->usage_changed = true;
    return CUDA_SUCCESS;
}

void gs_blocks_after_fork(void)
{
    pthread_cond_init(&settled.changed, NULL);
    settled.awaiting = NULL;
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++)
        gs_devices[i].walks = NULL;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "blocks.h"

#include "capture.h"
#include "client.h"
#include "context.h"
#include "real.h"
#include "say.h"
#include "slab.h"

#include <stdlib.h>

static pthread_cond_t settled = PTHREAD_COND_INITIALIZER;

/* ns */
static const uint64_t drain_patience = 20000000;

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

bool gs_block_add_locked(struct gs_device *device, struct gs_block *block, struct gs_slot **entered)
{
    block->next = NULL;
    block->link = device->last_block;
    *device->last_block = block;
    device->last_block = &block->next;
    /* Decided under the lock: a grant opens the gate under it too, and only if no block lacks memory. */
    block->moving = gs_gate_enter_leased(entered);
    return block->moving;
}

/* Whether a piece may come to the GPU; what cannot be used from elsewhere has its room by the promise. */
static bool claim(struct gs_device *device, const struct gs_block *block, unsigned i)
{
    size_t bytes = gs_piece_bytes(block, i);
    pthread_mutex_lock(&gs_memory_lock);
    bool fits = block->backend->stay == NULL || device->usage.resident + device->arriving + bytes <= device->limit;
    device->arriving += fits ? bytes : 0;
    pthread_mutex_unlock(&gs_memory_lock);
    return fits;
}

static bool lacks_memory(const struct gs_piece *piece)
{
    return piece->state != GS_PIECE_RESIDENT && !piece->far;
}

/* The block is held, and the caller inside the gate; afterwards neither is so. What has memory keeps it. */
static void populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered, bool opens_slab)
{
    GS_LEAVES_CAPTURES_ALONE;
    uint64_t bytes = 0, claimed = 0;
    bool complete = true;
    /*
     * What was submitted before may be told the address and write there. That is ruled out if it is done before the
     * address is known to anybody.
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
    /* Before others can take from a slab that lacks memory. */
    if (!complete)
        gs_client_give_up_lease(GPUSHARE_CAUSE_FAILED);
    pthread_mutex_lock(&gs_memory_lock);
    device->arriving -= claimed;
    device->usage.resident += bytes;
    device->usage_changed = true;
    bool destroy = gs_block_settle_locked(block);
    if (opens_slab && block->slab != NULL && !destroy)
        gs_slab_open_locked(block->slab);
    pthread_mutex_unlock(&gs_memory_lock);
    gs_gate_leave_leased(entered);
    if (destroy)
        gs_block_destroy(device, block);
    gs_device_flush_reports();
}

void gs_block_populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered)
{
    populate(device, block, entered, true);
}

/* What gs_client_reach says where the block has no memory; with GS_REACH_NOW, it is held. */
static enum gs_reach reach_locked(struct gs_block *block, bool promised, struct gs_slot **entered)
{
    bool lacks = false;
    for (unsigned i = 0; block != NULL && i < block->piece_count; i++)
        lacks = lacks || lacks_memory(&block->pieces[i]);
    enum gs_reach reach = lacks ? gs_client_reach(promised, entered) : GS_REACH_NONE;
    if (reach == GS_REACH_NOW)
        block->moving = true;
    return reach;
}

void gs_block_reach(struct gs_device *device, struct gs_block *(*find_locked)(const void *), const void *what)
{
    for (bool promised = false, tried = false; !(promised && tried);) {
        struct gs_block *block;
        struct gs_slot *entered = NULL;
        pthread_mutex_lock(&gs_memory_lock);
        while ((block = find_locked(what)) != NULL && block->moving)
            pthread_cond_wait(&settled, &gs_memory_lock);
        enum gs_reach reach = reach_locked(block, promised, &entered);
        pthread_mutex_unlock(&gs_memory_lock);
        if (reach == GS_REACH_NONE)
            return;
        if (reach == GS_REACH_NOW) {
            populate(device, block, entered, false);
            tried = promised;
            continue;
        }
        /* Most work is done in a moment, and then nothing can touch what has no memory. */
        if (gs_client_await_released(drain_patience))
            return;
        promised = gs_device_promise_now(device);
        if (!promised)
            return;
    }
}

bool gs_block_retire_locked(struct gs_device *device, struct gs_block *block)
{
    if (device->cursor == block)
        device->cursor = block->next;
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
        gs_piece_give_host(&block->pieces[i]);
    }
    return resident;
}

static void write_off(struct gs_device *device, struct gs_block *block)
{
    uint64_t resident = drop_contents(block);
    pthread_mutex_lock(&gs_memory_lock);
    device->usage.resident -= resident;
    device->usage_changed = true;
    /* A handle of the application outlives its context, and gets memory again in the next. */
    block->written_off = block->owner == NULL;
    if (block->written_off)
        device->footprint -= block->size;
    pthread_mutex_unlock(&gs_memory_lock);
}

void gs_blocks_lose_context(struct gs_device *device, CUcontext context)
{
    CUcontext other = gs_context_on(device->ordinal, context);
    pthread_mutex_lock(&gs_memory_lock);
    for (struct gs_block *block = device->blocks; block != NULL;) {
        if (block->context != context || block->pinned) {
            block = block->next;
            continue;
        }
        if (!gs_block_try_hold_locked(block)) {
            block = device->blocks; /* the list may be another one by now */
            continue;
        }
        block->context = block->owner != NULL ? other : NULL;
        if (block->context == NULL) {
            pthread_mutex_unlock(&gs_memory_lock);
            write_off(device, block);
            pthread_mutex_lock(&gs_memory_lock);
        }
        if (!gs_block_settle_locked(block)) {
            block = block->next;
            continue;
        }
        pthread_mutex_unlock(&gs_memory_lock);
        gs_block_destroy(device, block);
        pthread_mutex_lock(&gs_memory_lock);
        block = device->blocks;
    }
    pthread_mutex_unlock(&gs_memory_lock);
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
    if (block->pinned) {
        gs_device_unbook(device, 0, block->size, 0);
    } else {
        pthread_mutex_lock(&gs_memory_lock);
        device->usage.resident -= resident;
        pthread_mutex_unlock(&gs_memory_lock);
        gs_device_unbook(device, block->size, 0, 0);
    }
    gs_block_free(block);
}

void gs_block_retire(struct gs_device *device, struct gs_block *block)
{
    pthread_mutex_lock(&gs_memory_lock);
    bool destroy = gs_block_retire_locked(device, block);
    pthread_mutex_unlock(&gs_memory_lock);
    if (destroy)
        gs_block_destroy(device, block);
}

bool gs_block_settle_locked(struct gs_block *block)
{
    block->moving = false;
    pthread_cond_broadcast(&settled);
    return block->doomed;
}

bool gs_block_try_hold_locked(struct gs_block *block)
{
    if (block->moving) {
        pthread_cond_wait(&settled, &gs_memory_lock);
        return false;
    }
    block->moving = true;
    return true;
}

void gs_block_hold(struct gs_block *block)
{
    pthread_mutex_lock(&gs_memory_lock);
    while (!gs_block_try_hold_locked(block))
        ;
    pthread_mutex_unlock(&gs_memory_lock);
}

void gs_block_let_go(struct gs_block *block)
{
    pthread_mutex_lock(&gs_memory_lock);
    bool destroy = gs_block_settle_locked(block);
    pthread_mutex_unlock(&gs_memory_lock);
    if (destroy)
        gs_block_destroy(gs_device_of(block->ordinal), block);
}

struct gs_block *gs_block_next_held(struct gs_device *device, CUcontext context, unsigned round)
{
    pthread_mutex_lock(&gs_memory_lock);
    struct gs_block *block = device->blocks;
    while (block != NULL) {
        if (block->access_round >= round || (context != NULL && block->context != context)) {
            block = block->next;
        } else if (block->moving) {
            pthread_cond_wait(&settled, &gs_memory_lock);
            block = device->blocks; /* the list may be another one by now */
        } else {
            block->access_round = round;
            block->moving = true;
            break;
        }
    }
    pthread_mutex_unlock(&gs_memory_lock);
    return block;
}

bool gs_block_pin_locked(struct gs_block *block)
{
    struct gs_device *device = gs_devices;
    while (device->ordinal != block->ordinal)
        device++;
    while (block->moving)
        pthread_cond_wait(&settled, &gs_memory_lock);
    for (unsigned i = 0; i < block->piece_count; i++)
        if (block->pieces[i].state != GS_PIECE_RESIDENT)
            return false;
    if (block->pinned)
        return true;
    /* Under the lease its bytes have their room already: they only change their name. */
    block->pinned = true;
    device->footprint -= block->size;
    device->usage.promised -= block->size;
    device->usage.resident -= block->size;
    device->usage.pinned += block->size;
    device->usage_changed = true;
    return true;
}

CUresult gs_piece_copy(const struct gs_piece *piece, CUdeviceptr address, bool outward, CUstream stream)
{
    const struct gs_host_extent *extents;
    unsigned count = gs_host_extents(piece->host, &extents);
    CUresult result = CUDA_SUCCESS;
    for (unsigned e = 0; e < count && result == CUDA_SUCCESS; e++) {
        result = outward ? GS_REAL(cuMemcpyDtoHAsync_v2)(extents[e].address, address, extents[e].bytes, stream)
                         : GS_REAL(cuMemcpyHtoDAsync_v2)(address, extents[e].address, extents[e].bytes, stream);
        address += extents[e].bytes;
    }
    if (result != CUDA_SUCCESS)
        GS_REAL(cuStreamSynchronize)(stream);
    return result;
}

void gs_blocks_after_fork(void)
{
    pthread_cond_init(&settled, NULL);
}

bool gs_reserve_again(CUdeviceptr base, size_t size, bool *lost)
{
    CUdeviceptr address = 0;
    bool known = *lost;
    if (!known && GS_REAL(cuMemAddressFree)(base, size) != CUDA_SUCCESS)
        return false;
    CUresult result = GS_REAL(cuMemAddressReserve)(&address, size, 0, base, 0);
    *lost = result != CUDA_SUCCESS || address != base;
    if (result == CUDA_SUCCESS && *lost)
        GS_REAL(cuMemAddressFree)(address, size);
    if (*lost && !known)
        gs_say(
            "%zu bytes of this process's memory cannot come back to their addresses on the GPU, which the driver does "
            "not give again (CUDA error %d); nothing is lost, and it is tried again",
            size, (int)result);
    return !*lost;
}

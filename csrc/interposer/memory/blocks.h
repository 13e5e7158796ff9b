/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The life of blocks, whatever they are for: allocations of ours, or memory that the application holds by handles.
 *
 *     gs_device_book(device, size, 0, 0);             the footprint, first: it may wait or be refused
 *     block = gs_block_new(...); give it its address;
 *     lock; tables of one's own; populate = gs_block_add_locked(device, block, &entered); unlock;
 *     if (populate) gs_block_populate(device, block, entered);
 *     ...
 *     gs_block_retire(device, block);                 destroys it, or whoever moves it does; unbooks its size
 *
 * From gs_block_add_locked on, moves and gs_mover_restore see the block.
 */
#ifndef GPUSHARE_MEMORY_BLOCKS_H
#define GPUSHARE_MEMORY_BLOCKS_H

#include "memory/block.h"
#include "memory/devices.h"

struct gs_slot;

/* All pieces are EMPTY. piece_size is a multiple of GS_GRANULARITY. NULL: no memory. */
struct gs_block *gs_block_new(struct gs_device *device, const struct gs_backend *backend, CUcontext context,
                              size_t size, size_t piece_size);

/* Of a block that was never added. */
void gs_block_free(struct gs_block *block);

/*
 * True if a lease is held: then the caller is inside the gate, and gs_block_populate must follow, outside the lock.
 * Else the next grant gives the block memory.
 */
bool gs_block_add_locked(struct gs_device *device, struct gs_block *block, struct gs_slot **entered);

/*
 * Leaves the gate, and lets others take from a slab. Where there is no memory after all (foreign use took it), the
 * lease is given up.
 */
void gs_block_populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered);

/*
 * For memory that is new while the gate is shut. Work that was submitted before may be told its address for as long as
 * the lease has not been given back: then it comes to the GPU all the same, for which others' memory leaves if need be;
 * if the scheduler can have none moved, what the driver has free is taken.
 * find_locked returns the block, or NULL if it is gone.
 */
void gs_block_reach(struct gs_device *device, struct gs_block *(*find_locked)(const void *), const void *what);

/* Nothing uses its memory any more. True: the caller is to destroy it, outside the lock; else its mover does. */
bool gs_block_retire_locked(struct gs_device *device, struct gs_block *block);
void gs_block_destroy(struct gs_device *device, struct gs_block *block);
void gs_block_retire(struct gs_device *device, struct gs_block *block);

/* The context has failed. Its blocks lose their memory; the application's handles go to another context, if there is
 * one.
 */
void gs_blocks_lose_context(struct gs_device *device, CUcontext context);

/* `moving` ends. Returns whether the caller is to destroy the block. */
bool gs_block_settle_locked(struct gs_block *block);

/*
 * Waits until nobody moves the block, and keeps it as it is until it is let go: not for long, and without a lock of
 * memory's. Something else must keep the block from being destroyed meanwhile. The mover begins with no further piece
 * of a block that is waited for.
 */
void gs_block_hold(struct gs_block *block);
void gs_block_let_go(struct gs_block *block);

/*
 * False: another thread moved or held it, and gs_memory_lock was given up until that may have ended. Then the block may
 * be gone: the caller looks it up again, unless something else keeps it.
 */
bool gs_block_try_hold_locked(struct gs_block *block);

/*
 * The same in two steps, for callers whose own lock keeps the block. gs_block_try_hold returns false at once. Then
 * gs_block_await waits without that lock, and the caller looks the block up again. GS_AWAITING begins and ends it.
 */
struct gs_awaiting {
    const struct gs_block *block; /* only compared; it may be gone */
    uint64_t settled;
    struct gs_awaiting *next;
};
#define GS_AWAITING(name) __attribute__((cleanup(gs_block_stop_awaiting))) struct gs_awaiting name = {0}
bool gs_block_try_hold(struct gs_block *block, struct gs_awaiting *awaiting);
void gs_block_await(struct gs_awaiting *awaiting);
void gs_block_stop_awaiting(struct gs_awaiting *awaiting);

/* For the mover: some thread waits for the block. */
bool gs_block_awaited_locked(const struct gs_block *block);

/* Calls visit for each block of that context (NULL: of any), held. Blocks may be added and go meanwhile. */
void gs_blocks_visit(struct gs_device *device, CUcontext context, void (*visit)(struct gs_block *, void *),
                     void *argument);

/*
 * The block stays on the GPU for good, and counts as unevictable. The caller is inside the gate.
 * CUDA_ERROR_OUT_OF_MEMORY: it has no memory after all. CUDA_ERROR_NOT_READY: another thread moved or held it, and
 * gs_memory_lock was given up until that may have ended. Then the block may be gone: the caller looks it up again.
 */
CUresult gs_block_pin_locked(struct gs_block *block);

void gs_blocks_after_fork(void);

#endif

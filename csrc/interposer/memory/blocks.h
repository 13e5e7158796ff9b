/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The life of blocks, which are allocations of this process, or memory that the application holds by handles.
 *
 *     gs_device_book(device, size, 0, 0);             first the footprint: may wait or be refused
 *     block = gs_block_new(...); give it its address;
 *     lock; the caller's own tables; populate = gs_block_add_locked(device, block, &entered); unlock;
 *     if (populate) gs_block_populate(device, block, entered);
 *     ...
 *     gs_block_retire(device, block);                 destroys it now or after its move; unbooks its size
 *
 * From gs_block_add_locked on, moves and gs_mover_restore include the block.
 */
#ifndef GPUSHARE_MEMORY_BLOCKS_H
#define GPUSHARE_MEMORY_BLOCKS_H

#include "memory/block.h"
#include "memory/devices.h"

struct gs_slot;

/* All pieces start EMPTY. piece_size is a multiple of GS_GRANULARITY. NULL: out of memory. */
struct gs_block *gs_block_new(struct gs_device *device, const struct gs_backend *backend, CUcontext context,
                              size_t size, size_t piece_size);

/* Frees a block that was never added. */
void gs_block_free(struct gs_block *block);

/*
 * True if a lease is held. Then the caller is inside the gate, and must call gs_block_populate without the lock.
 * Otherwise the next grant gives the block memory.
 */
bool gs_block_add_locked(struct gs_device *device, struct gs_block *block, struct gs_slot **entered);

/*
 * Gives the block memory, leaves the gate, and lets other threads allocate from a slab. If foreign use has taken the
 * memory, releases the lease.
 */
void gs_block_populate(struct gs_device *device, struct gs_block *block, struct gs_slot *entered);

/*
 * For a block that is new while the gate is shut. Until the lease is released, work that was submitted earlier may
 * learn the address and use it. Therefore the block gets memory on the GPU now, and other memory is evicted if
 * necessary. If the scheduler cannot evict any, the block takes what the driver has free. find_locked returns the
 * block, or NULL if it no longer exists.
 */
void gs_block_reach(struct gs_device *device, struct gs_block *(*find_locked)(const void *), const void *what);

/*
 * Called when no work uses the block's memory any more. True: the caller must destroy the block, without the lock.
 * False: the mover will.
 */
bool gs_block_retire_locked(struct gs_device *device, struct gs_block *block);
void gs_block_destroy(struct gs_device *device, struct gs_block *block);
void gs_block_retire(struct gs_device *device, struct gs_block *block);

/*
 * The context has failed. Its blocks lose their memory. The application's handles are assigned to another context, if
 * there is one.
 */
void gs_blocks_lose_context(struct gs_device *device, CUcontext context);

/* Sets how many bytes of a piece can leave the GPU without a copy. */
void gs_piece_set_clean_locked(struct gs_device *device, struct gs_piece *piece, uint64_t bytes);

/* Ends `moving`. Returns whether the caller must destroy the block. */
bool gs_block_settle_locked(struct gs_block *block);

/*
 * Waits until no thread moves the block, and holds it in that state until it is released. Hold it only briefly, and
 * call this without any lock of memory/. Something else must keep the block from being destroyed. The mover starts no
 * further piece of a block that a thread waits for.
 */
void gs_block_hold(struct gs_block *block);
void gs_block_release(struct gs_block *block);

/*
 * False: another thread was moving or holding the block, and gs_memory_lock was released until that may have ended. The
 * block may have been destroyed: look it up again, unless something else keeps it.
 */
bool gs_block_try_hold_locked(struct gs_block *block);

/*
 * Holds the block in two steps, for callers that guard the block with a lock of their own. gs_block_try_hold returns
 * false at once. gs_block_await then waits, called without that lock, and the caller looks the block up again.
 * Initialise it with GS_AWAITING.
 */
struct gs_awaiting {
    const struct gs_block *block; /* only compared; the block may have been destroyed */
    uint64_t settled;
    struct gs_awaiting *next;
};
#define GS_AWAITING(name) __attribute__((cleanup(gs_block_stop_awaiting))) struct gs_awaiting name = {0}
bool gs_block_try_hold(struct gs_block *block, struct gs_awaiting *awaiting);
void gs_block_await(struct gs_awaiting *awaiting);
void gs_block_stop_awaiting(struct gs_awaiting *awaiting);

/* For the mover: whether a thread is waiting for the block. */
bool gs_block_awaited_locked(const struct gs_block *block);

/*
 * Holds each block of that context (NULL: of any context) and calls visit. Blocks may be added and destroyed meanwhile.
 */
void gs_blocks_visit(struct gs_device *device, CUcontext context, void (*visit)(struct gs_block *, void *),
                     void *argument);

/*
 * Makes the block unevictable: it stays on the GPU for good. The caller is inside the gate. CUDA_ERROR_OUT_OF_MEMORY:
 * the block has no memory after all. CUDA_ERROR_NOT_READY: another thread was moving or holding the block, and
 * gs_memory_lock was released until that may have ended. Then the block may have been destroyed: look it up again.
 */
CUresult gs_block_make_unevictable_locked(struct gs_block *block);

void gs_blocks_after_fork(void);

#endif

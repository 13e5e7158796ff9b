/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * This process's device memory: what is allocated. What of it is on the GPU is the mover's business (mover.h).
 *
 * Memory comes in blocks: ranges of addresses that stay reserved until the last byte of them is freed. A block consists
 * of pieces, which are what moves. A piece is EMPTY (nothing was ever written to it, no memory behind it), RESIDENT or
 * SWAPPED. Large allocations have a block of their own; small ones share slabs.
 *
 * Who may change what: application threads add and remove allocations and blocks at any time, and give new pieces
 * memory while they are inside the gate under a lease. The helper thread moves pieces, one block at a time (`moving`);
 * a block whose last allocation is freed meanwhile is `doomed`, and the helper destroys it. No lock is held while bytes
 * are copied, so that a free never waits for a move.
 */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_memory_view;

/* --- For the hooks; only while gs_session_attached(). --- */

CUresult gs_memory_alloc(CUdeviceptr *pointer, size_t size);

/* The same for a pool: what remains once the context ends is the device's, and can be used in its other contexts. */
CUresult gs_memory_alloc_of_pool(CUdeviceptr *pointer, size_t size);

/* CUDA_ERROR_NOT_FOUND if the address is not the start of an allocation of ours. */
CUresult gs_memory_free(CUdeviceptr pointer);

/* The same once the work that is in `stream` now is done. */
CUresult gs_memory_free_async(CUdeviceptr pointer, CUstream stream, bool per_thread);

/* Gives back what was freed so and is due by now. */
void gs_memory_reap(void);

/* Whether there may be any; costs one load. */
bool gs_memory_has_freed(void);

bool gs_memory_find(CUdeviceptr address, struct gs_memory_view *view);

/* Whether an allocation of ours has a byte in that range. */
bool gs_memory_any(CUdeviceptr address, size_t size);

/* What cuMemGetInfo is to say: this process has the whole GPU. `total` comes in as the device's. */
CUresult gs_memory_info(size_t *available, size_t *total);

/*
 * Makes what is at these addresses stay on the GPU for good, for somebody else will hold it: waits for the lease, and
 * counts it as unevictable. What is not ours is left alone.
 */
CUresult gs_memory_pin_range(CUdeviceptr address, size_t size);

struct gs_block;

/*
 * Calls use(block, offset, argument) with the block of the allocation that begins at `base`, provided that its id is
 * the one given. The block does not move or go meanwhile. False: there is none.
 */
bool gs_memory_with_block(CUdeviceptr base, uint64_t id, void (*use)(struct gs_block *, size_t, void *),
                          void *argument);

/* Waits for the work that may use the context's memory, unless a capture is open, which that would break off. */
void gs_memory_await_work(CUcontext context);

/* The streams of a green context end, with what was to be freed in their order. */
void gs_memory_streams_end(CUcontext context);

/*
 * All that was allocated in that context goes, as the driver does it; the context may live on (reset). gone(address) is
 * called for each allocation. Memory of pools stays, and belongs to another context of the device: if there is none, to
 * the next that begins.
 */
void gs_memory_context_ends(CUcontext context, void (*gone)(CUdeviceptr));
void gs_memory_context_begins(CUcontext context, CUdevice ordinal);

/* --- For the client and the mover; only the helper thread, with nothing under way. --- */

/*
 * What was allocated in contexts that have failed since loses its memory without a copy; nobody can use it any more.
 * True if there was such a context.
 */
bool gs_memory_drop_failed(void);

void gs_memory_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The device memory that this process has allocated. The mover (mover.h) decides what is on the GPU.
 *
 * Memory consists of blocks: ranges of addresses that stay reserved until their last byte is freed. A block consists of
 * pieces, which are the units that move. A piece is EMPTY (never written, no memory behind it), RESIDENT or SWAPPED.
 * Large allocations have a block of their own. Small ones share slabs.
 *
 * Application threads add and remove allocations and blocks at any time. They give new pieces memory while they are
 * inside the gate under a lease. The helper thread moves pieces, one block at a time (`moving`). A block whose last
 * allocation is freed meanwhile is `doomed`, and the helper destroys it. No lock is held while bytes are copied, so
 * that a free never waits for a move.
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

/*
 * For a pool: the allocation belongs to the device. It outlives its context, and other contexts of the device can use
 * it.
 */
CUresult gs_memory_alloc_of_pool(CUdeviceptr *pointer, size_t size);

/* CUDA_ERROR_NOT_FOUND if the address is not the start of one of this process's allocations. */
CUresult gs_memory_free(CUdeviceptr pointer);

/* Frees once the work that is in `stream` now is done. */
CUresult gs_memory_free_async(CUdeviceptr pointer, CUstream stream, bool per_thread);

/* Frees the memory of allocations in the queue of frees that are due by now. */
void gs_memory_reap(void);

/* Whether that queue may have entries; costs one load. */
bool gs_memory_has_freed(void);

bool gs_memory_find(CUdeviceptr address, struct gs_memory_view *view);

/* Whether an allocation overlaps that range. */
bool gs_memory_any(CUdeviceptr address, size_t size);

/* The figures for cuMemGetInfo, which show the whole GPU to this process. On entry, `total` is the device's. */
CUresult gs_memory_info(size_t *available, size_t *total);

/*
 * Makes the memory in a range unevictable, because another process or the driver will hold it. Waits for the lease.
 * Ignores memory that the interposer does not manage.
 */
CUresult gs_memory_make_unevictable(CUdeviceptr address, size_t size);

struct gs_block;

/*
 * Calls use(block, offset, argument) with the block of the allocation that begins at `base` and has that id. The block
 * is neither moved nor destroyed meanwhile. False: there is no such allocation.
 */
bool gs_memory_with_block(CUdeviceptr base, uint64_t id, void (*use)(struct gs_block *, size_t, void *),
                          void *argument);

/* Waits for the work that may use the context's memory, unless a capture is open, which waiting would invalidate. */
void gs_memory_await_work(CUcontext context);

/* The streams of a green context end, together with the frees in their order. */
void gs_memory_streams_end(CUcontext context);

/*
 * Removes everything that was allocated in that context, as the driver does; the context may live on (reset). Calls
 * gone(address) for each allocation. Memory of pools stays, and is assigned to another context of the device, or to the
 * next one that begins.
 */
void gs_memory_context_ends(CUcontext context, void (*gone)(CUdeviceptr));
void gs_memory_context_begins(CUcontext context, CUdevice ordinal);

/* --- For the client and the mover: only the helper thread, while nothing is moving. --- */

/*
 * Drops, without a copy, the memory of contexts that have failed, because it cannot be used any more. True if there was
 * such a context.
 */
bool gs_memory_drop_failed(void);

void gs_memory_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Host memory for evicted data: chunks of the user's pool (pool.h), page-locked, not copied by fork.
 *
 * A piece is a list of extents. Each extent lies within one registration, so that one call can copy it. The scheduler's
 * PREPARE sets how much is page-locked in advance and how much stays page-locked for the next move.
 */
#ifndef GPUSHARE_MEMORY_HOST_H
#define GPUSHARE_MEMORY_HOST_H

#include "driver.h"

#include <stddef.h>
#include <stdint.h>

struct gs_host_extent {
    void *address;
    size_t bytes;
};

struct gs_host_piece;

/*
 * Offers the scheduler's pool and this process's slot in it. Takes ownership of the descriptor; -1 means that the
 * scheduler has no pool. Then a private pool of the same layout is created when it is needed. If the pool is the
 * current one, it stays. Of an earlier pool, the chunks in use stay until they are free.
 */
void gs_host_offer(int fd, uint32_t slot);

/* Takes host memory, page-locking it if necessary. Needs a current context. NULL: no room now. */
struct gs_host_piece *gs_host_take(size_t bytes);

/* Memory stays page-locked up to the number of bytes set by gs_host_prepare. The rest is unlocked in the background. */
void gs_host_return(struct gs_host_piece *piece);

/* Returns the number of extents. Together, in this order, they have the piece's bytes. */
unsigned gs_host_extents(const struct gs_host_piece *piece, const struct gs_host_extent **extents);

/* Bytes of the chunks that this process owns. */
uint64_t gs_host_bytes(void);

/* The host memory that evicted data of all processes may use together. */
uint64_t gs_host_limit(void);

/* Bytes that had to be page-locked during a move since the process began. */
uint64_t gs_host_page_locked_late(void);

/* Has that many bytes page-locked, in use or free, by a thread of low priority. */
void gs_host_prepare(uint64_t bytes, CUcontext context);

/* Drops the page-locks that were made in a context. Call it before or after the context ends. */
void gs_host_context_ends(CUcontext context);

/* After a checkpoint, repeats the page-locks that the driver may have lost. */
void gs_host_restored(void);

void gs_host_after_fork(void);

#endif

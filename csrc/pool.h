/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pool of host memory for evicted data. There is one for each user and scheduler, lent to that user's clients.
 *
 * A pool is a memfd. It belongs to the scheduler, or to the client itself if no scheduler provides one. It contains
 * struct gpushare_pool and, from `data_offset` on, `chunk_count` chunks of GPUSHARE_POOL_CHUNK bytes. Chunks are
 * claimed and returned by compare-and-swap on the owner, without a request to the scheduler. The scheduler knows the
 * slot of each client. When a client's process is dead, the scheduler cleans up its slot. The end of its connection is
 * not enough, because the client may reconnect.
 *
 * - Only its owner may access a chunk or discard its pages. To page-lock or unlock a free chunk in advance, a client
 *   claims it meanwhile.
 * - `page_locked_by` has a bit for each slot that has the chunk page-locked (registered with its driver), or is about
 *   to lock it. Pages of a chunk with a bit must not be freed, because the page-lock would still refer to the old
 *   pages. So a client that has set its bit, and then finds that another client owns the chunk, may also page-lock it.
 * - `limit`: chunks from this index on must not be claimed any more (the budget has shrunk). Chunks in use stay in use.
 * - `prepared`: the chunk's pages exist, so that page-locking does not have to create them.
 * - `prepared_only`: clients must not claim other chunks. Pages count towards the control group that created them. If
 *   that group has a limit, its processes may be killed for them. In that case the scheduler creates all pages.
 *
 * Python reads the struct through cffi and changes it through the functions below. All of them are atomic.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define GPUSHARE_POOL_MAGIC 0x67707570
/* The version of this layout. Clients of all protocol versions share a pool, so it is independent of theirs. */
#define GPUSHARE_POOL_VERSION 6
#define GPUSHARE_POOL_CHUNK 16777216
#define GPUSHARE_POOL_MOST_CHUNKS 131072
#define GPUSHARE_POOL_SLOTS 64
/*
 * Owners: 0 means no owner; slot + 1 is a client; this value is the scheduler, while it prepares a chunk or frees its
 * pages.
 */
#define GPUSHARE_POOL_SCHEDULER 255

struct gpushare_pool_chunk {
    uint64_t page_locked_by;
    uint32_t owner;
    uint32_t prepared;
};

struct gpushare_pool {
    uint32_t magic;
    uint32_t version; /* GPUSHARE_POOL_VERSION */
    uint64_t data_offset;
    uint32_t chunk_count;
    uint32_t limit;
    uint32_t prepared_only;
    uint32_t reserved;
    struct gpushare_pool_chunk chunks[]; /* chunk_count of them */
};

static inline bool gpushare_pool_claim(struct gpushare_pool_chunk *chunk, uint32_t owner)
{
    uint32_t no_owner = 0;
    return __atomic_load_n(&chunk->owner, __ATOMIC_RELAXED) == 0 &&
           __atomic_compare_exchange_n(&chunk->owner, &no_owner, owner, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static inline void gpushare_pool_return(struct gpushare_pool_chunk *chunk)
{
    __atomic_store_n(&chunk->owner, 0, __ATOMIC_RELEASE);
}

static inline uint32_t gpushare_pool_owner(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->owner, __ATOMIC_RELAXED);
}

static inline void gpushare_pool_set_page_locked(struct gpushare_pool_chunk *chunk, uint32_t slot, bool page_locked)
{
    uint64_t bit = UINT64_C(1) << slot;
    if (page_locked)
        __atomic_or_fetch(&chunk->page_locked_by, bit, __ATOMIC_SEQ_CST);
    else
        __atomic_and_fetch(&chunk->page_locked_by, ~bit, __ATOMIC_RELEASE);
}

static inline uint64_t gpushare_pool_page_locked_by(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->page_locked_by, __ATOMIC_SEQ_CST);
}

/*
 * Sets this client's bit for a chunk that another client owns. False, without the bit, if no client owns it any more.
 */
static inline bool gpushare_pool_join(struct gpushare_pool_chunk *chunk, uint32_t slot)
{
    gpushare_pool_set_page_locked(chunk, slot, true);
    /*
     * Code that frees pages first claims the chunk and then checks the bits. So at least one of the two sides sees the
     * other.
     */
    uint32_t owner = __atomic_load_n(&chunk->owner, __ATOMIC_SEQ_CST);
    if (owner != 0 && owner != GPUSHARE_POOL_SCHEDULER)
        return true;
    gpushare_pool_set_page_locked(chunk, slot, false);
    return false;
}

static inline void gpushare_pool_set_prepared(struct gpushare_pool_chunk *chunk, bool prepared)
{
    __atomic_store_n(&chunk->prepared, prepared, __ATOMIC_RELEASE);
}

static inline bool gpushare_pool_is_prepared(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->prepared, __ATOMIC_ACQUIRE) != 0;
}

#endif

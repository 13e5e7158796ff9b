/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pool of host memory for swapped data: one for each user and scheduler, lent to that user's clients.
 *
 * A pool is a memfd (of the scheduler; of the client itself where no scheduler gives one): struct gpushare_pool, then
 * from `data_offset` on `chunk_count` chunks of GPUSHARE_POOL_CHUNK bytes. Chunks are claimed and returned without
 * asking anybody, by compare-and-swap on the owner; so a client that dies is cleaned up after by the scheduler, which
 * knows its slot, once the process is seen dead (not when its connection ends: it may come back).
 *
 * - Only its owner may touch or zap a chunk. To pin or unpin a free one ahead of need, a client claims it meanwhile.
 * - `page_locked_by` has a bit for each slot that has the chunk page-locked (registered with its driver), or is about
 * to. What has a bit must not be given back to the system: the pin would go on to mean the old pages. So who has set
 * its bit and then finds that another client owns the chunk may pin it beside that one.
 * - `limit`: chunks from this index on are not to be claimed any more (the budget fell). Chunks in use stay in use.
 * - `prepared`: the chunk's pages exist, so that pinning it does not have to find them.
 * - `prepared_only`: clients are to claim no others. Pages count as those of the control group that made them, and one
 *   that has a limit may have its processes killed for them: then the scheduler makes them all.
 *
 * Python reads the struct through cffi and changes it through the functions below: all of them atomic.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define GPUSHARE_POOL_MAGIC 0x67707570
/* Of this layout. Clients of all versions of the protocol share a pool, so it is another number than theirs. */
#define GPUSHARE_POOL_VERSION 6
#define GPUSHARE_POOL_CHUNK 16777216
#define GPUSHARE_POOL_MOST_CHUNKS 131072
#define GPUSHARE_POOL_SLOTS 64
/* Owners: 0 nobody, slot + 1 a client, this one the scheduler (while it prepares a chunk or gives it back). */
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
    uint32_t nobody = 0;
    return __atomic_load_n(&chunk->owner, __ATOMIC_RELAXED) == 0 &&
           __atomic_compare_exchange_n(&chunk->owner, &nobody, owner, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
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

/* Set our bit for a chunk that another client owns; false, and no bit, where none does any more. */
static inline bool gpushare_pool_join(struct gpushare_pool_chunk *chunk, uint32_t slot)
{
    gpushare_pool_set_page_locked(chunk, slot, true);
    /* Who gives pages back claims the chunk first and looks at the bits then: one of the two sees the other. */
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

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pool of host memory for swapped data: one for each user and scheduler, lent to that user's clients.
 *
 * A pool is a memfd (of the scheduler; of the client itself where no scheduler gives one): struct gpushare_pool, then
 * from `data_offset` on `chunk_count` chunks of GPUSHARE_POOL_CHUNK bytes. Chunks are claimed and returned without
 * asking anybody, by compare-and-swap on the owner; so a client that dies is cleaned up after by the scheduler, which
 * knows its slot, once the process is seen dead (not when its connection ends: it may come back).
 *
 * - Only its owner may touch, pin, unpin or zap a chunk. To pin one ahead of need, a client claims it for that moment.
 * - `pinned_by` has a bit for each slot that has the chunk page-locked (registered with its driver). The pages of a
 *   chunk that anybody has pinned must not be given back to the system: the pin would go on to mean the old pages.
 * - `limit`: chunks from this index on are not to be claimed any more (the budget fell). Chunks in use stay in use.
 * - `prepared`: the chunk's pages exist, so that pinning it does not have to find them.
 *
 * Python reads the struct through cffi and changes it through the functions below: all of them atomic.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define GPUSHARE_POOL_MAGIC 0x67707570
#define GPUSHARE_POOL_CHUNK 16777216
#define GPUSHARE_POOL_MOST_CHUNKS 131072
#define GPUSHARE_POOL_SLOTS 64
/* Owners: 0 nobody, slot + 1 a client, this one the scheduler (while it prepares a chunk or gives it back). */
#define GPUSHARE_POOL_SCHEDULER 255

struct gpushare_pool_chunk {
    uint64_t pinned_by;
    uint32_t owner;
    uint32_t prepared;
};

struct gpushare_pool {
    uint32_t magic;
    uint32_t version; /* GPUSHARE_PROTOCOL_VERSION */
    uint64_t data_offset;
    uint32_t chunk_count;
    uint32_t limit;
    struct gpushare_pool_chunk chunks[]; /* chunk_count of them */
};

static inline bool gpushare_pool_claim(struct gpushare_pool_chunk *chunk, uint32_t owner)
{
    uint32_t nobody = 0;
    return __atomic_load_n(&chunk->owner, __ATOMIC_RELAXED) == 0 &&
           __atomic_compare_exchange_n(&chunk->owner, &nobody, owner, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void gpushare_pool_return(struct gpushare_pool_chunk *chunk)
{
    __atomic_store_n(&chunk->owner, 0, __ATOMIC_RELEASE);
}

static inline uint32_t gpushare_pool_owner(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->owner, __ATOMIC_RELAXED);
}

static inline void gpushare_pool_set_pinned(struct gpushare_pool_chunk *chunk, uint32_t slot, bool pinned)
{
    uint64_t bit = UINT64_C(1) << slot;
    if (pinned)
        __atomic_or_fetch(&chunk->pinned_by, bit, __ATOMIC_RELEASE);
    else
        __atomic_and_fetch(&chunk->pinned_by, ~bit, __ATOMIC_RELEASE);
}

static inline uint64_t gpushare_pool_pinned_by(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->pinned_by, __ATOMIC_ACQUIRE);
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

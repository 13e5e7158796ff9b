/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The directory of a pool (pool.h): finds a unit by the digest of its content.
 *
 * It is a hash table of unit numbers in buckets. Several processes write it without a lock, so an entry is only a hint:
 * the unit may have another content by now. Entries may also be missing. Then equal data is stored twice, which is no
 * error.
 */
#ifndef GPUSHARE_POOL_DIRECTORY_H
#define GPUSHARE_POOL_DIRECTORY_H

#include <stddef.h>

#include "pool.h"

/* The directory as one process has mapped it. Its size is not read from memory that clients can write to. */
struct gpushare_pool_directory {
    struct gpushare_pool *pool;
    uint32_t *entries;
    uint64_t buckets;
    uint32_t chunk_count;
};

/* The number of buckets for that many chunks, with twice as many entries as there are units. */
static inline uint64_t gpushare_pool_directory_buckets(uint32_t chunk_count)
{
    uint64_t buckets = 1;
    while (buckets * GPUSHARE_POOL_BUCKET < (uint64_t)chunk_count * GPUSHARE_POOL_UNITS * 2)
        buckets *= 2;
    return buckets;
}

static inline uint64_t gpushare_pool_directory_offset(uint32_t chunk_count)
{
    return sizeof(struct gpushare_pool) + (uint64_t)chunk_count * sizeof(struct gpushare_pool_chunk);
}

/* Where the data begins. */
static inline uint64_t gpushare_pool_data_offset(uint32_t chunk_count)
{
    uint64_t entries = gpushare_pool_directory_buckets(chunk_count) * GPUSHARE_POOL_BUCKET;
    uint64_t end = gpushare_pool_directory_offset(chunk_count) + entries * sizeof(uint32_t);
    return (end + GPUSHARE_POOL_UNIT - 1) / GPUSHARE_POOL_UNIT * GPUSHARE_POOL_UNIT;
}

static inline uint32_t *gpushare_pool_bucket(const struct gpushare_pool_directory *directory, uint64_t first_word)
{
    return directory->entries + (first_word & (directory->buckets - 1)) * GPUSHARE_POOL_BUCKET;
}

/*
 * Returns the unit of entry `e` in the bucket of that digest, if the unit has the digest: chunk * GPUSHARE_POOL_UNITS +
 * unit. Otherwise returns -1. The digest has to be compared again once the unit is held.
 */
static inline int64_t gpushare_pool_directory_find(const struct gpushare_pool_directory *directory,
                                                   const uint64_t *digest, unsigned e)
{
    uint32_t entry = __atomic_load_n(&gpushare_pool_bucket(directory, digest[0])[e], __ATOMIC_ACQUIRE);
    uint32_t chunk = (entry - 1) / GPUSHARE_POOL_UNITS, unit = (entry - 1) % GPUSHARE_POOL_UNITS;
    if (entry == 0 || chunk >= directory->chunk_count ||
        !gpushare_pool_matches(&directory->pool->chunks[chunk], unit, digest))
        return -1;
    return entry - 1;
}

/* Whether an entry of the bucket still belongs there. */
static inline bool gpushare_pool_directory_leads(const struct gpushare_pool_directory *directory,
                                                 const uint32_t *bucket, uint32_t entry)
{
    uint32_t chunk = (entry - 1) / GPUSHARE_POOL_UNITS, unit = (entry - 1) % GPUSHARE_POOL_UNITS;
    if (entry == 0 || chunk >= directory->chunk_count)
        return false;
    const struct gpushare_pool_chunk *of = &directory->pool->chunks[chunk];
    uint64_t first_word = __atomic_load_n(&of->units[unit].digest[0], __ATOMIC_RELAXED);
    return gpushare_pool_used_at(of, unit) != 0 && gpushare_pool_bucket(directory, first_word) == bucket;
}

/*
 * Enters a unit of which the caller is a user. Takes the place of an entry that does not belong there any more, or else
 * of any.
 */
static inline void gpushare_pool_directory_add(const struct gpushare_pool_directory *directory, const uint64_t *digest,
                                               uint32_t number)
{
    uint32_t *bucket = gpushare_pool_bucket(directory, digest[0]);
    uint32_t *place = NULL;
    for (unsigned e = 0; e < GPUSHARE_POOL_BUCKET; e++) {
        uint32_t entry = __atomic_load_n(&bucket[e], __ATOMIC_RELAXED);
        if (entry == number + 1)
            return;
        if (place == NULL && !gpushare_pool_directory_leads(directory, bucket, entry))
            place = &bucket[e];
    }
    if (place == NULL)
        place = &bucket[digest[1] % GPUSHARE_POOL_BUCKET];
    __atomic_store_n(place, number + 1, __ATOMIC_RELEASE);
}

#endif

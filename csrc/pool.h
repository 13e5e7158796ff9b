/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pool of host memory for evicted data. There is one for each user and scheduler, lent to that user's clients.
 *
 * A pool is a memfd. It belongs to the scheduler, or to the client itself if no scheduler provides one. It contains
 * struct gpushare_pool, the directory (pool_directory.h) and, from `data_offset` on, `chunk_count` chunks of
 * GPUSHARE_POOL_CHUNK bytes. A chunk has GPUSHARE_POOL_UNITS units: a unit contains data of one place of GPU memory, or
 * of several with equal contents. The scheduler knows the slot of each client. When a client's process is dead, the
 * scheduler cleans up its slot. The end of its connection is not enough, because the client may reconnect.
 *
 * Units are claimed, shared and released by atomic operations on `users`, without a request to the scheduler. A client
 * may be killed between any two of them.
 *
 * - A bit of `users` for each slot: this unit is the client's only copy of some data.
 * - GPUSHARE_POOL_EXCLUSIVE: a client with its bit is writing the unit, or the scheduler, which has no bit, is making
 *   or freeing pages. No other bit is set meanwhile.
 * - While any bit is set without EXCLUSIVE, the content does not change.
 * - A unit without users that has a digest is a kept copy. Every client may claim it, but until then its data can be
 *   held again. `generation` shows whether it was claimed meanwhile.
 *
 * The pages of a chunk:
 *
 * - `page_locked_by` has a bit for each slot that has the chunk page-locked (registered with its driver), or is about
 *   to lock it. Pages of a chunk with a bit must not be freed, because the page-lock would still refer to the old
 *   pages.
 * - Pages are freed by a process that has claimed all units, and has then found no such bit.
 * - `prepared`: the chunk's pages exist, so that page-locking does not have to create them.
 * - `limit`: units of chunks from this index on must not be claimed or held again (the budget has shrunk). Units in use
 *   stay in use.
 * - `prepared_only`: clients must not claim units of other chunks. Pages count towards the control group that created
 *   them. If that group has a limit, its processes may be killed for them. In that case the scheduler creates all
 *   pages.
 *
 * Where the data of a chunk is (`place`):
 *
 * - The scheduler may move chunks to a file on a disk and back (pool_disk.h). Their pages do not exist meanwhile, but
 *   their units keep their users, generations and digests.
 * - A client sets its word of `moving` before it claims or holds units, and until it reads and writes none any more.
 *   The scheduler moves no chunk that has a user which is moving.
 * - Units of a chunk that is not in memory cannot be claimed or held. A client that needs to read one waits.
 *
 * Python reads the structs through cffi and changes them through the functions below. All of them are atomic.
 */
#ifndef GPUSHARE_POOL_H
#define GPUSHARE_POOL_H

#include <stdbool.h>
#include <stdint.h>

#define GPUSHARE_POOL_MAGIC 0x67707570
/* The version of this layout. Clients of all protocol versions share a pool, so it is independent of theirs. */
#define GPUSHARE_POOL_VERSION 7
#define GPUSHARE_POOL_UNIT 2097152
#define GPUSHARE_POOL_UNITS 8
#define GPUSHARE_POOL_CHUNK 16777216
#define GPUSHARE_POOL_MOST_CHUNKS 131072
#define GPUSHARE_POOL_SLOTS 63
#define GPUSHARE_POOL_EXCLUSIVE 0x8000000000000000
/*
 * Places of a chunk. Clients use it in MEMORY and GOING; while it is GOING, they end their page-locks, so that it can
 * leave. LEAVING: it is being written to the disk. COMING: it is being read. LOST: it is on the disk, and the last
 * attempt to read it has failed.
 */
#define GPUSHARE_POOL_MEMORY 0
#define GPUSHARE_POOL_GOING 1
#define GPUSHARE_POOL_LEAVING 2
#define GPUSHARE_POOL_DISK 3
#define GPUSHARE_POOL_COMING 4
#define GPUSHARE_POOL_LOST 5
/* An entry of the directory has the number of a unit, plus 1; 0 is no unit. A bucket is a cache line. */
#define GPUSHARE_POOL_BUCKET 16

struct gpushare_pool_unit {
    uint64_t generation; /* rises when the content is about to change */
    uint64_t digest[4];  /* of the content, while `used_at` is not 0 */
};

/* The first members are for searches, which look at many chunks. */
struct gpushare_pool_chunk {
    uint64_t users[GPUSHARE_POOL_UNITS];
    uint64_t page_locked_by;
    uint32_t prepared;
    uint32_t place;
    /* When the unit was last released (gpushare_pool_clock's time). 0: it has no digest, and no data to keep. */
    uint32_t used_at[GPUSHARE_POOL_UNITS];
    uint64_t pad_line[2];
    struct gpushare_pool_unit units[GPUSHARE_POOL_UNITS];
};

struct gpushare_pool {
    uint32_t magic;
    uint32_t version; /* GPUSHARE_POOL_VERSION */
    uint64_t data_offset;
    uint64_t directory_offset;
    uint64_t directory_buckets; /* a power of two; 0: there is no directory */
    uint32_t chunk_count;
    uint32_t limit;
    uint32_t prepared_only;
    uint32_t disk_beat;                  /* rises at least every second while data on the disk can be read */
    uint64_t key[4];                     /* random: the key of all digests in this pool */
    uint64_t pad_end[6];                 /* chunks begin at a cache line */
    uint32_t moving[64];                 /* by slot */
    struct gpushare_pool_chunk chunks[]; /* chunk_count of them */
};

/* The time for `used_at`, of CLOCK_MONOTONIC in nanoseconds: never 0, and good for years. */
static inline uint32_t gpushare_pool_clock(uint64_t now_ns)
{
    return (uint32_t)(now_ns / 100000000) + 1;
}

/* The bit of a client. The scheduler has none, and is 0 in the functions below. */
static inline uint64_t gpushare_pool_user(uint32_t slot)
{
    return UINT64_C(1) << slot;
}

static inline uint64_t gpushare_pool_users(const struct gpushare_pool_chunk *chunk, uint32_t unit)
{
    return __atomic_load_n(&chunk->users[unit], __ATOMIC_ACQUIRE);
}

static inline uint64_t gpushare_pool_generation(const struct gpushare_pool_chunk *chunk, uint32_t unit)
{
    return __atomic_load_n(&chunk->units[unit].generation, __ATOMIC_RELAXED);
}

static inline uint32_t gpushare_pool_used_at(const struct gpushare_pool_chunk *chunk, uint32_t unit)
{
    return __atomic_load_n(&chunk->used_at[unit], __ATOMIC_RELAXED);
}

static inline uint32_t gpushare_pool_place(const struct gpushare_pool_chunk *chunk)
{
    return __atomic_load_n(&chunk->place, __ATOMIC_SEQ_CST);
}

static inline bool gpushare_pool_in_memory(const struct gpushare_pool_chunk *chunk)
{
    return gpushare_pool_place(chunk) <= GPUSHARE_POOL_GOING;
}

/* A client begins, or ends, to use the contents of units. */
static inline void gpushare_pool_set_moving(struct gpushare_pool *pool, uint32_t slot, bool moving)
{
    __atomic_store_n(&pool->moving[slot], moving, __ATOMIC_SEQ_CST);
}

/* Ends the claim of a unit. */
static inline void gpushare_pool_unclaim(struct gpushare_pool_chunk *chunk, uint32_t unit)
{
    __atomic_store_n(&chunk->users[unit], 0, __ATOMIC_RELEASE);
}

/* False if it has users, or is not in memory. Its content is as it was. */
static inline bool gpushare_pool_claim(struct gpushare_pool_chunk *chunk, uint32_t unit, uint64_t user)
{
    uint64_t none = 0;
    if (__atomic_load_n(&chunk->users[unit], __ATOMIC_RELAXED) != 0 ||
        !__atomic_compare_exchange_n(&chunk->users[unit], &none, GPUSHARE_POOL_EXCLUSIVE | user, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return false;
    /* The scheduler first sets the place and then looks at the users, so at least one side sees the other. */
    if (gpushare_pool_in_memory(chunk))
        return true;
    gpushare_pool_unclaim(chunk, unit);
    return false;
}

/* Called for a claimed unit before its content changes. */
static inline void gpushare_pool_spoil(struct gpushare_pool_chunk *chunk, uint32_t unit)
{
    __atomic_store_n(&chunk->used_at[unit], 0, __ATOMIC_RELAXED);
    __atomic_add_fetch(&chunk->units[unit].generation, 1, __ATOMIC_RELEASE);
}

/* The content of a claimed unit is complete. `digest`: NULL if it is not known; then no copy is kept. `now`: not 0. */
static inline void gpushare_pool_publish(struct gpushare_pool_chunk *chunk, uint32_t unit, uint64_t user,
                                         const uint64_t *digest, uint32_t now)
{
    for (unsigned i = 0; i < 4 && digest != 0; i++)
        __atomic_store_n(&chunk->units[unit].digest[i], digest[i], __ATOMIC_RELAXED);
    __atomic_store_n(&chunk->used_at[unit], digest != 0 ? now : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&chunk->users[unit], user, __ATOMIC_RELEASE);
}

/* Whether the unit has that digest. Final only for a user of the unit. */
static inline bool gpushare_pool_matches(const struct gpushare_pool_chunk *chunk, uint32_t unit, const uint64_t *digest)
{
    bool equal = gpushare_pool_used_at(chunk, unit) != 0;
    for (unsigned i = 0; i < 4; i++)
        equal = equal && __atomic_load_n(&chunk->units[unit].digest[i], __ATOMIC_RELAXED) == digest[i];
    return equal;
}

/* Adds a user, if nobody is writing the unit and it is in memory. */
static inline bool gpushare_pool_hold(struct gpushare_pool_chunk *chunk, uint32_t unit, uint64_t user)
{
    uint64_t users = gpushare_pool_users(chunk, unit);
    do
        if (users & GPUSHARE_POOL_EXCLUSIVE)
            return false;
    while (!__atomic_compare_exchange_n(&chunk->users[unit], &users, users | user, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
    if (gpushare_pool_in_memory(chunk))
        return true;
    if (!(users & user))
        __atomic_and_fetch(&chunk->users[unit], ~user, __ATOMIC_RELEASE);
    return false;
}

/* Removes a user that is not writing the unit. `now`: not 0. */
static inline void gpushare_pool_release(struct gpushare_pool_chunk *chunk, uint32_t unit, uint64_t user, uint32_t now)
{
    if (gpushare_pool_used_at(chunk, unit) != 0)
        __atomic_store_n(&chunk->used_at[unit], now, __ATOMIC_RELAXED);
    __atomic_and_fetch(&chunk->users[unit], ~user, __ATOMIC_RELEASE);
}

/* Claims all units. False: no unit is claimed. */
static inline bool gpushare_pool_claim_chunk(struct gpushare_pool_chunk *chunk, uint64_t user)
{
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++) {
        if (gpushare_pool_claim(chunk, unit, user))
            continue;
        while (unit-- > 0)
            gpushare_pool_unclaim(chunk, unit);
        return false;
    }
    return true;
}

static inline void gpushare_pool_unclaim_chunk(struct gpushare_pool_chunk *chunk)
{
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        gpushare_pool_unclaim(chunk, unit);
}

static inline void gpushare_pool_spoil_chunk(struct gpushare_pool_chunk *chunk)
{
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        gpushare_pool_spoil(chunk, unit);
}

/* The clients that use units of the chunk. */
static inline uint64_t gpushare_pool_chunk_users(const struct gpushare_pool_chunk *chunk)
{
    uint64_t users = 0;
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        users |= gpushare_pool_users(chunk, unit);
    return users & ~GPUSHARE_POOL_EXCLUSIVE;
}

/* When a kept copy in the chunk was last used; 0: it has none. */
static inline uint32_t gpushare_pool_chunk_used_at(const struct gpushare_pool_chunk *chunk)
{
    uint32_t used_at = 0;
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        if (gpushare_pool_used_at(chunk, unit) > used_at)
            used_at = gpushare_pool_used_at(chunk, unit);
    return used_at;
}

static inline void gpushare_pool_set_page_locked(struct gpushare_pool_chunk *chunk, uint32_t slot, bool page_locked)
{
    uint64_t bit = gpushare_pool_user(slot);
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
 * Sets this client's bit, so that it may page-lock the chunk. False, without the bit, while the pages are changed, and
 * if the chunk is to leave memory.
 */
static inline bool gpushare_pool_begin_page_lock(struct gpushare_pool_chunk *chunk, uint32_t slot)
{
    gpushare_pool_set_page_locked(chunk, slot, true);
    /*
     * Code that frees pages first claims all units, or sets the place, and then checks the bits. So at least one of the
     * two sides sees the other.
     */
    bool stays = gpushare_pool_place(chunk) == GPUSHARE_POOL_MEMORY;
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        stays = stays && __atomic_load_n(&chunk->users[unit], __ATOMIC_SEQ_CST) != GPUSHARE_POOL_EXCLUSIVE;
    if (!stays)
        gpushare_pool_set_page_locked(chunk, slot, false);
    return stays;
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

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How chunks of a pool (pool.h) move to a file on a disk and back. The file mirrors the pool: a chunk has the same
 * position among the chunks of both. Only one thread of one process calls these functions: the scheduler's, or its
 * helper's after the scheduler's end.
 *
 *     MEMORY -> GOING     gpushare_pool_mark_going     clients end their page-locks
 *     GOING -> LEAVING    gpushare_pool_begin_leaving  no user is moving
 *     LEAVING -> DISK     gpushare_pool_end_leaving    written, and the pages are freed
 *     DISK -> COMING      gpushare_pool_begin_coming   also from LOST
 *     COMING -> MEMORY    gpushare_pool_end_coming     read; or LOST
 *
 * Sets of clients are sets of bits of `users`.
 */
#ifndef GPUSHARE_POOL_DISK_H
#define GPUSHARE_POOL_DISK_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool.h"
#include "pool_care.h"

static inline void gpushare_pool_set_place(struct gpushare_pool_chunk *chunk, uint32_t place)
{
    __atomic_store_n(&chunk->place, place, __ATOMIC_SEQ_CST);
}

/* The clients that are moving data. */
static inline uint64_t gpushare_pool_moving(const struct gpushare_pool_care *care)
{
    uint64_t moving = 0;
    for (uint32_t slot = 0; slot < GPUSHARE_POOL_SLOTS; slot++)
        if (__atomic_load_n(&care->pool->moving[slot], __ATOMIC_SEQ_CST) != 0)
            moving |= gpushare_pool_user(slot);
    return moving;
}

/* Shows clients that data on the disk can be read. */
static inline void gpushare_pool_beat(const struct gpushare_pool_care *care)
{
    __atomic_add_fetch(&care->pool->disk_beat, 1, __ATOMIC_RELAXED);
}

/* Counts, for each slot, the units that are not in memory. */
static inline void gpushare_pool_count_on_disk(const struct gpushare_pool_care *care, uint32_t *units)
{
    for (uint32_t slot = 0; slot < GPUSHARE_POOL_SLOTS; slot++)
        units[slot] = 0;
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        const struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_place(chunk) < GPUSHARE_POOL_DISK)
            continue;
        for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
            for (uint64_t users = gpushare_pool_users(chunk, unit) & ~GPUSHARE_POOL_EXCLUSIVE; users != 0;
                 users &= users - 1)
                units[__builtin_ctzll(users)]++;
    }
}

/* Whether a chunk has users, all of whom are in `may`. */
static inline bool gpushare_pool_may_leave(const struct gpushare_pool_chunk *chunk, uint64_t may)
{
    uint64_t users = 0;
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++)
        users |= __atomic_load_n(&chunk->users[unit], __ATOMIC_SEQ_CST);
    return users != 0 && (users & ~may) == 0; /* EXCLUSIVE is never in `may` */
}

/* Takes back the marks of chunks that may not leave any more. Returns the number of the other marked chunks. */
static inline uint32_t gpushare_pool_review_going(const struct gpushare_pool_care *care, uint64_t may)
{
    uint32_t going = 0;
    may &= ~gpushare_pool_moving(care);
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_place(chunk) != GPUSHARE_POOL_GOING)
            continue;
        if (gpushare_pool_may_leave(chunk, may))
            going++;
        else
            gpushare_pool_set_place(chunk, GPUSHARE_POOL_MEMORY);
    }
    return going;
}

/* Marks up to `most` chunks that a client in `first` uses, and that may leave. Returns their number. */
static inline uint32_t gpushare_pool_mark_going(const struct gpushare_pool_care *care, uint64_t first, uint64_t may,
                                                uint32_t most)
{
    uint32_t marked = 0;
    may &= ~gpushare_pool_moving(care);
    for (uint32_t i = 0; i < care->chunk_count && marked < most; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_place(chunk) != GPUSHARE_POOL_MEMORY || !(gpushare_pool_chunk_users(chunk) & first) ||
            !gpushare_pool_may_leave(chunk, may))
            continue;
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_GOING);
        marked++;
    }
    return marked;
}

/* Whether any chunk may leave memory. */
static inline bool gpushare_pool_can_leave(const struct gpushare_pool_care *care, uint64_t may)
{
    may &= ~gpushare_pool_moving(care);
    for (uint32_t i = 0; i < care->chunk_count; i++)
        if (gpushare_pool_place(&care->pool->chunks[i]) <= GPUSHARE_POOL_LEAVING &&
            gpushare_pool_may_leave(&care->pool->chunks[i], may))
            return true;
    return false;
}

/* Gives up the copies that are kept in a chunk. False if clients are taking them up. */
static inline bool gpushare_pool_spoil_kept(struct gpushare_pool_chunk *chunk)
{
    for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++) {
        uint64_t none = 0;
        if (gpushare_pool_users(chunk, unit) != 0)
            continue;
        if (!__atomic_compare_exchange_n(&chunk->users[unit], &none, GPUSHARE_POOL_EXCLUSIVE, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_RELAXED))
            return false;
        gpushare_pool_spoil(chunk, unit);
        gpushare_pool_unclaim(chunk, unit);
    }
    return true;
}

/*
 * The next marked chunk from `from` on that a client in `first` uses and that is not page-locked is LEAVING now.
 * Returns its index, or -1.
 */
static inline int64_t gpushare_pool_begin_leaving(const struct gpushare_pool_care *care, uint64_t first, uint64_t may,
                                                  uint32_t from)
{
    for (uint32_t i = from; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_place(chunk) != GPUSHARE_POOL_GOING || !(gpushare_pool_chunk_users(chunk) & first) ||
            gpushare_pool_page_locked_by(chunk) != 0)
            continue;
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_LEAVING);
        if (gpushare_pool_may_leave(chunk, may & ~gpushare_pool_moving(care)) &&
            gpushare_pool_page_locked_by(chunk) == 0 && gpushare_pool_spoil_kept(chunk))
            return i;
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_MEMORY);
    }
    return -1;
}

/*
 * The write of a chunk has ended. False if the chunk is in memory again: `written` is false, or clients use it again,
 * or none does any more. `fd`: the pool.
 */
static inline bool gpushare_pool_end_leaving(const struct gpushare_pool_care *care, int fd, uint32_t index,
                                             bool written)
{
    struct gpushare_pool_chunk *chunk = &care->pool->chunks[index];
    if (!written || !gpushare_pool_may_leave(chunk, ~GPUSHARE_POOL_EXCLUSIVE & ~gpushare_pool_moving(care))) {
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_MEMORY);
        return false;
    }
    off_t offset = (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK);
    gpushare_pool_set_prepared(chunk, false);
    gpushare_pool_set_place(chunk, GPUSHARE_POOL_DISK);
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK);
    return true;
}

/* The next chunk on the disk from `from` on that a client in `whose` uses is COMING now. Returns its index, or -1. */
static inline int64_t gpushare_pool_begin_coming(const struct gpushare_pool_care *care, uint64_t whose, uint32_t from)
{
    for (uint32_t i = from; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (!gpushare_pool_on_disk(chunk) || !(gpushare_pool_chunk_users(chunk) & whose))
            continue;
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_COMING);
        return i;
    }
    return -1;
}

/* The read of a chunk has ended. If it has failed, the chunk is LOST until it is read. `fd`: the pool. */
static inline void gpushare_pool_end_coming(const struct gpushare_pool_care *care, int fd, uint32_t index, bool read)
{
    struct gpushare_pool_chunk *chunk = &care->pool->chunks[index];
    off_t offset = (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK);
    gpushare_pool_set_prepared(chunk, read);
    if (!read)
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK);
    gpushare_pool_set_place(chunk, read ? GPUSHARE_POOL_MEMORY : GPUSHARE_POOL_LOST);
}

/*
 * The next chunk on the disk from `from` on that no client uses is an empty one in memory now. Returns its index, so
 * that its part of the file can be freed, or -1.
 */
static inline int64_t gpushare_pool_drop_unused(const struct gpushare_pool_care *care, uint32_t from)
{
    for (uint32_t i = from; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (!gpushare_pool_on_disk(chunk) || gpushare_pool_chunk_users(chunk) != 0)
            continue;
        /* Nobody can hold or claim a unit that is not in memory. */
        gpushare_pool_spoil_chunk(chunk);
        gpushare_pool_set_place(chunk, GPUSHARE_POOL_MEMORY);
        return i;
    }
    return -1;
}

/* After the scheduler's end: what it was writing is in memory, and what it was reading is on the disk. */
static inline void gpushare_pool_settle(const struct gpushare_pool_care *care)
{
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        uint32_t place = gpushare_pool_place(chunk);
        if (place == GPUSHARE_POOL_GOING || place == GPUSHARE_POOL_LEAVING)
            gpushare_pool_set_place(chunk, GPUSHARE_POOL_MEMORY);
        else if (place == GPUSHARE_POOL_COMING)
            gpushare_pool_set_place(chunk, GPUSHARE_POOL_DISK);
    }
}

/* Frees a chunk's part of the file. */
static inline bool gpushare_pool_punch_file(int file, uint32_t index)
{
    off_t offset = (off_t)index * GPUSHARE_POOL_CHUNK;
    return fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK) == 0;
}

/* Creates a chunk's pages, large ones if possible, before it is read. False if there are none. `fd`: the pool. */
static inline bool gpushare_pool_make_pages(const struct gpushare_pool_care *care, int fd, uint32_t index,
                                            uint32_t *small)
{
    return gpushare_pool_prepare(fd, (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK), small);
}

#endif

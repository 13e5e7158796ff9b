/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the scheduler does with a pool (pool.h): reads its figures, cleans up, and finds chunks to prepare or to free.
 * This is C and not Python, because a pool has thousands of chunks. Python calls these functions through cffi, which
 * releases Python's lock meanwhile. They include Linux's fallocate, which Python's `os` supports only in part.
 */
#ifndef GPUSHARE_POOL_CARE_H
#define GPUSHARE_POOL_CARE_H

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "pool.h"
#include "pool_pages.h"

/* If work could not be done, it is tried again after this time: chunks become free without notice. */
#define GPUSHARE_POOL_PAUSE_MS 500

/*
 * Numbers of chunks: in memory with units that clients use; with existing pages, and of these, unused; page-locked by
 * any client; and on the disk with units that clients use. Numbers of units: kept copies; and users beyond the first,
 * which need no memory of their own.
 */
struct gpushare_pool_figures {
    uint32_t in_use;
    uint32_t prepared;
    uint32_t spare;
    uint32_t page_locked;
    uint32_t on_disk;
    uint32_t kept;
    uint32_t shared;
};

/* A pool as its owner knows it. Its size is not read from memory that clients can write to. */
struct gpushare_pool_care {
    struct gpushare_pool *pool;
    uint64_t data_offset;
    uint32_t chunk_count;
};

/* Whether the chunk's pages do not exist because its data is on the disk. A chunk that is being read has pages. */
static inline bool gpushare_pool_on_disk(const struct gpushare_pool_chunk *chunk)
{
    uint32_t place = gpushare_pool_place(chunk);
    return place == GPUSHARE_POOL_DISK || place == GPUSHARE_POOL_LOST;
}

/* Whether clients use units of the chunk, and it takes memory. */
static inline bool gpushare_pool_takes_memory(const struct gpushare_pool_chunk *chunk)
{
    return !gpushare_pool_on_disk(chunk) && gpushare_pool_chunk_users(chunk) != 0;
}

static inline void gpushare_pool_survey(const struct gpushare_pool_care *care, struct gpushare_pool_figures *figures)
{
    *figures = (struct gpushare_pool_figures){0};
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        const struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        bool prepared = gpushare_pool_is_prepared(chunk), used = false;
        if (gpushare_pool_on_disk(chunk)) {
            figures->on_disk += gpushare_pool_chunk_users(chunk) != 0;
            continue;
        }
        for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++) {
            uint64_t users = gpushare_pool_users(chunk, unit) & ~GPUSHARE_POOL_EXCLUSIVE;
            used = used || users != 0;
            if (users != 0)
                figures->shared += (uint32_t)__builtin_popcountll(users) - 1;
            else
                figures->kept += gpushare_pool_used_at(chunk, unit) != 0;
        }
        figures->in_use += used;
        figures->prepared += prepared || used;
        figures->spare += prepared && !used;
        figures->page_locked += gpushare_pool_page_locked_by(chunk) != 0;
    }
}

/*
 * Sets the limit so that the chunks below it, and those in use beyond it, are `budget` chunks together. Chunks on the
 * disk do not count.
 */
static inline void gpushare_pool_set_limit(const struct gpushare_pool_care *care, uint32_t budget)
{
    uint32_t limit = care->chunk_count, taken = 0;
    for (uint32_t i = 0; i < care->chunk_count; i++)
        taken += !gpushare_pool_on_disk(&care->pool->chunks[i]);
    while (limit > 0 && taken > budget) {
        const struct gpushare_pool_chunk *chunk = &care->pool->chunks[--limit];
        taken -= !gpushare_pool_on_disk(chunk) && gpushare_pool_chunk_users(chunk) == 0;
    }
    __atomic_store_n(&care->pool->limit, limit, __ATOMIC_RELEASE);
}

/*
 * The process of this slot is dead: it uses and page-locks nothing any more. Copies that it kept stay. The pages of its
 * chunks exist, even if it had not recorded that.
 */
static inline void gpushare_pool_sweep(const struct gpushare_pool_care *care, uint32_t slot, uint32_t now)
{
    uint64_t user = gpushare_pool_user(slot);
    gpushare_pool_set_moving(care->pool, slot, false);
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_page_locked_by(chunk) & user)
            gpushare_pool_set_page_locked(chunk, slot, false);
        if (gpushare_pool_in_memory(chunk) && (gpushare_pool_chunk_users(chunk) & user))
            gpushare_pool_set_prepared(chunk, true);
        for (uint32_t unit = 0; unit < GPUSHARE_POOL_UNITS; unit++) {
            uint64_t users = gpushare_pool_users(chunk, unit);
            if (users == (GPUSHARE_POOL_EXCLUSIVE | user)) {
                gpushare_pool_spoil(chunk, unit);
                gpushare_pool_unclaim(chunk, unit);
            } else if (users & user) {
                gpushare_pool_release(chunk, unit, user, now);
            }
        }
    }
}

/* Claims the first free chunk without pages. Returns its index, or -1. */
static inline int64_t gpushare_pool_claim_bare(const struct gpushare_pool_care *care)
{
    uint32_t limit = __atomic_load_n(&care->pool->limit, __ATOMIC_ACQUIRE);
    if (limit > care->chunk_count)
        limit = care->chunk_count;
    for (uint32_t i = 0; i < limit; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_is_prepared(chunk) || !gpushare_pool_claim_chunk(chunk, 0))
            continue;
        if (!gpushare_pool_is_prepared(chunk))
            return i;
        gpushare_pool_unclaim_chunk(chunk);
    }
    return -1;
}

/* Claims a free chunk whose pages exist and that no client has page-locked. */
static inline bool gpushare_pool_claim_to_free(struct gpushare_pool_chunk *chunk)
{
    if (!gpushare_pool_is_prepared(chunk) || gpushare_pool_page_locked_by(chunk) != 0 ||
        !gpushare_pool_claim_chunk(chunk, 0))
        return false;
    if (gpushare_pool_is_prepared(chunk) && gpushare_pool_page_locked_by(chunk) == 0)
        return true;
    gpushare_pool_unclaim_chunk(chunk);
    return false;
}

/*
 * Claims the last of the chunks that gpushare_pool_claim_to_free can claim and that have no kept copies. If there are
 * only others, and `kept` is true, claims the least recently used one. Returns its index, or -1.
 */
static inline int64_t gpushare_pool_claim_spare(const struct gpushare_pool_care *care, bool kept)
{
    int64_t oldest = -1;
    uint32_t oldest_used_at = 0, limit = __atomic_load_n(&care->pool->limit, __ATOMIC_ACQUIRE);
    for (uint32_t i = care->chunk_count; i-- > 0;) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (!gpushare_pool_is_prepared(chunk) || gpushare_pool_page_locked_by(chunk) != 0)
            continue;
        /* Copies beyond the limit cannot be used any more. */
        bool useless = kept && i >= limit;
        uint32_t used_at = useless ? 0 : gpushare_pool_chunk_used_at(chunk);
        if (used_at == 0 && gpushare_pool_claim_to_free(chunk)) {
            if (useless || gpushare_pool_chunk_used_at(chunk) == 0)
                return i;
            gpushare_pool_unclaim_chunk(chunk);
        } else if (used_at != 0 && (oldest < 0 || used_at < oldest_used_at) && gpushare_pool_chunk_users(chunk) == 0) {
            oldest = i;
            oldest_used_at = used_at;
        }
    }
    return kept && oldest >= 0 && gpushare_pool_claim_to_free(&care->pool->chunks[oldest]) ? oldest : -1;
}

/* Frees the pages of a claimed chunk. */
static inline bool gpushare_pool_free_pages(const struct gpushare_pool_care *care, int fd, uint32_t index)
{
    off_t offset = (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK);
    gpushare_pool_spoil_chunk(&care->pool->chunks[index]);
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK) == 0;
}

/*
 * Frees pages of unused chunks that are not recorded as prepared. Only a misbehaving client causes them. Returns their
 * number.
 */
static inline uint32_t gpushare_pool_trim(const struct gpushare_pool_care *care, int fd)
{
    uint32_t trimmed = 0;
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_is_prepared(chunk) || !gpushare_pool_claim_chunk(chunk, 0))
            continue;
        off_t offset = (off_t)(care->data_offset + (uint64_t)i * GPUSHARE_POOL_CHUNK);
        /* A client that is page-locking it has not recorded the pages yet. */
        bool may = !gpushare_pool_is_prepared(chunk) && gpushare_pool_page_locked_by(chunk) == 0;
        off_t data = may ? lseek(fd, offset, SEEK_DATA) : -1;
        if (data >= offset && data < offset + GPUSHARE_POOL_CHUNK)
            trimmed += gpushare_pool_free_pages(care, fd, i);
        gpushare_pool_unclaim_chunk(chunk);
    }
    return trimmed;
}

/* What the thread that tends a pool should do. Other threads set these fields. */
struct gpushare_pool_orders {
    uint32_t target; /* number of chunks whose pages should exist, in use or not */
    uint32_t most;   /* and the upper limit, as far as pages can be freed that contain no kept copies */
    uint32_t kept;   /* and the same with kept copies */
    uint32_t ahead;  /* how many unused ones among them there should be at least */
    uint32_t stop;
};

static inline uint32_t gpushare_pool_order(const uint32_t *order)
{
    return __atomic_load_n(order, __ATOMIC_ACQUIRE);
}

/* Does the work for one chunk. False if there is none, or if it cannot be done now. */
static inline bool gpushare_pool_tend_one(const struct gpushare_pool_care *care, int fd,
                                          const struct gpushare_pool_orders *orders, uint32_t *small)
{
    struct gpushare_pool_figures figures;
    gpushare_pool_survey(care, &figures);
    int64_t index = -1;
    bool prepare =
        figures.prepared < gpushare_pool_order(&orders->target) || figures.spare < gpushare_pool_order(&orders->ahead);
    if (prepare) {
        index = gpushare_pool_claim_bare(care);
    } else if (figures.prepared > gpushare_pool_order(&orders->most)) {
        index = gpushare_pool_claim_spare(care, figures.prepared > gpushare_pool_order(&orders->kept));
    }
    if (index < 0)
        return false;
    struct gpushare_pool_chunk *chunk = &care->pool->chunks[index];
    off_t offset = (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK);
    bool done =
        prepare ? gpushare_pool_prepare(fd, offset, small) : gpushare_pool_free_pages(care, fd, (uint32_t)index);
    if (done)
        gpushare_pool_set_prepared(chunk, prepare);
    gpushare_pool_unclaim_chunk(chunk);
    return done;
}

/*
 * Tends a pool until told to stop; `wake` is an eventfd that is written after each change of the orders. One call
 * serves for the thread's whole life, without Python's lock. The thread has a low priority, so busy processes could
 * keep it from running while it held that lock. That would block the whole scheduler.
 */
static inline void gpushare_pool_tend(const struct gpushare_pool_care *care, int fd, int wake,
                                      const struct gpushare_pool_orders *orders)
{
    uint32_t small = 0;
    while (!gpushare_pool_order(&orders->stop)) {
        if (gpushare_pool_tend_one(care, fd, orders, &small))
            continue;
        struct pollfd woken = {.fd = wake, .events = POLLIN};
        eventfd_t count;
        if (poll(&woken, 1, GPUSHARE_POOL_PAUSE_MS) > 0)
            eventfd_read(wake, &count);
    }
}

#endif

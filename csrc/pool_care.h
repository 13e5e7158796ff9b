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

/* Numbers of chunks: owned by clients; with existing pages, and of these, unused; and page-locked by any client. */
struct gpushare_pool_figures {
    uint32_t in_use;
    uint32_t prepared;
    uint32_t spare;
    uint32_t page_locked;
};

/* A pool as its owner knows it. Its size is not read from memory that clients can write to. */
struct gpushare_pool_care {
    struct gpushare_pool *pool;
    uint64_t data_offset;
    uint32_t chunk_count;
};

static inline void gpushare_pool_survey(const struct gpushare_pool_care *care, struct gpushare_pool_figures *figures)
{
    *figures = (struct gpushare_pool_figures){0};
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        const struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        uint32_t owner = gpushare_pool_owner(chunk);
        bool used = owner != 0 && owner != GPUSHARE_POOL_SCHEDULER;
        bool prepared = gpushare_pool_is_prepared(chunk);
        figures->in_use += used;
        figures->prepared += prepared || used;
        figures->spare += prepared && !used;
        figures->page_locked += gpushare_pool_page_locked_by(chunk) != 0;
    }
}

/* Sets the limit so that the chunks below it, and those in use beyond it, are `budget` chunks together. */
static inline void gpushare_pool_set_limit(const struct gpushare_pool_care *care, uint32_t budget)
{
    uint32_t beyond = 0;
    uint32_t limit = care->chunk_count;
    while (limit > 0 && limit + beyond > budget) {
        limit--;
        uint32_t owner = gpushare_pool_owner(&care->pool->chunks[limit]);
        beyond += owner != 0 && owner != GPUSHARE_POOL_SCHEDULER;
    }
    __atomic_store_n(&care->pool->limit, limit, __ATOMIC_RELEASE);
}

/*
 * The process of this slot is dead: it owns and page-locks nothing any more. The pages of its chunks exist, even if it
 * had not recorded that.
 */
static inline void gpushare_pool_sweep(const struct gpushare_pool_care *care, uint32_t slot)
{
    for (uint32_t i = 0; i < care->chunk_count; i++) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (gpushare_pool_page_locked_by(chunk) & UINT64_C(1) << slot)
            gpushare_pool_set_page_locked(chunk, slot, false);
        if (gpushare_pool_owner(chunk) == slot + 1) {
            gpushare_pool_set_prepared(chunk, true);
            gpushare_pool_return(chunk);
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
        if (gpushare_pool_is_prepared(chunk) || !gpushare_pool_claim(chunk, GPUSHARE_POOL_SCHEDULER))
            continue;
        if (!gpushare_pool_is_prepared(chunk))
            return i;
        gpushare_pool_return(chunk);
    }
    return -1;
}

/* Claims the last free chunk whose pages exist and that no client has page-locked. Returns its index, or -1. */
static inline int64_t gpushare_pool_claim_spare(const struct gpushare_pool_care *care)
{
    for (uint32_t i = care->chunk_count; i-- > 0;) {
        struct gpushare_pool_chunk *chunk = &care->pool->chunks[i];
        if (!gpushare_pool_is_prepared(chunk) || gpushare_pool_page_locked_by(chunk) != 0 ||
            !gpushare_pool_claim(chunk, GPUSHARE_POOL_SCHEDULER))
            continue;
        if (gpushare_pool_is_prepared(chunk) && gpushare_pool_page_locked_by(chunk) == 0)
            return i;
        gpushare_pool_return(chunk);
    }
    return -1;
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
        if (gpushare_pool_is_prepared(chunk) || !gpushare_pool_claim(chunk, GPUSHARE_POOL_SCHEDULER))
            continue;
        off_t offset = (off_t)(care->data_offset + (uint64_t)i * GPUSHARE_POOL_CHUNK);
        off_t data = gpushare_pool_is_prepared(chunk) ? -1 : lseek(fd, offset, SEEK_DATA);
        if (data >= offset && data < offset + GPUSHARE_POOL_CHUNK)
            trimmed += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK) == 0;
        gpushare_pool_return(chunk);
    }
    return trimmed;
}

/* What the thread that tends a pool should do. Other threads set these fields. */
struct gpushare_pool_orders {
    uint32_t target; /* number of chunks whose pages should exist, in use or not */
    uint32_t most;   /* and the upper limit, as far as pages can be freed */
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
        index = gpushare_pool_claim_spare(care);
    }
    if (index < 0)
        return false;
    struct gpushare_pool_chunk *chunk = &care->pool->chunks[index];
    off_t offset = (off_t)(care->data_offset + (uint64_t)index * GPUSHARE_POOL_CHUNK);
    bool done = prepare ? gpushare_pool_prepare(fd, offset, small)
                        : fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, GPUSHARE_POOL_CHUNK) == 0;
    if (done)
        gpushare_pool_set_prepared(chunk, prepare);
    gpushare_pool_return(chunk);
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

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One lock guards everything. This process claims and releases units of the shared table under it, but other processes
 * do so at any time. The driver is called without it, except in gs_host_context_ends.
 *
 * Creating pages and page-locking them take longer than copying (55 GB/s), so both are done in advance. Measured on the
 * host of an NVIDIA H200:
 *
 * - populating new pages: 2.6 GB/s by 1 thread, 5.6 by 4;
 * - populating pages that exist: 3.5 GB/s by 1 thread, 12 by 4, 9 by 16;
 * - page-locking after that: 21 to 28 GB/s;
 * - page-locking pages that exist but are not populated: 3 GB/s, all of it in the driver.
 *
 * Therefore each chunk is populated before it is page-locked (host_crew.c). A thread that page-locks in a loop slows
 * down the process's launches. Therefore chunks are small, and while the application computes there is a pause after
 * each.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory/host.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "loader/real.h"
#include "memory/host_ahead.h"
#include "memory/host_crew.h"
#include "memory/host_place.h"
#include "memory/host_pool.h"
#include "memory/host_state.h"
#include "memory/staging.h"
#include "pool.h"
#include "protocol.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* Less than this is page-locked sooner than the ring of staging.h is made. */
static const uint64_t least_staged = UINT64_C(128) << 20;

/* --- Pools --- */

static void make_present_locked(struct gs_host_pool *pool)
{
    pool->next = gs_host.pools;
    gs_host.pools = pool;
    gpushare_pool_set_moving(pool->shared, pool->slot, gs_host.moving != 0);
    gs_host_wake_thread(); /* unused chunks of the earlier pool are released */
}

void gs_host_offer(int fd, uint32_t slot)
{
    struct stat file;
    bool offered = fd >= 0 && syscall(SYS_fstat, fd, &file) == 0;
    gs_mutex_lock(&gs_host.lock);
    struct gs_host_pool **link = &gs_host.pools;
    while (*link != NULL &&
           (offered ? (*link)->own || (*link)->device != file.st_dev || (*link)->inode != file.st_ino : !(*link)->own))
        link = &(*link)->next;
    struct gs_host_pool *pool = *link;
    if (pool != NULL)
        *link = pool->next;
    else if (offered)
        pool = gs_host_pool_map(fd, &file, slot);
    if (pool == NULL && gs_host.pools != NULL && !gs_host.pools->own)
        pool = gs_host_pool_make(); /* no more units are claimed from the earlier scheduler's pool */
    if (pool != NULL)
        make_present_locked(pool);
    gs_mutex_unlock(&gs_host.lock);
    if (fd >= 0)
        close(fd);
}

bool gs_host_key(uint64_t key[4], uint64_t *serial)
{
    gs_mutex_lock(&gs_host.lock);
    const struct gs_host_pool *pool = gs_host_present_locked();
    bool found = pool != NULL && pool->directory.buckets != 0;
    if (found) {
        memcpy(key, pool->shared->key, sizeof(pool->shared->key));
        *serial = pool->serial;
    }
    gs_mutex_unlock(&gs_host.lock);
    return found;
}

/* --- Records --- */

struct gs_host_record *gs_host_record_new(size_t bytes)
{
    size_t count = (bytes + GS_HOST_UNIT - 1) / GS_HOST_UNIT;
    struct gs_host_record *record = calloc(1, sizeof(*record) + count * sizeof(record->units[0]));
    if (record != NULL) {
        record->bytes = bytes;
        record->count = (unsigned)count;
    }
    return record;
}

/* The record's units are of the present pool from now on. */
static void enter_pool_locked(struct gs_host_record *record, struct gs_host_pool *pool)
{
    if (record->serial != pool->serial)
        gs_host_forget_locked(record);
    record->pool = pool;
    record->serial = pool->serial;
    record->needs = true;
    pool->records++;
}

static void leave_pool_locked(struct gs_host_record *record)
{
    gs_host_release_locked(record);
    record->needs = false;
    record->pool->records--;
    gs_host.last_move_ns = gs_now_ns();
    gs_host_wake_thread();
}

/*
 * The chunks that the thread has claimed for page-locking are free again soon. While memory is being taken, it claims
 * no more. The lock is released during the wait; the record keeps its pool.
 */
static bool place_locked(struct gs_host_record *record)
{
    while (!gs_host_place(record)) {
        if (gs_host.working_in == NULL)
            return false;
        gs_cond_wait(&gs_host.changed, &gs_host.lock);
    }
    return true;
}

bool gs_host_take(struct gs_host_record *record, const struct gs_host_digests *digests, struct gs_host_summary *summary)
{
    CUcontext context = NULL;
    GS_REAL(cuCtxGetCurrent)(&context);
    gs_mutex_lock(&gs_host.lock);
    struct gs_host_pool *pool = gs_host_present_locked();
    if (pool == NULL) {
        gs_mutex_unlock(&gs_host.lock);
        return false;
    }
    enter_pool_locked(record, pool);
    if (gs_host.context == NULL)
        gs_host.context = context;
    gs_host.taking++;
    gs_host_match(record, digests->pool == pool->serial ? digests->of_units : NULL, summary);
    bool taken = place_locked(record) && gs_host_crew_complete(record, GS_UNIT_WRITING, context);
    gs_host.taking--;
    gs_host.last_move_ns = gs_now_ns();
    if (!taken) {
        /* Threads may still be working on chunks that are given back here, and the next try needs them. */
        gs_host_crew_settle();
        leave_pool_locked(record);
    }
    gs_mutex_unlock(&gs_host.lock);
    return taken;
}

void gs_host_expect(uint64_t bytes, CUcontext context)
{
    uint64_t chunks = bytes / GPUSHARE_POOL_CHUNK;
    gs_mutex_lock(&gs_host.lock);
    gs_host.taking++;
    if (chunks != 0 && gs_host_present_locked() != NULL)
        gs_host_crew_begin_order(gs_host_present_locked(), chunks, context);
    gs_mutex_unlock(&gs_host.lock);
}

void gs_host_expect_no_more(void)
{
    gs_mutex_lock(&gs_host.lock);
    gs_host_crew_end_order();
    gs_host.taking--;
    gs_host.last_move_ns = gs_now_ns();
    gs_host_wake_thread();
    gs_mutex_unlock(&gs_host.lock);
}

void gs_host_publish(struct gs_host_record *record, const struct gs_host_digests *digests)
{
    gs_mutex_lock(&gs_host.lock);
    gs_host_publish_locked(record, digests->pool == record->serial ? digests->of_units : NULL);
    gs_host.last_move_ns = gs_now_ns();
    gs_mutex_unlock(&gs_host.lock);
}

static bool is_bare_locked(const struct gs_host_record *record)
{
    bool bare = false;
    for (unsigned u = 0; u < record->count; u++)
        bare = bare || (record->units[u].state == GS_UNIT_NEEDED &&
                        record->pool->chunks[record->units[u].number / GS_HOST_UNITS].bare);
    return bare;
}

void gs_host_prepare_reading(struct gs_host_record *record)
{
    CUcontext context = NULL;
    GS_REAL(cuCtxGetCurrent)(&context);
    gs_mutex_lock(&gs_host.lock);
    gs_host.taking++;
    uint64_t bare = is_bare_locked(record) ? (uint64_t)record->pool->bare * GPUSHARE_POOL_CHUNK : 0;
    gs_mutex_unlock(&gs_host.lock);
    bool staged = bare != 0 && (gs_staging_is_ready() || (bare >= least_staged && gs_staging_begin(bare)));
    gs_mutex_lock(&gs_host.lock);
    if (bare != 0 && !staged)
        gs_host_crew_complete(record, GS_UNIT_NEEDED, context);
    gs_host.taking--;
    gs_host.last_move_ns = gs_now_ns();
    gs_mutex_unlock(&gs_host.lock);
}

/* A copy to the record's units may have failed. Nothing writes them any more. */
static void end_writing(const struct gs_host_record *record)
{
    bool writing = false;
    for (unsigned u = 0; u < record->count; u++)
        writing = writing || record->units[u].state == GS_UNIT_WRITING;
    if (writing)
        gs_staging_cancel(record);
}

void gs_host_release(struct gs_host_record *record)
{
    end_writing(record);
    gs_mutex_lock(&gs_host.lock);
    if (record->needs)
        leave_pool_locked(record);
    gs_mutex_unlock(&gs_host.lock);
}

void gs_host_record_free(struct gs_host_record *record)
{
    end_writing(record);
    gs_mutex_lock(&gs_host.lock);
    if (record->needs)
        leave_pool_locked(record);
    gs_host_forget_locked(record);
    gs_mutex_unlock(&gs_host.lock);
    free(record);
}

unsigned gs_host_known(const struct gs_host_record *record)
{
    unsigned known = 0;
    gs_mutex_lock(&gs_host.lock);
    const struct gs_host_pool *pool = gs_host_pool_of(record);
    for (unsigned u = 0; u < record->count; u++) {
        const struct gs_host_unit *unit = &record->units[u];
        known +=
            unit->state == GS_UNIT_ZERO || (unit->state == GS_UNIT_KEPT && pool != NULL &&
                                            gpushare_pool_used_at(&pool->shared->chunks[unit->number / GS_HOST_UNITS],
                                                                  unit->number % GS_HOST_UNITS) != 0);
    }
    gs_mutex_unlock(&gs_host.lock);
    return known;
}

uint64_t gs_host_needed(const struct gs_host_record *record)
{
    uint64_t bytes = 0;
    for (unsigned u = 0; u < record->count; u++)
        if (record->units[u].state == GS_UNIT_NEEDED)
            bytes += u + 1 < record->count ? GS_HOST_UNIT : record->bytes - (size_t)u * GS_HOST_UNIT;
    return bytes;
}

bool gs_host_next(const struct gs_host_record *record, bool reading, unsigned *next, struct gs_host_extent *extent)
{
    const struct gs_host_unit *units = record->units;
    unsigned u = *next;
    while (u < record->count && !reading && units[u].state != GS_UNIT_WRITING)
        u++;
    if (u == record->count)
        return false;
    unsigned first = u;
    bool zero = units[u].state == GS_UNIT_ZERO;
    do
        u++;
    while (u < record->count && units[u].state == units[first].state &&
           (zero || (units[u].number == units[u - 1].number + 1 && units[u].number % GS_HOST_UNITS != 0)));
    *next = u;
    extent->offset = (size_t)first * GS_HOST_UNIT;
    extent->bytes = (u < record->count ? (size_t)u * GS_HOST_UNIT : record->bytes) - extent->offset;
    extent->address = NULL;
    extent->page_locked = false;
    if (!zero) {
        extent->address = record->pool->data + (size_t)units[first].number * GS_HOST_UNIT;
        gs_mutex_lock(&gs_host.lock);
        const struct gs_host_chunk *chunk = &record->pool->chunks[units[first].number / GS_HOST_UNITS];
        gs_host_crew_await(chunk);
        extent->page_locked = chunk->page_locked_in != NULL;
        gs_mutex_unlock(&gs_host.lock);
    }
    return true;
}

uint64_t gs_host_bytes(void)
{
    return __atomic_load_n(&gs_host.bytes, __ATOMIC_RELAXED);
}

uint64_t gs_host_shared(void)
{
    return __atomic_load_n(&gs_host.shared, __ATOMIC_RELAXED);
}

void gs_host_count_shared(void)
{
    uint64_t units = 0;
    gs_mutex_lock(&gs_host.lock);
    for (const struct gs_host_pool *pool = gs_host.pools; pool != NULL && gs_host_bytes() != 0; pool = pool->next)
        for (uint32_t i = 0; i < pool->count && !pool->own; i++)
            for (unsigned unit = 0; unit < GS_HOST_UNITS && pool->chunks[i].used != 0; unit++)
                units += (pool->chunks[i].used >> unit & 1) &&
                         (gpushare_pool_users(&pool->shared->chunks[i], unit) & ~GPUSHARE_POOL_EXCLUSIVE) != pool->user;
    __atomic_store_n(&gs_host.shared, units * GS_HOST_UNIT, __ATOMIC_RELAXED);
    gs_mutex_unlock(&gs_host.lock);
}

uint64_t gs_host_limit(void)
{
    gs_mutex_lock(&gs_host.lock);
    const struct gs_host_pool *pool = gs_host.pools;
    uint64_t bytes = pool != NULL ? (uint64_t)gs_host_pool_limit(pool) * GPUSHARE_POOL_CHUNK : 0;
    gs_mutex_unlock(&gs_host.lock);
    struct sysinfo system;
    if (pool == NULL && sysinfo(&system) == 0)
        bytes = (uint64_t)system.totalram * system.mem_unit;
    return bytes;
}

uint64_t gs_host_page_locked_late(void)
{
    return __atomic_load_n(&gs_host.page_locked_late, __ATOMIC_RELAXED);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/host_disk.h"

#include "base/clock.h"
#include "base/lock.h"
#include "memory/host_ahead.h"
#include "memory/host_pool.h"
#include "memory/host_state.h"
#include "pool.h"

#include <stdbool.h>
#include <stdint.h>

/* The scheduler, or its helper after the scheduler's end, beats every second. */
static const uint64_t silence_ns = 10000 * GS_MILLISECOND;

static void set_moving_locked(void)
{
    for (struct gs_host_pool *pool = gs_host.pools; pool != NULL; pool = pool->next)
        gpushare_pool_set_moving(pool->shared, pool->slot, gs_host.moving != 0);
}

void gs_host_begin_moving(void)
{
    gs_mutex_lock(&gs_host.lock);
    if (gs_host.moving++ == 0)
        set_moving_locked();
    /* The thread may be ending the page-locks of chunks that were to leave. */
    while (gs_host.working_in != NULL && gs_host.unlocking)
        gs_cond_wait(&gs_host.changed, &gs_host.lock);
    gs_mutex_unlock(&gs_host.lock);
}

void gs_host_end_moving(void)
{
    gs_mutex_lock(&gs_host.lock);
    if (--gs_host.moving == 0) {
        set_moving_locked();
        /* Without page-locks it does not look again, and now there may be some to end. */
        if (gs_host.pools != NULL)
            gs_host_wake_thread();
    }
    gs_mutex_unlock(&gs_host.lock);
}

static bool is_silent(struct gs_host_pool *pool)
{
    uint32_t beat = __atomic_load_n(&pool->shared->disk_beat, __ATOMIC_RELAXED);
    uint64_t now = gs_now_ns();
    /* After a long time without a question, the clock starts again. */
    if (pool->beat != beat || now - pool->beat_seen > silence_ns / 2) {
        pool->beat = beat;
        pool->beat_since = now;
    }
    pool->beat_seen = now;
    return now - pool->beat_since > silence_ns;
}

enum gs_host_where gs_host_where(const struct gs_host_record *record)
{
    struct gs_host_pool *pool = record->pool;
    enum gs_host_where where = GS_HOST_HERE;
    for (unsigned u = 0; u < record->count && where != GS_HOST_FAILS; u++) {
        const struct gs_host_unit *unit = &record->units[u];
        if (unit->state != GS_UNIT_NEEDED)
            continue;
        const struct gpushare_pool_chunk *chunk = &pool->shared->chunks[unit->number / GS_HOST_UNITS];
        uint32_t place = gpushare_pool_place(chunk);
        if (place == GPUSHARE_POOL_LOST)
            where = GS_HOST_FAILS;
        else if (place > GPUSHARE_POOL_GOING)
            where = GS_HOST_COMES;
    }
    return where == GS_HOST_COMES && is_silent(pool) ? GS_HOST_FAILS : where;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/host_state.h"

#include "base/print.h"
#include "pool.h"

struct gs_host gs_host = {.lock = GS_MUTEX(GS_RANK_HOST)};

struct gs_host_pool *gs_host_present_locked(void)
{
    if (gs_host.pools == NULL && (gs_host.pools = gs_host_pool_make()) != NULL)
        gpushare_pool_set_moving(gs_host.pools->shared, gs_host.pools->slot, gs_host.moving != 0);
    return gs_host.pools;
}

void gs_host_record_page_lock_locked(struct gs_host_pool *pool, uint32_t i, CUcontext context)
{
    gpushare_pool_set_page_locked(&pool->shared->chunks[i], pool->slot, context != NULL);
    pool->page_locked += (context != NULL) - (pool->chunks[i].page_locked_in != NULL);
    pool->chunks[i].page_locked_in = context;
    gs_host_pool_count_bare(pool, &pool->chunks[i]);
}

bool gs_host_page_lock_has_ended(CUresult result)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

void gs_host_record_unlock_locked(struct gs_host_pool *pool, uint32_t i, CUresult result)
{
    struct gs_host_chunk *chunk = &pool->chunks[i];
    if (gs_host_page_lock_has_ended(result)) {
        gs_host_record_page_lock_locked(pool, i, NULL);
        return;
    }
    /* The bit in the pool stays, so that neither the scheduler nor another process frees the pages. */
    chunk->stays_locked = true;
    pool->page_locked -= chunk->page_locked_in != NULL;
    chunk->page_locked_in = NULL;
    gs_host_pool_count_bare(pool, chunk);
}

void gs_host_print_refused_locked(CUresult result)
{
    /* In a process that is exiting, the driver refuses every call. */
    if (result == CUDA_ERROR_DEINITIALIZED)
        return;
    if (!gs_host.printed_page_lock_refused)
        gs_print("the driver does not page-lock host memory, so evicting and restoring data is slower");
    gs_host.printed_page_lock_refused = true;
}

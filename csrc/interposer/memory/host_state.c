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

void gs_host_print_refused_locked(CUresult result)
{
    /* In a process that is exiting, the driver refuses every call. */
    if (result == CUDA_ERROR_DEINITIALIZED)
        return;
    if (!gs_host.printed_page_lock_refused)
        gs_print("the driver does not page-lock host memory, so evicting and restoring data is slower");
    gs_host.printed_page_lock_refused = true;
}

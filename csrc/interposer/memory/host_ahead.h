/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that page-locks host memory in advance and cleans up, and the ends of page-locks. */
#ifndef GPUSHARE_MEMORY_HOST_AHEAD_H
#define GPUSHARE_MEMORY_HOST_AHEAD_H

#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

/* Something has changed; the host memory's lock is held. */
void gs_host_wake_thread(void);

/* Has that many bytes page-locked, in use or free, by a thread of low priority. */
void gs_host_prepare(uint64_t bytes, CUcontext context);

/* Drops the page-locks that were made in a context. Call it before or after the context ends. */
void gs_host_context_ends(CUcontext context);

/*
 * Whether all of this process's memory was evicted. Page-locks make checkpoints slow, so they are dropped if that stays
 * so for a while; the data comes back through staging.h.
 */
void gs_host_set_away(bool away);

/*
 * Drops them now, because the process is about to be parked; they come again with its next restore. False: `busy`
 * returned true before that was done.
 */
bool gs_host_rest(bool (*busy)(void));

void gs_host_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The thread that page-locks host memory in advance and cleans up, and the ends of page-locks. */
#ifndef GPUSHARE_MEMORY_HOST_AHEAD_H
#define GPUSHARE_MEMORY_HOST_AHEAD_H

#include "driver.h"

#include <stdint.h>

/* Something has changed; the host memory's lock is held. */
void gs_host_wake_thread(void);

/* Has that many bytes page-locked, in use or free, by a thread of low priority. */
void gs_host_prepare(uint64_t bytes, CUcontext context);

/* Drops the page-locks that were made in a context. Call it before or after the context ends. */
void gs_host_context_ends(CUcontext context);

/* After a checkpoint, repeats the page-locks that the driver may have lost. */
void gs_host_restored(void);

void gs_host_after_fork(void);

#endif

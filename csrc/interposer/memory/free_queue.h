/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocations that were freed in stream order, or during a capture, and may still be in use. */
#ifndef GPUSHARE_MEMORY_FREE_QUEUE_H
#define GPUSHARE_MEMORY_FREE_QUEUE_H

#include "driver.h"

#include <stdbool.h>

struct gs_allocation;

/* Whether the queue may have entries; costs one load. */
bool gs_free_queue_any(void);

/* `stream` is NULL for a free during a capture. False: out of memory. */
bool gs_free_queue_add_locked(struct gs_allocation *allocation, CUcontext context, CUstream stream);

/* Takes out one allocation that is due. With `wait`, also one that will be due later. NULL: there is none. */
struct gs_allocation *gs_free_queue_take_due_locked(bool wait);

void gs_free_queue_remove_locked(const struct gs_allocation *allocation);

/*
 * Drops the entries of a context that ends, because the context's end frees them. If only the stream of a free ends,
 * all work of the context has ended, so the free is complete. In both cases the context's end destroys the events.
 */
void gs_free_queue_forget(CUcontext context);

void gs_free_queue_after_fork(void);

#endif

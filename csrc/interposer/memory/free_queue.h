/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocations that were freed in the order of a stream, or during a capture, and may still be used. */
#ifndef GPUSHARE_MEMORY_FREE_QUEUE_H
#define GPUSHARE_MEMORY_FREE_QUEUE_H

#include "driver.h"

#include <stdbool.h>

struct gs_allocation;

/* Whether there may be any; costs one load. */
bool gs_free_queue_any(void);

/* `stream` NULL: freed during a capture. False: out of memory. */
bool gs_free_queue_add_locked(struct gs_allocation *allocation, CUcontext context, CUstream stream);

/* Takes one out that is due, or, with `wait`, will be; NULL: there is none. */
struct gs_allocation *gs_free_queue_take_due_locked(bool wait);

void gs_free_queue_remove_locked(const struct gs_allocation *allocation);

/*
 * What was freed goes with its context. Where only the stream of the free ends, it is done: all of the context's work
 * is. The events go with the context either way.
 */
void gs_free_queue_forget(CUcontext context);

void gs_free_queue_after_fork(void);

#endif

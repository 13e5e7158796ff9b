/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Finds out whether all work that was submitted to the contexts of this process is done.
 *
 * A drain records one event for each context, which covers the work of all its streams (cuCtxRecordEvent). The events
 * are then polled: without spinning, and without a wait that a CUDA kernel without end would turn into a hang. Drivers
 * before 12.5 do not have cuCtxRecordEvent. There, a separate thread calls cuCtxSynchronize.
 */
#ifndef GPUSHARE_GATE_DRAIN_H
#define GPUSHARE_GATE_DRAIN_H

#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * For the helper thread only. False if a capture is open, because a drain would invalidate it. With `force`, drains
 * nevertheless; false then means that the capture has to end before anything can be waited for.
 */
bool gs_context_begin_drain(bool force);
bool gs_context_drained(void);

/* A context was synchronised at that number of submissions (gs_gate_passes), while no thread was inside the gate. */
void gs_context_synchronized(CUcontext context, uint64_t submissions);

/*
 * Marks all work submitted so far. False if the mark is not possible, because a capture is open or the driver does not
 * support it. The mark passes when that work is done. Marks of several threads are combined, and count from the last
 * one.
 */
bool gs_context_mark(void);
bool gs_context_mark_passed(void);

/*
 * No thread may synchronise a context that ends. Releases the lock of the list of contexts until a thread that is
 * synchronising it has left.
 */
void gs_context_leave_locked(CUcontext handle);

void gs_context_drain_after_fork(void);

#endif

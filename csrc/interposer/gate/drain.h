/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether all that was submitted to the contexts of this process is done.
 *
 * Draining works by one event for each context that captures the work of all its streams (cuCtxRecordEvent), which is
 * then polled: no spinning, and no wait that a kernel without end could turn into a hang. Drivers before 12.5 lack it:
 * there a thread of its own calls cuCtxSynchronize.
 */
#ifndef GPUSHARE_GATE_DRAIN_H
#define GPUSHARE_GATE_DRAIN_H

#include "driver.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Only the helper thread drains. False if a capture is open: a drain would invalidate it. With `force` it does, and
 * false means that the capture has to be ended before anything can be waited for.
 */
bool gs_context_begin_drain(bool force);
bool gs_context_drained(void);

/* A context was synchronised after so much had been submitted (gs_gate_passes), with nobody inside the gate then. */
void gs_context_synchronized(CUcontext context, uint64_t submissions);

/*
 * Marks what has been submitted to all contexts. False if that cannot be known: a capture is open, or the driver cannot
 * do it. The mark is passed once it is done; marks of several threads are one, and count from the last.
 */
bool gs_context_mark(void);
bool gs_context_mark_passed(void);

/*
 * Nothing is to be synchronised any more in a context that ends. The lock of the list of contexts is given up until a
 * thread that does so has left.
 */
void gs_context_leave_locked(CUcontext handle);

void gs_context_drain_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA contexts of this process: which there are, and whether all that was submitted to them is done.
 *
 * Draining works by one event for each context that captures the work of all its streams (cuCtxRecordEvent), which is
 * then polled: no spinning, and no wait that a kernel without end could turn into a hang. Drivers before 12.5 lack it;
 * there the drain blocks in cuCtxSynchronize.
 */
#ifndef GPUSHARE_CONTEXT_H
#define GPUSHARE_CONTEXT_H

#include "driver.h"
#include <stdbool.h>
#include <stdint.h>

/*
 * Only the helper thread drains. False if a capture is open: a drain would invalidate it. With `force` it does, and
 * false means that the capture has to be ended before anything can be waited for.
 */
bool gs_context_begin_drain(bool force);
bool gs_context_drained(void);

/* All work of all contexts was done when so much had been submitted (gs_gate_submissions). */
bool gs_context_idle(uint64_t submissions);

/*
 * Marks what has been submitted to all contexts. False if that cannot be known: a capture is open, or the driver cannot
 * do it. The mark is passed once it is done; marks of several threads are one, and count from the last.
 */
bool gs_context_mark(void);
bool gs_context_mark_passed(void);

/* One that is alive, or NULL. */
CUcontext gs_context_any(void);
/* A context of that device, the calling thread's if it is one; never `except`. NULL: there is none. */
CUcontext gs_context_on(CUdevice device, CUcontext except);

/* True if `context` is one that is alive, as far as we saw. */
bool gs_context_alive(CUcontext context);

#endif

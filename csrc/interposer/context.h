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

/* Only the helper thread drains. */
void gs_context_begin_drain(void);
bool gs_context_drained(void);

/* True if `context` is one that is alive, as far as we saw. */
bool gs_context_alive(CUcontext context);

#endif

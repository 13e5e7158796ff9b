/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The CUDA contexts of this process: which there are, and whether all that was submitted to them is done.
 *
 * Draining works by one event for each context that captures the work of all its streams (cuCtxRecordEvent), which is
 * then polled: no spinning, and no wait that a kernel without end could turn into a hang. Drivers before 12.5 lack it:
 * there a thread of its own calls cuCtxSynchronize.
 */
#ifndef GPUSHARE_GATE_CONTEXTS_H
#define GPUSHARE_GATE_CONTEXTS_H

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

/* A context was synchronised after so much had been submitted (gs_gate_passes), with nobody inside the gate then. */
void gs_context_synchronized(CUcontext context, uint64_t submissions);

/*
 * Marks what has been submitted to all contexts. False if that cannot be known: a capture is open, or the driver cannot
 * do it. The mark is passed once it is done; marks of several threads are one, and count from the last.
 */
bool gs_context_mark(void);
bool gs_context_mark_passed(void);

/*
 * A context fails for good (an illegal address, an assertion of a kernel): from then on the driver refuses every call
 * in it with the same error, and so do we where we answer in its place. The same goes for one that is current and has
 * been destroyed. The error of the calling thread's context, or CUDA_SUCCESS: as far as it is known, or after asking
 * the driver, unless no work can have failed since it was known.
 */
CUresult gs_context_known_failure(void);
CUresult gs_context_ask_failure(void);

/*
 * What the driver answers, beside the captures that are open and in the thread's capture mode, to calls that it forbids
 * there: the error, which has ended the captures, or CUDA_SUCCESS.
 */
CUresult gs_context_ask_captures(void);

/* The driver has returned that to the application, or to us. */
void gs_context_observed(CUresult result);
static inline void gs_context_observe(CUresult result)
{
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        gs_context_observed(result);
}

/* A context that has failed since, each once, or NULL: its memory is to be given to others. */
CUcontext gs_context_take_failed(void);

/* One that is alive and has not failed, or NULL. */
CUcontext gs_context_any(void);
/* The same of that device, the calling thread's if it is one; never `except`. */
CUcontext gs_context_on(CUdevice device, CUcontext except);

/* Whose memory it is that is allocated in the context: of a green context, the primary one's. */
CUcontext gs_context_owner(CUcontext context);

/* Those of the device that have not failed; returns how many there are, which may be more than `most`. */
unsigned gs_context_all_on(CUdevice device, CUcontext *found, unsigned most);

/* True if `context` is one that is alive, as far as we saw. */
bool gs_context_alive(CUcontext context);

void gs_context_after_fork(void);

#endif

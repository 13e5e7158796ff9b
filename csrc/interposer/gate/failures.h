/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures of contexts that the driver has reported. */
#ifndef GPUSHARE_GATE_FAILURES_H
#define GPUSHARE_GATE_FAILURES_H

#include <stdbool.h>

#include "driver.h"

struct gs_context;

/* Whether no call in a context recovers from that result. */
bool gs_context_is_lost(CUresult result);

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

/* --- For modules that call the driver in a context. Under the lock of the list of contexts. --- */

void gs_context_note_failure_locked(struct gs_context *context, CUresult result);
void gs_context_forget_failure_locked(struct gs_context *context);

#endif

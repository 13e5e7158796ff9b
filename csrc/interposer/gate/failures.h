/* SPDX-License-Identifier: BSD-3-Clause */
/* The context failures that the driver has reported. */
#ifndef GPUSHARE_GATE_FAILURES_H
#define GPUSHARE_GATE_FAILURES_H

#include <stdbool.h>

#include "driver.h"

struct gs_context;

/* Whether this result means that no call in the context can succeed any more. */
bool gs_context_is_lost(CUresult result);

/*
 * A context can fail for good, for example by an illegal address or an assertion in a CUDA kernel. From then on, the
 * driver refuses every call in it with that error. So does the interposer where it answers in place of the driver. A
 * current context that has been destroyed counts as failed, too. Both functions return the error of the calling
 * thread's context, or CUDA_SUCCESS. The first returns what is known. The second asks the driver, unless no work can
 * have failed since.
 */
CUresult gs_context_known_failure(void);
CUresult gs_context_ask_failure(void);

/*
 * The driver's answer to calls that are forbidden in the open captures and in the thread's capture mode. It is the
 * error, which has invalidated the captures, or CUDA_SUCCESS.
 */
CUresult gs_context_ask_captures(void);

/* Notes a result that the driver has returned to the application or to the interposer. */
void gs_context_observed(CUresult result);
static inline void gs_context_observe(CUresult result)
{
    if (__builtin_expect(result != CUDA_SUCCESS, 0))
        gs_context_observed(result);
}

/*
 * A context that has failed since the last call, or NULL. Returns each once; its memory can be given to other
 * processes.
 */
CUcontext gs_context_take_failed(void);

/* --- For modules that call the driver in a context, under the lock of the list of contexts. --- */

void gs_context_note_failure_locked(struct gs_context *context, CUresult result);
void gs_context_forget_failure_locked(struct gs_context *context);

#endif

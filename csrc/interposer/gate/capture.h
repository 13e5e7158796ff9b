/* SPDX-License-Identifier: BSD-3-Clause */
/* Stream captures that are open in this process. */
#ifndef GPUSHARE_GATE_CAPTURE_H
#define GPUSHARE_GATE_CAPTURE_H

#include "driver.h"
#include "gate/work.h"

#include <stdbool.h>

/* A submission into this stream is recorded into a graph rather than run. Costs one load where no capture is open. */
bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind);

/*
 * The same, or it would have been recorded if the capture had not been broken off: the driver refuses what goes into it
 * until the application ends it.
 */
bool gs_capture_holds(CUstream stream, enum gs_stream_kind kind);

/* Some capture is open: the context must not be synchronised, since that would invalidate it. */
bool gs_capture_open(void);

/* The calling thread began one of them. */
bool gs_capture_own(void);

/* False if a capture is open. Else none begins until gs_capture_allow is called, so the context may be synchronised. */
bool gs_capture_forbid(void);
void gs_capture_allow(void);

/* The captures that are open were broken off: what is left for the application is to end them. */
void gs_capture_forget(void);

/*
 * Until the end of the block, what the thread calls of the driver leaves captures alone that are open in the process,
 * whatever their mode: for calls of our own that the application knows nothing of.
 */
#define GS_LEAVES_CAPTURES_ALONE                                                                                       \
    __attribute__((cleanup(gs_capture_exchange_mode))) CUstreamCaptureMode gs_capture_mode =                           \
        CU_STREAM_CAPTURE_MODE_RELAXED;                                                                                \
    gs_capture_exchange_mode(&gs_capture_mode)

void gs_capture_exchange_mode(CUstreamCaptureMode *mode);

/* --- For the hooks. --- */

struct gs_capture;

/* NULL: no memory. */
struct gs_capture *gs_capture_new(void);

/* Around the driver's call that begins one. `stream`: where it began; NULL: the default stream of its thread. */
void gs_capture_begin(void);
void gs_capture_begun(struct gs_capture *capture, CUstream stream, bool success);

/* Forgets the capture that began in the stream, or all of a context. False: there was none. */
bool gs_capture_over(CUstream stream, CUcontext context);

void gs_capture_after_fork(void);

#endif

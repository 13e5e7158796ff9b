/* SPDX-License-Identifier: BSD-3-Clause */
/* The stream captures that are open in this process. */
#ifndef GPUSHARE_GATE_CAPTURE_H
#define GPUSHARE_GATE_CAPTURE_H

#include "driver.h"
#include "gate/work.h"

#include <stdbool.h>

/*
 * Whether a submission into this stream is recorded into a graph instead of being run. Costs one load if no capture is
 * open.
 */
bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind);

/*
 * Whether it is recorded, or would be if the capture had not been invalidated. The driver refuses submissions to such a
 * capture until the application ends it.
 */
bool gs_capture_holds(CUstream stream, enum gs_stream_kind kind);

/* Whether a capture is open. Then the context must not be synchronised, because that would invalidate the capture. */
bool gs_capture_open(void);

/* Whether the calling thread began one of the open captures. */
bool gs_capture_own(void);

/*
 * False if a capture is open. Otherwise no capture begins until gs_capture_allow, so the context may be synchronised.
 */
bool gs_capture_forbid(void);
void gs_capture_allow(void);

/* The open captures were invalidated. The application only has to end them. */
void gs_capture_forget(void);

/*
 * Until the end of the block, the thread's driver calls do not affect open captures of the process, whatever their
 * mode. For calls of the interposer that the application did not make.
 */
#define GS_LEAVES_CAPTURES_ALONE                                                                                       \
    __attribute__((cleanup(gs_capture_exchange_mode))) CUstreamCaptureMode gs_capture_mode =                           \
        CU_STREAM_CAPTURE_MODE_RELAXED;                                                                                \
    gs_capture_exchange_mode(&gs_capture_mode)

void gs_capture_exchange_mode(CUstreamCaptureMode *mode);

/* --- For the hooks. --- */

struct gs_capture;

/* NULL: out of memory. */
struct gs_capture *gs_capture_new(void);

/* Around the driver's call that begins a capture. `stream`: where it began; NULL: the thread's default stream. */
void gs_capture_begin(void);
void gs_capture_begun(struct gs_capture *capture, CUstream stream, bool success);

/* Removes the capture that began in the stream, or all captures of a context. False: there was none. */
bool gs_capture_over(CUstream stream, CUcontext context);

void gs_capture_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Stream captures that are open in this process. */
#ifndef GPUSHARE_CAPTURE_H
#define GPUSHARE_CAPTURE_H

#include "gate.h"

/* A submission into this stream is recorded into a graph rather than run. Costs one load where no capture is open. */
bool gs_capture_includes(CUstream stream, enum gs_stream_kind kind);

/* Some capture is open: the context must not be synchronised, since that would invalidate it. */
bool gs_capture_open(void);

#endif

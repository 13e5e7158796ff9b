/* SPDX-License-Identifier: BSD-3-Clause */
/* When the work is done that may use the memory of a context: its own, and that of GPUs that may access the memory. */
#ifndef GPUSHARE_MEMORY_WORK_END_H
#define GPUSHARE_MEMORY_WORK_END_H

#include "driver.h"

#include <stdbool.h>

/* Waits for it. The result is that of the context itself. */
CUresult gs_work_await(CUcontext context);

/* A new event that is passed once that work is done. NULL: only waiting would tell. */
CUevent gs_work_mark(CUcontext context);

/* A new event that is recorded in the stream, which is of the current context. */
CUresult gs_work_record(CUevent *event, CUstream stream, bool per_thread);

/* Other GPUs may use the context's memory, too. */
bool gs_work_has_peers(CUcontext context);

#endif

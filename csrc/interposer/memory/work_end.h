/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The end of the work that may use the memory of a context: its own work, and work of GPUs with access to the memory.
 */
#ifndef GPUSHARE_MEMORY_WORK_END_H
#define GPUSHARE_MEMORY_WORK_END_H

#include "driver.h"

#include <stdbool.h>

/* Waits for the end of that work. The result is that of the context itself. */
CUresult gs_work_await(CUcontext context);

/* A new event that passes when that work is done. NULL: the end can only be found by waiting. */
CUevent gs_work_mark(CUcontext context);

/* Records a new event in the stream, which belongs to the current context. */
CUresult gs_work_record(CUevent *event, CUstream stream, bool per_thread);

/* Whether other GPUs may use the context's memory, too. */
bool gs_work_has_peers(CUcontext context);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA IPC for memory that the interposer manages. The driver refuses IPC for mapped memory. Therefore a handle names
 * the process, its socket and the allocation. The process that opens the handle asks there for descriptors of the
 * physical memory, which becomes unevictable. Both processes must run under the interposer. Other handles are passed to
 * the driver.
 */
#ifndef GPUSHARE_HOOKS_IPC_H
#define GPUSHARE_HOOKS_IPC_H

#include "driver.h"

#include <stdbool.h>

struct gs_memory_view;

/* Finds memory that another process shares with this one. */
bool gs_ipc_find(CUdeviceptr address, struct gs_memory_view *view);

/* Closes what was opened in a context that ends. No work uses it any more. */
void gs_ipc_context_ends(CUcontext context);

void gs_ipc_after_fork(void);

#endif

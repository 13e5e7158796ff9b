/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA's IPC of memory, for ours: the driver refuses it for memory that is mapped, so that a handle names the process,
 * its socket and the allocation, and whoever opens it asks there for descriptors of the physical memory, which is then
 * unevictable. Both processes must run under the interposer; handles of others are the driver's.
 */
#ifndef GPUSHARE_HOOKS_IPC_H
#define GPUSHARE_HOOKS_IPC_H

#include "driver.h"

#include <stdbool.h>

struct gs_memory_view;

/* What another process shares with us. */
bool gs_ipc_find(CUdeviceptr address, struct gs_memory_view *view);

/* What was opened in the context is closed with it; nothing uses it any more. */
void gs_ipc_context_ends(CUcontext context);

void gs_ipc_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls all modules that track contexts, in the right order, when a context begins or ends, and in the child of a fork.
 */
#ifndef GPUSHARE_HOOKS_LIFECYCLE_H
#define GPUSHARE_HOOKS_LIFECYCLE_H

#include "driver.h"

#include <stdbool.h>

/* After the first successful cuInit: attaches to the scheduler. */
void gs_lifecycle_start(void);

/* Before a context is created: waits for a scheduler that is expected, and for room for the context. */
CUresult gs_lifecycle_admit_context(CUdevice device);

/*
 * A context exists, possibly for some time already. Returns whether it is charged now: it was admitted, and was not
 * charged before.
 */
bool gs_lifecycle_context_begins(CUcontext handle, CUdevice device, bool primary, bool admitted);

/* A context is about to be destroyed: frees what belongs to it, while it can still be synchronised. */
void gs_lifecycle_context_ends(CUcontext handle);

/* The context was destroyed: forgets it. */
void gs_lifecycle_context_gone(CUcontext handle);

/* Called before and after the driver's reset of a primary context that survives the reset. */
void gs_lifecycle_context_is_reset(CUcontext handle);
void gs_lifecycle_context_was_reset(CUcontext handle, CUdevice device);

/* A green context ends. Memory that was allocated in it stays, because it belongs to the primary context. */
void gs_lifecycle_green_ends(CUcontext handle);

#endif

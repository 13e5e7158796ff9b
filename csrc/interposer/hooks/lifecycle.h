/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the beginning and the end of a context mean for all that knows of contexts, in order; and the child of a fork.
 */
#ifndef GPUSHARE_HOOKS_LIFECYCLE_H
#define GPUSHARE_HOOKS_LIFECYCLE_H

#include "driver.h"

#include <stdbool.h>

/* After the first cuInit that succeeds: attaches to the scheduler. */
void gs_lifecycle_start(void);

/* Before a context is made: waits for a scheduler that is expected, and for the context's room. */
CUresult gs_lifecycle_admit_context(CUdevice device);

/* There is one, perhaps for a while already. Returns whether it takes a charge: it was admitted, and has none yet. */
bool gs_lifecycle_context_begins(CUcontext handle, CUdevice device, bool primary, bool admitted);

/* It is about to be destroyed: what it has goes, while it can still be synchronised. */
void gs_lifecycle_context_ends(CUcontext handle);

/* It is known no more. */
void gs_lifecycle_context_gone(CUcontext handle);

/* Around the driver's reset of a primary context, if it survives that. */
void gs_lifecycle_context_is_reset(CUcontext handle);
void gs_lifecycle_context_was_reset(CUcontext handle, CUdevice device);

/* A green context ends; memory that was allocated in it stays, since that is the primary context's. */
void gs_lifecycle_green_ends(CUcontext handle);

#endif

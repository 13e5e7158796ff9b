/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peer access. cuCtxEnablePeerAccess gives another GPU access to what cuMemAlloc allocates, but memory that is mapped
 * has its own access rights: ours gets them at each mapping.
 */
#ifndef GPUSHARE_HOOKS_PEER_H
#define GPUSHARE_HOOKS_PEER_H

#include "driver.h"

#include <stdbool.h>

/*
 * From now on, and for what is there already. `owner` NULL: for the memory of every context of the device. `user`: the
 * context of the accessor that asked for it, or NULL.
 */
void gs_peer_set(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed);

/* What was granted on its memory, and what it was granted, goes with it. */
void gs_peer_context_ends(CUcontext context);

#endif

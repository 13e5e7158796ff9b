/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peer access. cuCtxEnablePeerAccess gives another GPU access to what cuMemAlloc allocates, but memory that is mapped
 * has its own access rights: ours gets them at each mapping.
 */
#ifndef GPUSHARE_HOOKS_PEER_H
#define GPUSHARE_HOOKS_PEER_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>

/* The accesses that memory of that context, on that device, is to have beside its own device's; returns how many. */
unsigned gs_peer_access(CUcontext owner, CUdevice device, CUmemAccessDesc access[GPUSHARE_MAX_GPUS]);

/*
 * The devices whose contexts may use what that context allocates, and how many; no device's twice. What is freed must
 * wait for them, too. Costs one load where nobody asked for such access.
 */
unsigned gs_peer_accessors(CUcontext owner, CUdevice accessors[GPUSHARE_MAX_GPUS]);

/*
 * From now on, and for what is there already. `owner` NULL: for the memory of every context of the device. `user`: the
 * context of the accessor that asked for it, or NULL.
 */
void gs_peer_set(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed);

/* What was granted on its memory, and what it was granted, goes with it. */
void gs_peer_context_ends(CUcontext context);

void gs_peer_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peer access. cuCtxEnablePeerAccess gives another GPU access to memory of cuMemAlloc. But mapped memory has its own
 * access rights, so the interposer's memory gets them at each mapping.
 */
#ifndef GPUSHARE_HOOKS_PEER_H
#define GPUSHARE_HOOKS_PEER_H

#include "driver.h"

#include <stdbool.h>

/*
 * Sets the access for existing and future memory. `owner` NULL: for the memory of every context of the device. `user`:
 * the context of the accessor that requested it, or NULL.
 */
void gs_peer_set(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed);

/* Removes the rights on a context's memory, and the rights that were granted to the context. */
void gs_peer_context_ends(CUcontext context);

#endif

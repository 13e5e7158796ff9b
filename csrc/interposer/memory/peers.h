/* SPDX-License-Identifier: BSD-3-Clause */
/* The peer access of each context: new memory gets it here, memory that exists already in hooks/peer.c. */
#ifndef GPUSHARE_MEMORY_PEERS_H
#define GPUSHARE_MEMORY_PEERS_H

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

/* `owner` and `user` may be NULL: see gs_peer_set. */
void gs_peer_record(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed);

struct gs_peer_right {
    CUcontext owner, user;
    CUdevice device, accessor;
};

/* Takes out a right that the context has given, or has. False: there is none. */
bool gs_peer_take(CUcontext context, struct gs_peer_right *right);

void gs_peers_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The peer access of each context. This file applies it to new memory, and hooks/peer.c to existing memory. */
#ifndef GPUSHARE_MEMORY_PEERS_H
#define GPUSHARE_MEMORY_PEERS_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>

/* The accesses that memory of that context and device needs in addition to its own device's. Returns their number. */
unsigned gs_peer_access(CUcontext owner, CUdevice device, CUmemAccessDesc access[GPUSHARE_MAX_GPUS]);

/*
 * The devices whose contexts may use what that context allocates, each once, and their number. A free must wait for
 * their work, too. Costs one load if no context has requested peer access.
 */
unsigned gs_peer_accessors(CUcontext owner, CUdevice accessors[GPUSHARE_MAX_GPUS]);

/* `owner` and `user` may be NULL: see gs_peer_set. */
void gs_peer_record(CUcontext owner, CUdevice device, CUcontext user, CUdevice accessor, bool allowed);

struct gs_peer_right {
    CUcontext owner, user;
    CUdevice device, accessor;
};

/* Takes one right that the context has given or received out of the table. False: there is none. */
bool gs_peer_take(CUcontext context, struct gs_peer_right *right);

void gs_peers_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peer access. All simulated devices can access each other's memory after a request: by a context for all memory that
 * another context has allocated, or for a single mapping or pool.
 */
#ifndef SIM_PEER_H
#define SIM_PEER_H

#include "context.h"

/* Whether a kernel of the context may access the device memory that the addresses point to. */
bool sim_peer_allows(const struct sim_context *context, const uint64_t *addresses, size_t count);

/* Waits for the work of the contexts that may use this context's memory. */
void sim_peer_drain(struct sim_context *owner);

#endif

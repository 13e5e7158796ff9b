/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Peer access. All simulated devices can reach each other's memory, once it was asked for: by a context for all memory
 * that another context allocated, or for a mapping or a pool by itself.
 */
#ifndef SIM_PEER_H
#define SIM_PEER_H

#include "context.h"

/* Whether a kernel of the context may touch what the addresses point into, as far as it is device memory. */
bool sim_peer_allows(const struct sim_context *context, const uint64_t *addresses, size_t count);

/* Waits for what was submitted to the contexts that may use the memory of that one. */
void sim_peer_drain(struct sim_context *owner);

#endif

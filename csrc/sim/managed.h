/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Managed memory. The bytes are always in host memory; only their nominal location is simulated. Each 2 MiB of a range
 * are either resident on the device, within its capacity, or not. Work that accesses other chunks waits for page
 * faults, unless advice makes it access them over the bus. New chunks evict the least recently used ones of any
 * process. Evicted chunks are written back unless they are read-mostly or were discarded.
 */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include "memory.h"

/* Accesses the managed ranges that contain the addresses. Called on the thread that executes the work. */
void sim_managed_touch(unsigned device, const uint64_t *addresses, size_t count);

/* Accesses only that many bytes of the range. */
void sim_managed_touch_bytes(unsigned device, uint64_t address, uint64_t size);

/* A range is freed. Called with the table's lock held. */
void sim_managed_forget(struct sim_range *range);

#endif

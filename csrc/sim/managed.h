/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Managed memory. The bytes are always in host memory; what is modelled is where they are said to be. Each 2 MiB of a
 * range are resident on its device, within the device's capacity, or not; work that touches what is not waits for the
 * page faults, unless the advice is to reach it over the bus. What comes in pushes out what was used longest ago, of
 * any process, which is written back unless it is read-mostly or was discarded.
 */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include "memory.h"

/* Touches the managed ranges that the addresses are in, on the thread that executes the work. */
void sim_managed_touch(unsigned device, const uint64_t *addresses, size_t count);

/* Only so many bytes of the range that the address is in. */
void sim_managed_touch_bytes(unsigned device, uint64_t address, uint64_t size);

/* A range is freed. Under the table's lock. */
void sim_managed_forget(struct sim_range *range);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The engines of a device, which processes use in turn. */
#ifndef SIM_SEGMENT_ENGINES_H
#define SIM_SEGMENT_ENGINES_H

#include "segment/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Reserves that much time on an engine, and returns when it will be over (CLOCK_MONOTONIC, ns). */
uint64_t sim_segment_reserve(unsigned device, enum sim_engine engine, uint64_t duration);

/*
 * The compute engine runs one kernel at a time for all processes. A waiting process is next. Returns when the kernel
 * began.
 */
uint64_t sim_segment_compute_begin(unsigned device);
/* Waits for at most `patience` (ns). False: the engine is not free by then. */
bool sim_segment_compute_try_begin(unsigned device, uint64_t patience, uint64_t *begin);
/* Returns how long the kernel ran. */
uint64_t sim_segment_compute_end(unsigned device, uint64_t begin);

/* Percentage of the time since the last call by any process during which kernels ran. */
unsigned sim_segment_utilization(unsigned device);

#endif

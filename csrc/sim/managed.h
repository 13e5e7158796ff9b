/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Managed memory. The bytes are always in host memory; what is modelled is where they are said to be. A range has so
 * many bytes resident on its device, within the device's capacity; work that touches a range that is not wholly
 * resident waits for the page faults, and what it brings in pushes out what was used longest ago, of any process.
 */
#ifndef SIM_MANAGED_H
#define SIM_MANAGED_H

#include "memory.h"

/* Touches the managed ranges that the addresses are in, on the thread that executes the work. */
void sim_managed_touch(unsigned device, const uint64_t *addresses, size_t count);

/* A range is freed. Under the table's lock. */
void sim_managed_forget(struct sim_range *range);

struct sim_counters {
    uint64_t faulted;    /* managed bytes brought in by faults */
    uint64_t prefetched; /* managed bytes moved by prefetches, either way */
    uint64_t stolen;     /* managed bytes that this process pushed out of other processes' residency */
    uint64_t copied_in, copied_out;
    uint64_t kernels;
};

extern struct sim_counters sim_counters_now;

/* For tests and benchmarks: copies this process's counters, `size` bytes of the structure at most. */
__attribute__((visibility("default"))) void gpushare_sim_counters(struct sim_counters *counters, size_t size);

#endif

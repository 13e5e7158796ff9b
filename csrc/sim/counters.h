/* SPDX-License-Identifier: BSD-3-Clause */
/* What this process has done so far. */
#ifndef SIM_COUNTERS_H
#define SIM_COUNTERS_H

#include "segment/layout.h"

#include <stddef.h>

struct sim_counters {
    uint64_t faulted;    /* managed bytes brought in by faults */
    uint64_t prefetched; /* managed bytes moved by prefetches, either way */
    uint64_t stolen;     /* managed bytes that this process pushed out of other processes' residency */
    uint64_t copied_in, copied_out;
    uint64_t kernels;
    uint64_t injected;      /* failures on purpose */
    uint64_t page_locked;   /* bytes of host memory, ever */
    uint64_t pin_ns;        /* what that took */
    uint64_t remote;        /* managed bytes that kernels reached over the bus */
    uint64_t written_back;  /* managed bytes pushed out, not those that a prefetch moved */
    uint64_t fault_ns;      /* what page faults took */
    uint64_t in_ns, out_ns; /* what copies and prefetches took of the engines */
    uint64_t kernel_ns;     /* what kernels took of the compute engine */
    uint64_t waiting;       /* threads that wait now, because the process is locked */
};

extern struct sim_counters sim_counters_now;

/* Reserves a copy engine and counts the time: see sim_segment_reserve. */
uint64_t sim_engine_use(unsigned device, enum sim_engine engine, uint64_t bytes, uint64_t bandwidth);

/* For tests and benchmarks: copies this process's counters, `size` bytes of the structure at most. */
__attribute__((visibility("default"))) void gpushare_sim_counters(struct sim_counters *counters, size_t size);

#endif

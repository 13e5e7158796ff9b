/* SPDX-License-Identifier: BSD-3-Clause */
/* Counters of what this process has done so far. */
#ifndef SIM_COUNTERS_H
#define SIM_COUNTERS_H

#include "segment/layout.h"

#include <stddef.h>

struct sim_counters {
    uint64_t faulted;    /* managed bytes that faults moved to the device */
    uint64_t prefetched; /* managed bytes that prefetches moved, in either direction */
    uint64_t stolen;     /* managed bytes of other processes that this process evicted */
    uint64_t copied_in, copied_out;
    uint64_t kernels;       /* of the program */
    uint64_t injected;      /* number of injected failures */
    uint64_t page_locked;   /* bytes of host memory page-locked so far */
    uint64_t page_lock_ns;  /* time spent page-locking */
    uint64_t remote;        /* managed bytes that kernels accessed over the bus */
    uint64_t written_back;  /* managed bytes that were evicted, except by prefetches */
    uint64_t fault_ns;      /* time spent on page faults */
    uint64_t in_ns, out_ns; /* time that copies and prefetches used the engines */
    uint64_t kernel_ns;     /* time that the program's kernels used the compute engine */
    uint64_t waiting;       /* threads that are waiting now because the process is locked */
    uint64_t hashed;        /* bytes of which the interposer computed digests */
    uint64_t kept_locked;   /* bytes of host memory that were page-locked at the last checkpoint or restore */
};

extern struct sim_counters sim_counters_now;

/* Reserves a copy engine and adds the time to the counters: see sim_segment_reserve. */
uint64_t sim_engine_use(unsigned device, enum sim_engine engine, uint64_t bytes, uint64_t bandwidth);

/* For tests and benchmarks: copies up to `size` bytes of this process's counters. */
__attribute__((visibility("default"))) void gpushare_sim_counters(struct sim_counters *counters, size_t size);

#endif

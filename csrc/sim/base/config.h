/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Parameters of the simulated driver, read from the environment once per process.
 *
 * | variable                         | meaning                                                   | default       |
 * |----------------------------------|-----------------------------------------------------------|---------------|
 * | GPUSHARE_SIM_NAME                | names the machine; processes with this name share it      | the uid       |
 * | GPUSHARE_SIM_DEVICES             | number of GPUs, 1 to 16                                   | 1             |
 * | GPUSHARE_SIM_MEMORY              | bytes of each GPU, or a list                              | 2GiB          |
 * | GPUSHARE_SIM_RESERVED            | bytes that the driver keeps in addition; NVML counts them | 0             |
 * | GPUSHARE_SIM_MODEL               | model name of the GPUs, or a list                         | Simulated GPU |
 * | GPUSHARE_SIM_MIG                 | MIG slices of each GPU, or a list; 0: not divided         | 0             |
 * | GPUSHARE_SIM_BANDWIDTH           | bytes/s of each copy engine (one per direction)           | 8000000000    |
 * | GPUSHARE_SIM_PAGEABLE_BANDWIDTH  | bytes/s of copies of host memory that is not page-locked  | BANDWIDTH     |
 * | GPUSHARE_SIM_PAGE_LOCK_BANDWIDTH | bytes/s of page-locking; 0: takes no time                 | 0             |
 * | GPUSHARE_SIM_MEMORY_BANDWIDTH    | bytes/s at which the GPU reads its memory, for digests    | 500000000000  |
 * | GPUSHARE_SIM_FAULT_BANDWIDTH     | bytes/s of managed page faults                            | 500000000     |
 * | GPUSHARE_SIM_KERNEL_NS           | least duration of a kernel, in nanoseconds                | 0             |
 * | GPUSHARE_SIM_CONTEXT             | bytes of a context                                        | 16MiB         |
 * | GPUSHARE_SIM_CONTEXT_GROWTH      | bytes added to a context by its first module or kernel    | 0             |
 * | GPUSHARE_SIM_CODE                | bytes of GPU memory that a kernel takes on its first use  | 0             |
 * | GPUSHARE_SIM_TEARDOWN_MS         | how long the bytes of a dead process stay in use, in ms   | 0             |
 * | GPUSHARE_SIM_FORK_HOLDS          | 1: that time starts when its last forked child has ended  | 0             |
 * | GPUSHARE_SIM_COMPUTE_CAPABILITY  | major.minor, or a list                                    | 9.0           |
 * | GPUSHARE_SIM_INSTANT             | 1: a launch returns at once and computes nothing          | 0             |
 * | GPUSHARE_SIM_ABORT_ON_FAULT      | 1: a kernel or copy that faults ends the process          | 0             |
 * | GPUSHARE_SIM_STRICT              | 1: as strict as a real driver                             | 0             |
 * | GPUSHARE_SIM_REUSE               | 1: a freed address is the next one that is allocated      | 0             |
 * | GPUSHARE_SIM_FAIL                | injected failures: inject.h                               | none          |
 * | GPUSHARE_SIM_FAIL_SEED           | seed of random failures                                   | 0             |
 * | GPUSHARE_SIM_DIGEST_IGNORES      | a fault: byte of each unit that digests do not depend on  | none          |
 * | GPUSHARE_SIM_CHECKPOINT_MS       | time of a checkpoint in addition to the copying, in ms    | 0             |
 * | GPUSHARE_SIM_RESTORE_MS          | time of a restore in addition to the copying, in ms       | 0             |
 * | GPUSHARE_SIM_CHECKPOINT_LEFT     | bytes of each GPU that a checkpointed process still uses  | 4MiB          |
 * | GPUSHARE_SIM_POWER_BARE          | watts of a GPU on which no process has a context          | 72            |
 * | GPUSHARE_SIM_POWER_CONTEXT       | watts of a GPU on which a process has a context           | 121           |
 * | GPUSHARE_SIM_POWER_BUSY          | watts of a GPU while a kernel runs                        | 700           |
 * | GPUSHARE_SIM_ENERGY              | what NVML has: 2: energy and power; 1: power; 0: neither  | 2             |
 * | GPUSHARE_SIM_DRIVER_VERSION      | the driver's version; before 570 it has no checkpoints    | 580.00.sim    |
 * | GPUSHARE_SIM_CXX                 | the compiler that the simulated NVRTC runs                | g++           |
 *
 * A list has one entry for each GPU, separated by commas. GPUs beyond the end of the list use its last entry. Sizes can
 * have the suffixes KiB, MiB and GiB. The first process with a name fixes the devices, their memory, the teardown time,
 * GPUSHARE_SIM_FORK_HOLDS and the power for all processes that join. A process with other values prints one line and
 * joins.
 */
#ifndef SIM_CONFIG_H
#define SIM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 16
#define SIM_DEVICE_NAME "Simulated GPU"

/* What programs compute on: a GPU or a slice of a GPU. */
struct sim_unit {
    unsigned gpu;
    int slice; /* -1: the whole GPU */
    uint64_t memory;
    unsigned major, minor;
    char model[64];
};

struct sim_driver {
    unsigned major; /* 580 */
    int cuda;       /* 13000 */
    char text[32];  /* as NVML reports it */
};

/* The first driver version with checkpoints, and the first that can restore onto other GPUs. */
#define SIM_DRIVER_CHECKPOINTS 570u
#define SIM_DRIVER_MOVES 580u

#define SIM_DIGEST_IGNORES_NOTHING UINT64_MAX

struct sim_config {
    char name[64];
    struct sim_driver driver;
    uint64_t gpus;
    unsigned devices;
    struct sim_unit unit[SIM_MAX_DEVICES];
    uint64_t bandwidth;
    uint64_t pageable_bandwidth;
    uint64_t page_lock_bandwidth, page_unlock_bandwidth; /* 0: no limit */
    uint64_t checkpoint_locked_bandwidth;                /* 0: no limit */
    uint64_t memory_bandwidth;
    uint64_t fault_bandwidth;
    uint64_t kernel_ns;
    uint64_t context, context_growth, code;
    uint64_t reserved;
    uint64_t teardown_ms, fork_holds;
    uint64_t instant, abort_on_fault;
    uint64_t strict; /* as strict as a real driver, where the default is more tolerant */
    uint64_t reuse;  /* an address that is freed is used again first */
    uint64_t fail_seed;
    uint64_t digest_ignores; /* offset in each unit, or SIM_DIGEST_IGNORES_NOTHING */
    uint64_t checkpoint_ms, restore_ms, checkpoint_left;
    uint64_t power_bare, power_context, power_busy; /* watts */
    uint64_t energy;                                /* what NVML has */
};

/* Reads GPUSHARE_SIM_DRIVER_VERSION alone. Returns false, with the default version, if it is malformed. */
bool sim_config_driver(struct sim_driver *driver);

/* Returns false if a variable is malformed, after printing one line that names it. */
bool sim_config_read(struct sim_config *config);

#endif

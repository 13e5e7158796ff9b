/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Parameters of the simulated driver, read from the environment once per process.
 *
 * | variable                        | meaning                                                       | default    |
 * |---------------------------------|---------------------------------------------------------------|------------|
 * | GPUSHARE_SIM_NAME               | names the machine: processes with the same name share devices | the uid    |
 * | GPUSHARE_SIM_DEVICES            | number of GPUs, 1 to 16                                       | 1          |
 * | GPUSHARE_SIM_MEMORY             | bytes of each GPU, or a list                                  | 2GiB       |
 * | GPUSHARE_SIM_RESERVED           | bytes beside these that the driver keeps: NVML counts them    | 0          |
 * | GPUSHARE_SIM_MODEL              | what a GPU is called, or a list                               | Simulated GPU |
 * | GPUSHARE_SIM_MIG                | MIG slices of each GPU, or a list; 0: it is one whole         | 0          |
 * | GPUSHARE_SIM_BANDWIDTH          | bytes/s of each copy engine (one per direction)               | 8000000000 |
 * | GPUSHARE_SIM_PAGEABLE_BANDWIDTH | bytes/s of copies from and to host memory that is not page-locked   | BANDWIDTH |
 * | GPUSHARE_SIM_PIN_BANDWIDTH      | bytes/s at which host memory is page-locked; 0: at once            | 0          |
 * | GPUSHARE_SIM_FAULT_BANDWIDTH    | bytes/s of managed page faults                                | 500000000  |
 * | GPUSHARE_SIM_KERNEL_NS          | least duration of a kernel, in nanoseconds                    | 0          |
 * | GPUSHARE_SIM_CONTEXT            | bytes that a context takes                                    | 16MiB      |
 * | GPUSHARE_SIM_CONTEXT_GROWTH     | bytes that it takes more with its first module or kernel      | 0          |
 * | GPUSHARE_SIM_CODE               | bytes of the GPU that a kernel takes when it is first used    | 0          |
 * | GPUSHARE_SIM_TEARDOWN_MS        | a dead process's bytes stay in use for so many milliseconds   | 0          |
 * | GPUSHARE_SIM_FORK_HOLDS         | 1: ... from when its last forked child has ended              | 0          |
 * | GPUSHARE_SIM_COMPUTE_CAPABILITY | major.minor, or a list                                        | 9.0        |
 * | GPUSHARE_SIM_INSTANT            | 1: a launch returns at once and computes nothing              | 0          |
 * | GPUSHARE_SIM_ABORT_ON_FAULT     | 1: a kernel or copy that faults ends the process (core dump)  | 0          |
 * | GPUSHARE_SIM_FAIL               | failures on purpose: inject.h                                 | none       |
 * | GPUSHARE_SIM_FAIL_SEED          | which calls fail, where that is left to chance                | 0          |
 * | GPUSHARE_SIM_CHECKPOINT_MS      | what a checkpoint takes beside the copying, in milliseconds   | 0          |
 * | GPUSHARE_SIM_RESTORE_MS         | what a restore takes beside the copying                       | 0          |
 * | GPUSHARE_SIM_CHECKPOINT_LEFT    | bytes of each GPU that a checkpointed process goes on using   | 4MiB       |
 * | GPUSHARE_SIM_DRIVER_VERSION     | the driver's version; before 570 it has no checkpoints        | 580.00.sim |
 * | GPUSHARE_SIM_CXX                | the compiler that the simulated NVRTC runs                    | g++        |
 *
 * A list has one entry for each GPU, with commas between them; those that it has none for are as the last.
 * Sizes take the suffixes KiB, MiB and GiB. The first process to use a name fixes its devices, their memory,
 * the teardown time and what a fork holds for all that join; the others are told so in one line if they asked for
 * something else.
 */
#ifndef SIM_CONFIG_H
#define SIM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 16
#define SIM_DEVICE_NAME "Simulated GPU"

/* What programs compute on: a GPU, or a slice of one. */
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
    char text[32];  /* as NVML tells it */
};

/* Since which driver there are checkpoints, and restores onto other GPUs. */
#define SIM_DRIVER_CHECKPOINTS 570u
#define SIM_DRIVER_MOVES 580u

struct sim_config {
    char name[64];
    struct sim_driver driver;
    uint64_t gpus;
    unsigned devices;
    struct sim_unit unit[SIM_MAX_DEVICES];
    uint64_t bandwidth;
    uint64_t pageable_bandwidth;
    uint64_t pin_bandwidth; /* 0: no limit */
    uint64_t fault_bandwidth;
    uint64_t kernel_ns;
    uint64_t context, context_growth, code;
    uint64_t reserved;
    uint64_t teardown_ms, fork_holds;
    uint64_t instant, abort_on_fault;
    uint64_t strict; /* as strict as a real driver, where the default is kinder */
    uint64_t reuse;  /* an address that is freed is the next one to be given out */
    uint64_t fail_seed;
    uint64_t checkpoint_ms, restore_ms, checkpoint_left;
};

/* What GPUSHARE_SIM_DRIVER_VERSION says, without the rest; the default if it is malformed, which is false. */
bool sim_config_driver(struct sim_driver *driver);

/* False if a variable is malformed, after one line on stderr that names it. */
bool sim_config_read(struct sim_config *config);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shared segment: the state on which all processes of the same simulated machine must agree. It is a file in
 * /dev/shm for each GPUSHARE_SIM_NAME. For each device it contains the capacity, every process's bytes, and the clocks
 * of the engines.
 *
 * The segment survives the death of any process. Figures are kept per process, so that the next process that looks can
 * free the bytes of a process that was killed. The locks are robust.
 */
#ifndef SIM_SEGMENT_LAYOUT_H
#define SIM_SEGMENT_LAYOUT_H

#include "base/config.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_MAX_RECORDS 512
#define SIM_MAX_SHARED 1024

enum sim_engine { SIM_ENGINE_TO_DEVICE, SIM_ENGINE_TO_HOST, SIM_ENGINE_FAULT, SIM_ENGINES };

enum sim_charge { SIM_CHARGE_MEMORY, SIM_CHARGE_CONTEXT };

enum { SIM_CHARGES = 2 };

/* The power of a device: without contexts, with any, and while a kernel runs. */
enum sim_power { SIM_POWER_BARE, SIM_POWER_CONTEXT, SIM_POWER_BUSY, SIM_POWERS };

#define SIM_DESK_PAIRS 16

/* Where other processes send requests to this one: see checkpoint.c. A desk without requests is all 0. */
struct sim_desk {
    pthread_mutex_t turn; /* held by a requester; robust */
    uint32_t word;        /* futex */
    uint32_t call;        /* until the requester has read the answer */
    uint32_t timeout_ms;  /* 0: no limit */
    int result;
    int tid;
    uint32_t pair_count;
    unsigned char pairs[SIM_DESK_PAIRS][2][16]; /* UUIDs, old and new */
};

struct sim_record {
    pid_t pid;              /* 0: unused */
    uint64_t pid_namespace; /* the PID namespace of that pid */
    uint64_t started;       /* distinguishes processes with the same pid */
    uint64_t died_at;       /* 0 while the process is alive */
    uint64_t charged[SIM_MAX_DEVICES][SIM_CHARGES];
    uint64_t left[SIM_MAX_DEVICES]; /* while it is parked */
    uint64_t managed[SIM_MAX_DEVICES];
    uint64_t managed_at[SIM_MAX_DEVICES];
};

struct sim_shared_file {
    uint64_t file; /* 0: unused */
    uint64_t bytes;
    unsigned device;
    uint64_t users[SIM_MAX_RECORDS / 64]; /* bits of records */
};

struct sim_segment_device {
    /* The process that holds `turn` gets `busy` next. So two processes alternate, whatever their rates. */
    pthread_mutex_t turn, busy;
    uint64_t free_at[SIM_ENGINES];
    uint64_t busy_ns;
    uint64_t sampled_at, sampled_busy_ns;
    /* The energy up to a time, with kernels up to a busy time; and the last reading of the power. */
    uint64_t energy_nj, energy_at, energy_busy_ns;
    uint64_t power_mw, power_at, power_energy_nj;
};

struct sim_segment {
    uint64_t magic;
    uint64_t devices, teardown_ns, fork_holds;
    uint64_t watts[SIM_POWERS]; /* by enum sim_power */
    struct sim_unit unit[SIM_MAX_DEVICES];
    pthread_mutex_t lock; /* guards the records and shared files */
    struct sim_segment_device device[SIM_MAX_DEVICES];
    struct sim_record records[SIM_MAX_RECORDS];
    struct sim_desk desks[SIM_MAX_RECORDS]; /* parallel to the records */
    struct sim_shared_file shared[SIM_MAX_SHARED];
};

#endif

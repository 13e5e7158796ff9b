/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shared segment: what all processes that use the same simulated machine must agree on. It lives in /dev/shm, one
 * file per GPUSHARE_SIM_NAME, and holds for each device the capacity, every process's bytes, and the engines' clocks.
 *
 * Nothing in it belongs to a process that could be missed: figures are kept per process, so the bytes of one that was
 * killed are given back by whoever looks next, and the locks are robust.
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

#define SIM_DESK_PAIRS 16

/* Where other processes ask something of this one: see checkpoint.c. What has to do with nobody is 0. */
struct sim_desk {
    pthread_mutex_t turn; /* of those who ask; robust */
    uint32_t word;        /* a futex */
    uint32_t call;        /* until who asked has heard the answer */
    uint32_t timeout_ms;  /* 0: none */
    int result;
    int tid;
    uint32_t pair_count;
    unsigned char pairs[SIM_DESK_PAIRS][2][16]; /* UUIDs, old and new */
};

struct sim_record {
    pid_t pid;        /* 0: free */
    uint64_t world;   /* the PID namespace in which it has that pid */
    uint64_t started; /* tells a process from a later one with the same pid */
    uint64_t died_at; /* 0 while it lives */
    uint64_t charged[SIM_MAX_DEVICES][SIM_CHARGES];
    uint64_t left[SIM_MAX_DEVICES]; /* while it is parked */
    uint64_t managed[SIM_MAX_DEVICES];
    uint64_t managed_at[SIM_MAX_DEVICES];
};

struct sim_shared_file {
    uint64_t file; /* 0: free */
    uint64_t bytes;
    unsigned device;
    uint64_t users[SIM_MAX_RECORDS / 64]; /* bits of records */
};

struct sim_segment_device {
    /* Whoever holds `turn` is the next to get `busy`, so two processes alternate whatever their rate. */
    pthread_mutex_t turn, busy;
    uint64_t free_at[SIM_ENGINES];
    uint64_t busy_ns;
    uint64_t sampled_at, sampled_busy_ns;
};

struct sim_segment {
    uint64_t magic;
    uint64_t devices, teardown_ns, fork_holds;
    struct sim_unit unit[SIM_MAX_DEVICES];
    pthread_mutex_t lock; /* guards the records and what is shared */
    struct sim_segment_device device[SIM_MAX_DEVICES];
    struct sim_record records[SIM_MAX_RECORDS];
    struct sim_desk desks[SIM_MAX_RECORDS]; /* of the records */
    struct sim_shared_file shared[SIM_MAX_SHARED];
};

#endif

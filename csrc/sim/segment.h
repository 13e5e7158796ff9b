/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The shared segment: what all processes that use the same simulated machine must agree on. It lives in /dev/shm, one
 * file per GPUSHARE_SIM_NAME, and holds for each device the capacity, every process's bytes, and the engines' clocks.
 *
 * Nothing in it belongs to a process that could be missed: figures are kept per process, so the bytes of one that was
 * killed are given back by whoever looks next, and the locks are robust.
 */
#ifndef SIM_SEGMENT_H
#define SIM_SEGMENT_H

#include "config.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum sim_engine { SIM_ENGINE_TO_DEVICE, SIM_ENGINE_TO_HOST, SIM_ENGINE_FAULT, SIM_ENGINES };

enum sim_charge { SIM_CHARGE_MEMORY, SIM_CHARGE_CONTEXT };

struct sim_usage {
    uint64_t total;
    uint64_t used;    /* memory and contexts, dead processes that are being torn down included */
    uint64_t managed; /* resident managed bytes, which give way */
};

struct sim_process_usage {
    pid_t pid;
    uint64_t bytes;
};

/* Attaches to the segment of the configuration's name, creating it if need be. False after a line on stderr. */
bool sim_segment_attach(const struct sim_config *config);

/* Only to look at it, and to ask others: without a record of its own. False if there is none that it can open. */
bool sim_segment_look(const struct sim_config *config);

/* Gives this process's record back. */
void sim_segment_detach(void);

/* The child of a fork has the mapping but not the record. */
void sim_segment_forget(void);

/*
 * Devices are numbered as this process sees them: all of the machine, in its order, until it chooses. What other
 * processes are told is the machine's number.
 */
unsigned sim_segment_devices(void);
const struct sim_unit *sim_segment_unit(unsigned device);
void sim_segment_choose(const unsigned *machine, unsigned count);
unsigned sim_segment_machine(unsigned device);
/* False if this process does not see it. */
bool sim_segment_seen(unsigned machine, unsigned *device);

/* The machine's, whatever this process sees; NULL beyond the last. */
const struct sim_unit *sim_segment_machine_unit(unsigned machine);

/* The GPU that the device was when this process began. */
unsigned sim_segment_first_gpu(unsigned device);

/* Takes device memory for this process. False if it does not fit; managed memory of any process gives way. */
bool sim_segment_charge(unsigned device, enum sim_charge what, uint64_t bytes);
void sim_segment_refund(unsigned device, enum sim_charge what, uint64_t bytes);

void sim_segment_usage(unsigned device, struct sim_usage *usage);

/*
 * Memory that several processes have, named by its file: what was this process's own becomes everybody's who has it,
 * and is in use until the last of them has left or ended. Share and join count as having it once, however often they
 * are called. Share is false if there is no room in the table, and the memory stays the process's own; join is false
 * if nobody has it any more and it does not fit. The device SIM_MAX_DEVICES stands for the host, which is not counted.
 */
bool sim_segment_share(unsigned device, uint64_t file, uint64_t bytes);
bool sim_segment_join(unsigned *device, uint64_t file, uint64_t bytes);
void sim_segment_leave(uint64_t file);

/* Processes with a context on the device, at most `size` of them; returns how many there are. */
unsigned sim_segment_processes(unsigned device, struct sim_process_usage *processes, unsigned size);

/* Nanoseconds. */
uint64_t sim_duration(uint64_t bytes, uint64_t bandwidth);

/* Reserves so much time on an engine and returns when it will be over (CLOCK_MONOTONIC, ns). */
uint64_t sim_segment_reserve(unsigned device, enum sim_engine engine, uint64_t duration);

/* The compute engine: one kernel at a time among all processes; one that waits is next. Returns when it began. */
uint64_t sim_segment_compute_begin(unsigned device);
/* Returns how long that was. */
uint64_t sim_segment_compute_end(unsigned device, uint64_t begin);

/* Percentage of the time since the last call (of any process) during which kernels ran. */
unsigned sim_segment_utilization(unsigned device);

/*
 * Managed memory. Others may have taken residency from this process since it last looked; `resident` is what it has
 * now. Admit makes `bytes` more resident (as far as the device goes) by taking them from other processes whose last
 * use is older than `older_than`; it returns how many bytes were admitted.
 */
uint64_t sim_segment_managed_resident(unsigned device);
uint64_t sim_segment_managed_admit(unsigned device, uint64_t bytes, uint64_t older_than, uint64_t *stolen);
void sim_segment_managed_drop(unsigned device, uint64_t bytes);

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

/* This process's own, or NULL. */
struct sim_desk *sim_segment_desk(void);

/* That of a process of the machine, by the pid by which this one knows it, or NULL. `started` tells it from others. */
struct sim_desk *sim_segment_desk_of(pid_t pid, uint64_t *started);
bool sim_segment_desk_is_of(const struct sim_desk *desk, pid_t pid, uint64_t started);

/* Whether the process lives, and the kernel lets this one read it as a debugger would. */
bool sim_segment_reaches(pid_t pid);

/* Of one in the segment, which may be a dead one's. Try is false if somebody holds it who lives. */
void sim_segment_lock(pthread_mutex_t *mutex);
bool sim_segment_try(pthread_mutex_t *mutex);

/* What this process has of the device, without contexts. */
uint64_t sim_segment_own(unsigned device);

/*
 * Park gives all bytes of this process back but `left` of each GPU that it has a context on; unpark takes them again,
 * all or (false) none. `to` says on which machine's device, for each of the machine's; those that this process sees
 * go with it, and what it is moved onto takes the number of what it left.
 */
void sim_segment_park(uint64_t left);
bool sim_segment_unpark(const unsigned to[SIM_MAX_DEVICES]);

uint64_t sim_now(void);
void sim_sleep_until(uint64_t deadline);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory: of each process, shared by several, and managed memory, which can be evicted. */
#ifndef SIM_SEGMENT_MEMORY_H
#define SIM_SEGMENT_MEMORY_H

#include "segment/layout.h"

struct sim_usage {
    uint64_t total;
    uint64_t used;    /* memory and contexts, including dead processes that are being torn down */
    uint64_t managed; /* resident managed bytes, which can be evicted */
};

struct sim_process_usage {
    pid_t pid;
    uint64_t bytes;
};

/* Takes device memory for this process, evicting managed memory of any process. False if it does not fit. */
bool sim_segment_charge(unsigned device, enum sim_charge what, uint64_t bytes);
void sim_segment_refund(unsigned device, enum sim_charge what, uint64_t bytes);

void sim_segment_usage(unsigned device, struct sim_usage *usage);

/*
 * Memory that several processes have, named by its file. Memory of this process becomes memory of every process that
 * has it. It is in use until the last of them has left or ended. Share and join count once, however often they are
 * called. Share is false if the table is full, and the memory stays this process's own. Join is false if no process has
 * the memory any more and it does not fit. The device SIM_MAX_DEVICES stands for the host, whose memory is not counted.
 */
bool sim_segment_share(unsigned device, uint64_t file, uint64_t bytes);
bool sim_segment_join(unsigned *device, uint64_t file, uint64_t bytes);
void sim_segment_leave(uint64_t file);

/* Lists up to `size` processes with a context on the device. Returns how many there are. */
unsigned sim_segment_processes(unsigned device, struct sim_process_usage *processes, unsigned size);

/*
 * Managed memory. Other processes may have evicted some of this process's since the last call; `resident` is what is
 * left. Admit makes `bytes` more resident, as far as the device permits. It evicts memory of other processes whose last
 * use is older than `older_than`, and returns how many bytes were admitted.
 */
uint64_t sim_segment_managed_resident(unsigned device);
uint64_t sim_segment_managed_admit(unsigned device, uint64_t bytes, uint64_t older_than, uint64_t *stolen);
void sim_segment_managed_drop(unsigned device, uint64_t bytes);

/* The bytes of this process on the device, without contexts. */
uint64_t sim_segment_own(unsigned device);

/*
 * Park frees all bytes of this process except `left` on each GPU on which it has a context. Unpark takes all of them
 * again, or none (false). `to` has the new device for each device of the machine. The devices that this process sees
 * follow. A device that is moved onto takes the number of the device that it replaces.
 */
void sim_segment_park(uint64_t left);
bool sim_segment_unpark(const unsigned to[SIM_MAX_DEVICES]);

/* In the child of a fork: nothing is parked. */
void sim_segment_forget_parked(void);

#endif

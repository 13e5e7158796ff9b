/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory: what each process has of it, what several have together, and managed memory, which gives way. */
#ifndef SIM_SEGMENT_MEMORY_H
#define SIM_SEGMENT_MEMORY_H

#include "segment/layout.h"

struct sim_usage {
    uint64_t total;
    uint64_t used;    /* memory and contexts, dead processes that are being torn down included */
    uint64_t managed; /* resident managed bytes, which give way */
};

struct sim_process_usage {
    pid_t pid;
    uint64_t bytes;
};

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

/*
 * Managed memory. Others may have taken residency from this process since it last looked; `resident` is what it has
 * now. Admit makes `bytes` more resident (as far as the device goes) by taking them from other processes whose last
 * use is older than `older_than`; it returns how many bytes were admitted.
 */
uint64_t sim_segment_managed_resident(unsigned device);
uint64_t sim_segment_managed_admit(unsigned device, uint64_t bytes, uint64_t older_than, uint64_t *stolen);
void sim_segment_managed_drop(unsigned device, uint64_t bytes);

/* What this process has of the device, without contexts. */
uint64_t sim_segment_own(unsigned device);

/*
 * Park gives all bytes of this process back but `left` of each GPU that it has a context on; unpark takes them again,
 * all or (false) none. `to` says on which machine's device, for each of the machine's; those that this process sees
 * go with it, and what it is moved onto takes the number of what it left.
 */
void sim_segment_park(uint64_t left);
bool sim_segment_unpark(const unsigned to[SIM_MAX_DEVICES]);

/* In the child of a fork: nothing is parked. */
void sim_segment_forget_parked(void);

#endif

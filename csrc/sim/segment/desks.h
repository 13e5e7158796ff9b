/* SPDX-License-Identifier: BSD-3-Clause */
/* The desks of processes, through which other processes send requests. */
#ifndef SIM_SEGMENT_DESKS_H
#define SIM_SEGMENT_DESKS_H

#include "segment/layout.h"

/* This process's desk, or NULL. */
struct sim_desk *sim_segment_desk(void);

/*
 * The desk of a process, by its pid in this process's namespace, or NULL. `started` distinguishes processes with the
 * same pid.
 */
struct sim_desk *sim_segment_desk_of(pid_t pid, uint64_t *started);
bool sim_segment_desk_is_of(const struct sim_desk *desk, pid_t pid, uint64_t started);

/* Whether the process is alive and the kernel lets this process read it as a debugger would. */
bool sim_segment_reaches(pid_t pid);

#endif

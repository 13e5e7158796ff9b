/* SPDX-License-Identifier: BSD-3-Clause */
/* The desks of processes, where others ask something of them. */
#ifndef SIM_SEGMENT_DESKS_H
#define SIM_SEGMENT_DESKS_H

#include "segment/layout.h"

/* This process's own, or NULL. */
struct sim_desk *sim_segment_desk(void);

/* That of a process of the machine, by the pid by which this one knows it, or NULL. `started` tells it from others. */
struct sim_desk *sim_segment_desk_of(pid_t pid, uint64_t *started);
bool sim_segment_desk_is_of(const struct sim_desk *desk, pid_t pid, uint64_t started);

/* Whether the process lives, and the kernel lets this one read it as a debugger would. */
bool sim_segment_reaches(pid_t pid);

#endif

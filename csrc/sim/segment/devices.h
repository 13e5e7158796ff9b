/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices are numbered as this process sees them: all of the machine, in its order, until it chooses. What other
 * processes are told is the machine's number.
 */
#ifndef SIM_SEGMENT_DEVICES_H
#define SIM_SEGMENT_DEVICES_H

#include "segment/layout.h"

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

/* As sim_segment_unpark: what this process sees follows. */
void sim_segment_renumber(const unsigned to[SIM_MAX_DEVICES]);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Devices are numbered as this process sees them: all devices of the machine in order, until the process makes a
 * choice. In the segment, devices have the machine's numbers.
 */
#ifndef SIM_SEGMENT_DEVICES_H
#define SIM_SEGMENT_DEVICES_H

#include "segment/layout.h"

unsigned sim_segment_devices(void);
const struct sim_unit *sim_segment_unit(unsigned device);
void sim_segment_choose(const unsigned *machine, unsigned count);
unsigned sim_segment_machine(unsigned device);
/* False if this process does not see the device. */
bool sim_segment_seen(unsigned machine, unsigned *device);

/* A device of the machine, whether this process sees it or not; NULL beyond the last one. */
const struct sim_unit *sim_segment_machine_unit(unsigned machine);

/* The GPU that the device was when this process began. */
unsigned sim_segment_first_gpu(unsigned device);

/* Moves devices like sim_segment_unpark. The devices that this process sees follow. */
void sim_segment_renumber(const unsigned to[SIM_MAX_DEVICES]);

#endif

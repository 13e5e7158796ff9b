/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The energy of each device. A device takes one power while no process has a context on it, another one while any
 * process has, and a third one while a kernel runs. Copies take nothing in addition. The energy is the exact sum over
 * time, whenever it is read.
 */
#ifndef SIM_SEGMENT_ENERGY_H
#define SIM_SEGMENT_ENERGY_H

#include "segment/layout.h"

/* Adds the energy up to now. Called with the segment's lock held, before contexts on a device of the machine change. */
void sim_energy_advance(unsigned machine);
void sim_energy_advance_all(void);

/* Joules in thousandths, since the machine was made. */
uint64_t sim_segment_energy_mj(unsigned device);

/* Watts in thousandths: the mean since the last reading by any process, or over at least 20 ms. */
unsigned sim_segment_power_mw(unsigned device);

#endif

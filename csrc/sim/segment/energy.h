/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The energy of each device. Its power has three values: without contexts, while any process has a context on it, and
 * while a kernel runs. Copies add nothing. The energy is the exact sum over time, whenever it is read.
 */
#ifndef SIM_SEGMENT_ENERGY_H
#define SIM_SEGMENT_ENERGY_H

#include "segment/layout.h"

/* The functions below are called with the segment's lock held. */

/* The power of a device of the machine while no kernel runs. */
uint64_t sim_energy_idle_watts(const struct sim_segment *segment, unsigned machine);

/* Adds the energy up to now. Called before contexts on a device of the machine change. */
void sim_energy_advance(struct sim_segment *segment, unsigned machine);
void sim_energy_advance_all(struct sim_segment *segment);

#endif

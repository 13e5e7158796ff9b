/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The energy of each device. A device takes one power while no process has a context on it, another one while any
 * process has, and a third one while a kernel runs. Copies take nothing in addition. The energy is the exact sum over
 * time, whenever it is read.
 */
#ifndef SIM_SEGMENT_ENERGY_H
#define SIM_SEGMENT_ENERGY_H

#include "segment/layout.h"

/* Whether any process has a context on a device of the machine. Called with the segment's lock held, like the others.
 */
bool sim_energy_has_context(const struct sim_segment *segment, unsigned machine);

/* Adds the energy up to now. Called before contexts on a device of the machine change. */
void sim_energy_advance(struct sim_segment *segment, unsigned machine);
void sim_energy_advance_all(struct sim_segment *segment);

#endif

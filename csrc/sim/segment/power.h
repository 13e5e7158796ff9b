/* SPDX-License-Identifier: BSD-3-Clause */
/* The energy and the power of a device, as NVML reports them. */
#ifndef SIM_SEGMENT_POWER_H
#define SIM_SEGMENT_POWER_H

#include <stdint.h>

/* Joules in thousandths, since the machine was made. */
uint64_t sim_segment_energy_mj(unsigned device);

/* Watts in thousandths: the mean since the last reading by any process, or over at least 20 ms. */
unsigned sim_segment_power_mw(unsigned device);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Time, in nanoseconds of CLOCK_MONOTONIC. */
#ifndef SIM_CLOCK_H
#define SIM_CLOCK_H

#include <stdint.h>

uint64_t sim_now(void);
void sim_sleep_until(uint64_t deadline);

/* How long copying this many bytes takes. */
uint64_t sim_duration(uint64_t bytes, uint64_t bandwidth);

#endif

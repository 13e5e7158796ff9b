/* SPDX-License-Identifier: BSD-3-Clause */
/* What a checkpoint does to the memory of the process. */
#ifndef SIM_CHECKPOINT_MEMORY_H
#define SIM_CHECKPOINT_MEMORY_H

#include <stdbool.h>

/* Whether a checkpoint can hold it all: nothing is managed, nor known to other processes. */
bool sim_memory_is_own(void);

/* Puts all device memory out of reach, its contents kept, or back. False if the system refuses. */
bool sim_memory_reach(bool reach);

/* Reservations that nothing is mapped in will take no mapping any more. */
void sim_memory_forget_reservations(void);

#endif

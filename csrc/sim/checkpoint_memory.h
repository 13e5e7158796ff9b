/* SPDX-License-Identifier: BSD-3-Clause */
/* The effect of a checkpoint on the memory of the process. */
#ifndef SIM_CHECKPOINT_MEMORY_H
#define SIM_CHECKPOINT_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a checkpoint can save everything: no managed memory, and none that is shared with other processes. */
bool sim_memory_is_own(void);

/* Makes all device memory inaccessible while keeping its contents, or accessible again. False if the system refuses. */
bool sim_memory_reach(bool reach);

/* How much host memory is page-locked. */
uint64_t sim_memory_page_locked(void);

/* From now on, nothing can be mapped into existing reservations that are empty. */
void sim_memory_forget_reservations(void);

#endif

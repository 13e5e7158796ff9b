/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Faults of simulated device code. A kernel or copy that touches memory that is not mapped raises SIGSEGV on the
 * thread that executes it; there it becomes an error of the context. Anything else goes to the handler that was
 * installed before ours.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "driver.h"

void sim_fault_init(void);

/*
 * Between these, memory may be out of reach that a running kernel is right to touch: who faults waits, and tries again.
 * One thread at a time.
 */
void sim_fault_pause(void);
void sim_fault_resume(void);

/* Runs `work(argument)`; CUDA_ERROR_ILLEGAL_ADDRESS if it faulted. */
CUresult sim_fault_guard(void (*work)(void *argument), void *argument);

#endif

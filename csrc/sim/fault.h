/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Faults of simulated device code. A kernel or copy that accesses unmapped memory raises SIGSEGV on its thread, and the
 * fault becomes an error of the context. Any other SIGSEGV goes to the handler that was installed before this one.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "driver.h"

void sim_fault_init(void);

/*
 * Between these calls, memory may be inaccessible that a running kernel may use. A thread that faults waits and tries
 * again. For one thread at a time.
 */
void sim_fault_pause(void);
void sim_fault_resume(void);

/* Runs `work(argument)`. Returns CUDA_ERROR_ILLEGAL_ADDRESS if it faulted. */
CUresult sim_fault_guard(void (*work)(void *argument), void *argument);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver's calls that act on another process: the checkpoint API, as described in cuda.h. */
#ifndef GPUSHARE_HIBERNATOR_DRIVER_H
#define GPUSHARE_HIBERNATOR_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <sys/types.h>

/*
 * Opens the driver. Must be called once, before all other functions. If the driver cannot be used, prints the reason
 * and returns false.
 */
bool hib_driver_open(const char *path);

/*
 * A restore requires persistence mode or an initialised driver (cuda.h). A process that has initialised the driver also
 * keeps the GPU's firmware awake while all computing processes are checkpointed. The first call takes seconds, and
 * threads that call it meanwhile wait. It creates no context and uses no GPU memory. If it fails, the next call tries
 * again.
 */
void hib_driver_initialise(void);

/* CUDA_ERROR_NOT_SUPPORTED: the driver is older than the calls below, which then return this error, too. */
CUresult hib_driver_version(int *version);

CUresult hib_driver_state(pid_t pid, CUprocessState *state);
CUresult hib_driver_lock(pid_t pid, unsigned timeout_ms);
CUresult hib_driver_checkpoint(pid_t pid);
/* With a pair, what was on one GPU is restored on the other. NULL: on the same GPU. Initialises the driver. */
CUresult hib_driver_restore(pid_t pid, const CUcheckpointGpuPair *pair);
CUresult hib_driver_unlock(pid_t pid);

/* The name of a result, and of a state. */
const char *hib_driver_name(CUresult result);
const char *hib_state_name(CUprocessState state);

#endif

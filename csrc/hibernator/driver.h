/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver's calls that act on another process: its checkpoint API, as cuda.h describes it. */
#ifndef GPUSHARE_HIBERNATOR_DRIVER_H
#define GPUSHARE_HIBERNATOR_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <sys/types.h>

/* Opens the driver, once, before all else. If it cannot be used, says why and returns false. */
bool hib_driver_open(const char *path);

/*
 * Restoring takes persistence mode or an initialised driver (cuda.h), and a process that has initialised it keeps the
 * GPU's firmware awake while everybody who computes is checkpointed. Takes seconds the first time; whoever calls it
 * meanwhile waits. It makes no context and takes nothing of the GPU's memory. What failed is tried again by the next
 * call.
 */
void hib_driver_initialise(void);

/* CUDA_ERROR_NOT_SUPPORTED: the driver is older than the calls below, which then return the same. */
CUresult hib_driver_version(int *version);

CUresult hib_driver_state(pid_t pid, CUprocessState *state);
CUresult hib_driver_lock(pid_t pid, unsigned timeout_ms);
CUresult hib_driver_checkpoint(pid_t pid);
/* With a pair, what was on the one GPU comes back on the other; NULL: where it was. Initialises the driver. */
CUresult hib_driver_restore(pid_t pid, const CUcheckpointGpuPair *pair);
CUresult hib_driver_unlock(pid_t pid);

/* The name of a result; of a state. */
const char *hib_driver_name(CUresult result);
const char *hib_state_name(CUprocessState state);

#endif

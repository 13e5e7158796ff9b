/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints: one process locks another, saves and frees its device memory, restores it, and unlocks the process. The
 * target process has a thread for this. Requests and answers are in the shared segment.
 */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

/* From now on, this process answers requests, if the driver's version has checkpoints. */
void sim_checkpoint_serve(void);

#endif

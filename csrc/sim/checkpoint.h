/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Checkpoints: one process has another locked, its device memory saved and given back, taken again, and let go on. The
 * one that it is done to has a thread for that; what is asked and answered is in the shared segment.
 */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

/* From now on this process answers, if the driver's version knows checkpoints. */
void sim_checkpoint_serve(void);

#endif

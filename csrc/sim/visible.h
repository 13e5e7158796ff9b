/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which devices a process sees, and in which order: CUDA_VISIBLE_DEVICES, with numbers of GPUs and with UUIDs or what
 * they begin with. As in CUDA, the list ends before the first entry that names nothing, and where a MIG slice would be
 * seen, it is the only device.
 */
#ifndef SIM_VISIBLE_H
#define SIM_VISIBLE_H

#include <stdbool.h>

/* With the segment attached; false if no device is left. */
bool sim_visible_choose(const char *name);

#endif

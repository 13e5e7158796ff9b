/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which devices a process sees, and in which order. CUDA_VISIBLE_DEVICES contains numbers of GPUs, or UUIDs or their
 * prefixes. As in CUDA, the list ends before the first invalid entry, and a MIG slice is always the only device.
 */
#ifndef SIM_VISIBLE_H
#define SIM_VISIBLE_H

#include <stdbool.h>

/* Called after the segment was attached. False if no device is left. */
bool sim_visible_choose(const char *name);

#endif

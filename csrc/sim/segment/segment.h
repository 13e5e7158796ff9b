/* SPDX-License-Identifier: BSD-3-Clause */
/* How a process comes to the segment, and leaves it. */
#ifndef SIM_SEGMENT_H
#define SIM_SEGMENT_H

#include "base/config.h"

#include <stdbool.h>

/* Attaches to the segment of the configuration's name, creating it if need be. False after a line on stderr. */
bool sim_segment_attach(const struct sim_config *config);

/* Only to look at it, and to ask others: without a record of its own. False if there is none that it can open. */
bool sim_segment_look(const struct sim_config *config);

/* Gives this process's record back. */
void sim_segment_detach(void);

/* The child of a fork has the mapping but not the record. */
void sim_segment_forget(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* How a process attaches to the segment and detaches. */
#ifndef SIM_SEGMENT_H
#define SIM_SEGMENT_H

#include "base/config.h"

#include <stdbool.h>

/* Attaches to the segment with the configured name, creating it if necessary. False after printing one line. */
bool sim_segment_attach(const struct sim_config *config);

/*
 * Opens the segment only to read it and to send requests, without a record. False if there is none that can be opened.
 */
bool sim_segment_look(const struct sim_config *config);

/* Frees this process's record. */
void sim_segment_detach(void);

/* The child of a fork has the mapping but not the record. */
void sim_segment_forget(void);

#endif

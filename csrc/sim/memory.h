/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the driver's own kinds: allocated, freed, and page-locked. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "context.h"
#include "ranges.h"

/* Takes the time that it takes to pin so many bytes of host memory. */
void sim_memory_pin(uint64_t bytes);

/* Charges (what no pool pays for), reserves and backs. */
CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, size_t size, uint64_t *base);
CUresult sim_memory_free(uint64_t base);
void sim_memory_release_context(struct sim_context *context);

#endif

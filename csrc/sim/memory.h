/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the driver's own kinds: allocated, freed and page-locked. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "context.h"
#include "ranges.h"

/* Waits for the time that page-locking this many bytes of host memory takes. */
void sim_memory_page_lock(uint64_t bytes);
void sim_memory_page_unlock(uint64_t bytes);

/* Charges (unless a pool pays), reserves and backs memory. */
CUresult sim_memory_allocate(struct sim_context *context, enum sim_range_kind kind, size_t size, uint64_t *base);
CUresult sim_memory_free(uint64_t base);
void sim_memory_release_context(struct sim_context *context);

#endif

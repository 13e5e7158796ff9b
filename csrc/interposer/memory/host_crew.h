/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Threads that create the pages of chunks for a move, and page-lock them. For host.c and its parts, under their lock,
 * which is released while a function waits.
 */
#ifndef GPUSHARE_MEMORY_HOST_CREW_H
#define GPUSHARE_MEMORY_HOST_CREW_H

#include "driver.h"
#include "memory/host_pool.h"

#include <stdbool.h>
#include <stdint.h>

struct gs_host_record;

/* Creates pages for the units of the record in that state, and begins to page-lock them. False: there are none. */
bool gs_host_crew_complete(const struct gs_host_record *record, int state, CUcontext context);

/* Waits until the chunk is page-locked, if it can be. */
void gs_host_crew_await(const struct gs_host_chunk *chunk);

/* An eviction begins that will claim about that many chunks. At its end, no thread calls the driver any more. */
void gs_host_crew_begin_order(struct gs_host_pool *pool, uint64_t chunks, CUcontext context);
void gs_host_crew_end_order(void);

/* Takes a chunk that was claimed ahead of need. This process has claimed all of its units. */
bool gs_host_crew_stock(struct gs_host_pool *pool, uint32_t *i);

/* A chunk is not `unlocking` any more. */
void gs_host_crew_unlocked(void);

/* Whether a chunk is not at rest. */
bool gs_host_crew_works(void);

/* Waits until all are, so that no thread of the crew calls the driver. */
void gs_host_crew_settle(void);

void gs_host_crew_context_ends(CUcontext context);
void gs_host_crew_after_fork(void);

#endif

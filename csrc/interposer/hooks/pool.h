/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory pools. Those of device memory that nobody else can open are emulated: their allocations are ours and move. The
 * driver's pool of the same handle stays empty and answers what does not depend on that. All others are the driver's.
 */
#ifndef GPUSHARE_HOOKS_POOL_H
#define GPUSHARE_HOOKS_POOL_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>

/* NULL: the present pool of the device. CUDA_ERROR_NOT_FOUND: to be had from the driver, between the next two. */
CUresult gs_pool_allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool);

/* Bytes of a pool of the driver's: admitted before, and settled after. */
CUresult gs_pool_admit(CUmemoryPool pool, size_t size);
void gs_pool_settle(void);

/*
 * Before memory of ours is freed: from then on its address may be another thread's. NULL: it is of no pool. Afterwards,
 * gs_pool_taken says what became of it.
 */
struct gs_pooled *gs_pool_take(CUdeviceptr pointer);
void gs_pool_taken(struct gs_pooled *pooled, bool freed);

/* The emulated pool that it is from, or NULL. */
CUmemoryPool gs_pool_of(CUdeviceptr base);

void gs_pool_after_fork(void);

#endif

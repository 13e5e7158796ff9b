/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory pools. Pools of device memory that other processes cannot open are emulated: the interposer manages their
 * allocations and can move them. The driver's pool of the same handle stays empty, and answers what does not depend on
 * its contents. All other pools are the driver's.
 */
#ifndef GPUSHARE_HOOKS_POOL_H
#define GPUSHARE_HOOKS_POOL_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * `pool` NULL: the current pool of the device. CUDA_ERROR_NOT_FOUND: call the driver, between the next two functions.
 */
CUresult gs_pool_allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool pool);

/* Admit the bytes that a driver's pool will allocate, and count afterwards what it holds. */
CUresult gs_pool_admit(CUmemoryPool pool, size_t size);
void gs_pool_settle(void);

/*
 * Called before managed memory is freed, because another thread may then get its address. NULL: it belongs to no pool.
 * Afterwards, gs_pool_taken reports the outcome.
 */
struct gs_pooled *gs_pool_take(CUdeviceptr pointer);
void gs_pool_taken(struct gs_pooled *pooled, bool freed);

/* The emulated pool of an allocation, or NULL. */
CUmemoryPool gs_pool_of(CUdeviceptr base);

void gs_pool_after_fork(void);

#endif

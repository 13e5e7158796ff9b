/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Addresses that the application has reserved. After a checkpoint the driver may not map into what it reserved before:
 * they are reserved again while nothing is mapped in them.
 */
#ifndef GPUSHARE_MEMORY_RESERVATIONS_H
#define GPUSHARE_MEMORY_RESERVATIONS_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Reserves addresses again in which nothing is mapped. False, and *lost, if they cannot be had: another attempt may
 * succeed.
 */
bool gs_reserve_again(CUdeviceptr base, size_t size, bool *lost);

/* The driver's functions, which the reservation counts. */
CUresult gs_reservation_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags);
CUresult gs_reservation_unmap(CUdeviceptr address, size_t size);

void gs_reservation_add(CUdeviceptr address, size_t size);

bool gs_reservation_includes(CUdeviceptr address, size_t size);

/*
 * Before the driver frees addresses: from then on they may be another thread's. *lost: they could not be reserved
 * again, and are not the driver's to free. The caller reports the outcome to gs_reservation_taken.
 */
struct gs_reservation *gs_reservation_take(CUdeviceptr address, bool *lost);
void gs_reservation_taken(struct gs_reservation *reservation, bool freed);

void gs_reservations_after_fork(void);

#endif

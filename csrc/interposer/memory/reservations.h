/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Address ranges that the application has reserved. After a checkpoint, the driver may refuse to map into earlier
 * reservations. They are then reserved again while nothing is mapped in them.
 */
#ifndef GPUSHARE_MEMORY_RESERVATIONS_H
#define GPUSHARE_MEMORY_RESERVATIONS_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * Reserves the range again, in which nothing is mapped. False, and *lost, if the driver does not give it; another
 * attempt may succeed.
 */
bool gs_reserve_again(CUdeviceptr base, size_t size, bool *lost);

/* Call the driver, and count mappings in the reservation. */
CUresult gs_reservation_map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags);
CUresult gs_reservation_unmap(CUdeviceptr address, size_t size);

void gs_reservation_add(CUdeviceptr address, size_t size);

bool gs_reservation_includes(CUdeviceptr address, size_t size);

/*
 * Called before the driver frees addresses, because another thread may get them at once. *lost: the range could not be
 * reserved again, so the driver must not free it. The caller reports the outcome to gs_reservation_taken.
 */
struct gs_reservation *gs_reservation_take(CUdeviceptr address, bool *lost);
void gs_reservation_taken(struct gs_reservation *reservation, bool freed);

void gs_reservations_after_fork(void);

#endif

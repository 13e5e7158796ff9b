/* SPDX-License-Identifier: BSD-3-Clause */
/* The scheduler parks and wakes this process. For the helper thread. */
#ifndef GPUSHARE_CLIENT_PARKING_H
#define GPUSHARE_CLIENT_PARKING_H

#include "protocol.h"

#include <stdint.h>

void gs_parking_park(const struct gpushare_park *order);
void gs_parking_hibernated(const struct gpushare_hibernated *hibernated);
void gs_parking_awake(const struct gpushare_awake *awake);

/*
 * The driver may be called again. The helper calls it first, to repair what the checkpoint may have changed. What was
 * on the GPU `from` is on `to` now; NULL means that it is on the same GPU as far as is known.
 */
void gs_parking_be_awake(const uint8_t *from, const uint8_t *to);

#endif

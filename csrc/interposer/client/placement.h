/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which GPUs this process sees, and in which order. The scheduler decides before the driver is initialised, and
 * CUDA_VISIBLE_DEVICES passes the order to the driver. The variable has its old value again when cuInit returns. The
 * rules are in docs/contributing/design.md, "Many GPUs".
 */
#ifndef GPUSHARE_CLIENT_PLACEMENT_H
#define GPUSHARE_CLIENT_PLACEMENT_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

/* Called before the real cuInit. True: gs_placement_end must follow. Only the first successful cuInit counts. */
bool gs_placement_begin(void);
void gs_placement_end(bool initialised);

struct gs_place {
    struct gpushare_place place;
    uint8_t gpus[GPUSHARE_MAX_PLACES][16];
};

/*
 * Makes the body of PLACE for a scheduler that did not choose this order. Returns its size, or 0 if there is nothing to
 * report.
 */
size_t gs_placement_restated(struct gs_place *place);

/* The process now uses the GPU `to` in place of the chosen GPU `from`. */
void gs_placement_moved(const uint8_t from[16], const uint8_t to[16]);

#endif

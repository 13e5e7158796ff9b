/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which GPUs this process sees, and in which order: asked of the scheduler before the driver is initialised, and told
 * the driver by CUDA_VISIBLE_DEVICES, which is as before when cuInit returns. design.md, "Many GPUs", has the
 * rules.
 */
#ifndef GPUSHARE_CLIENT_PLACEMENT_H
#define GPUSHARE_CLIENT_PLACEMENT_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

/* Before the real cuInit; true: gs_placement_end is to follow it. The first cuInit that succeeds counts. */
bool gs_placement_begin(void);
void gs_placement_end(bool initialised);

struct gs_place {
    struct gpushare_place place;
    uint8_t gpus[GPUSHARE_MAX_PLACES][16];
};

/* What a scheduler is told that is not the one that chose the order: PLACE's body. Returns its size, 0: nothing. */
size_t gs_placement_restated(struct gs_place *place);

/* What was chosen as one GPU is another now. */
void gs_placement_moved(const uint8_t from[16], const uint8_t to[16]);

#endif

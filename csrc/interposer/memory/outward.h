/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One piece on its way from the GPU to the host, for the mover (mover.h):
 *
 *     gs_outward_queue     its data is hashed, unless that has not paid for a while
 *     gs_outward_poll      until that is done
 *     gs_outward_start     finds its host memory, and copies what is not there already
 *     gs_outward_finish    after the copies: from now on the host has the data, and the GPU's memory is released
 *
 * What is copied depends on the digests of the units. No work of the program runs between the hashing and the release,
 * so the data that was hashed is the data that leaves.
 */
#ifndef GPUSHARE_MEMORY_OUTWARD_H
#define GPUSHARE_MEMORY_OUTWARD_H

#include "driver.h"
#include "memory/block.h"
#include "memory/lane.h"

/* Called before the first piece of an eviction, while no piece is queued. */
void gs_outward_begin(void);

/* Queues a piece that was taken for the lane, which is in its context. */
void gs_outward_queue(struct gs_lane *lane, struct gs_block *block, unsigned i);

/* CUDA_ERROR_NOT_READY while the piece that was queued first is being hashed, otherwise CUDA_SUCCESS. */
CUresult gs_outward_poll(struct gs_flight *flight);

/*
 * Starts the move of the piece that was queued first. CUDA_ERROR_NOT_READY: the host has no room now. If it fails, the
 * piece stays queued.
 */
CUresult gs_outward_start(struct gs_lane *lane, struct gs_flight *flight);

/* Ends the move: `result` is the outcome of the copies. If it fails, the piece stays on the GPU. */
CUresult gs_outward_finish(struct gs_flight *flight, CUresult result);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lane between one device and the host: a stream for copies, and the pieces that are moving, in order. For the
 * mover (mover.h). Only the helper thread moves memory, but other threads end contexts.
 */
#ifndef GPUSHARE_MEMORY_LANE_H
#define GPUSHARE_MEMORY_LANE_H

#include "driver.h"
#include "memory/block.h"
#include "memory/devices.h"

#include <stdbool.h>
#include <stdint.h>

enum { GS_LANE_FLIGHTS = 16 };

/* A piece that is moving. */
struct gs_flight {
    struct gs_block *block;
    unsigned piece;
    bool copied;
};

/* For each device: the stream for copies, and the pieces that are moving in it, in order. */
struct gs_lane {
    CUcontext context; /* context of the stream and the events; under gs_memory_lock, as is `busy` */
    bool busy;         /* the mover is using the context */
    CUstream stream;
    CUevent done[GS_LANE_FLIGHTS];
    struct gs_flight flights[GS_LANE_FLIGHTS];
    unsigned first, count;
    uint64_t bytes;
    CUresult failure; /* error of a piece that was moving together with all that still are */
};

struct gs_lane *gs_lane_of(const struct gs_device *device);

/* Whether a piece has to finish before another can start. */
bool gs_lane_full(const struct gs_lane *lane);

/*
 * Takes the piece for a move. False if pieces in another context have to finish first. The block's context cannot end
 * before the piece is settled.
 */
bool gs_lane_take_locked(struct gs_lane *lane, struct gs_block *block, unsigned i);

/*
 * Makes the context current, with a stream of its own. Afterwards the lane is busy; if the context has changed, the
 * lane is empty.
 */
CUresult gs_lane_enter(struct gs_lane *lane, CUcontext context);

/* Work for the piece is queued, and its event marks the end of that work. */
CUresult gs_lane_launch(struct gs_lane *lane, struct gs_block *block, unsigned i, bool copied);

/*
 * Takes the oldest piece out of the lane if it is done; *result is its outcome. The driver may report only the first of
 * several copies that failed. So if one fails, everything queued behind it counts as failed, too.
 */
bool gs_lane_land(struct gs_lane *lane, struct gs_flight *landed, CUresult *result);

/* Ends the move of a piece, and adds that many bytes to the resident ones. */
void gs_lane_settle(struct gs_device *device, struct gs_block *block, unsigned i, int64_t resident);

/* Stops using the context, if no piece is moving there. */
void gs_lane_leave_locked(struct gs_lane *lane);

/*
 * The context's memory is retired already. Waits until the mover no longer uses the context, and keeps it from using it
 * again.
 */
void gs_lane_context_ends(CUcontext context);

void gs_lanes_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What moves between one device and the host: a stream that copies, and the pieces that are under way in it, in order.
 * The mover's (mover.h): only the helper thread moves, but other threads end contexts.
 */
#ifndef GPUSHARE_MEMORY_LANE_H
#define GPUSHARE_MEMORY_LANE_H

#include "driver.h"
#include "memory/block.h"
#include "memory/devices.h"

#include <stdbool.h>
#include <stdint.h>

enum { GS_LANE_FLIGHTS = 16 };

/* A piece under way. */
struct gs_flight {
    struct gs_block *block;
    unsigned piece;
    bool copied;
};

/* For each device, the stream that copies, and what is under way in it, in order. */
struct gs_lane {
    CUcontext context; /* of the stream and the events; under gs_memory_lock, as is `busy` */
    bool busy;         /* the mover is in the context */
    CUstream stream;
    CUevent done[GS_LANE_FLIGHTS];
    struct gs_flight flights[GS_LANE_FLIGHTS];
    unsigned first, count;
    uint64_t bytes;
    CUresult failure; /* of one that was under way with all those that still are */
};

struct gs_lane *gs_lane_of(const struct gs_device *device);

/* Nothing more is to be begun before something lands. */
bool gs_lane_full(const struct gs_lane *lane);

/*
 * Takes the piece for a move. False if it cannot be begun before what is under way in another context is done. The
 * block's context cannot end before the piece is settled.
 */
bool gs_lane_take_locked(struct gs_lane *lane, struct gs_block *block, unsigned i);

/* Makes the context current and the stream one of it. The lane is busy, and empty where the context is another. */
CUresult gs_lane_enter(struct gs_lane *lane, CUcontext context);

/* Work for the piece is queued: its end is the event's. */
CUresult gs_lane_launch(struct gs_lane *lane, struct gs_block *block, unsigned i, bool copied);

/*
 * Takes the first that is under way out of the lane, if it is done: *result says how it went. The driver may report
 * only the first of several copies that failed, so whatever was queued behind that one is not trusted either.
 */
bool gs_lane_land(struct gs_lane *lane, struct gs_flight *landed, CUresult *result);

/* The move is over, and so many bytes more are resident. */
void gs_lane_settle(struct gs_device *device, struct gs_block *block, unsigned i, int64_t resident);

/* The mover is out of the context, if nothing is under way there. */
void gs_lane_leave_locked(struct gs_lane *lane);

/* Its memory is retired already. Waits until the mover is out of the context, and does not enter it again. */
void gs_lane_context_ends(CUcontext context);

void gs_lanes_after_fork(void);

#endif

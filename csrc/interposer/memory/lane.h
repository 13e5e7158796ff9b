/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lane between one device and the host: a stream for copies, and the pieces that are moving, in order. For the
 * mover (mover.h). Only the helper thread moves memory, but other threads end contexts.
 *
 * An eviction first looks at a piece's data (digest.h), while earlier pieces are being copied. Such pieces queue behind
 * those that move.
 */
#ifndef GPUSHARE_MEMORY_LANE_H
#define GPUSHARE_MEMORY_LANE_H

#include "driver.h"
#include "memory/block.h"
#include "memory/devices.h"
#include "memory/hasher.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * That many pieces may be moving or queued, so that all of them are hashed together. While another process copies, the
 * GPU runs the work of one process at a time, for a few milliseconds each, and every hash that is launched alone waits
 * for its turn. On an NVIDIA H100, 26 GiB without changes left in 35 ms beside a restore, and in 200 to 390 ms with two
 * pieces at a time.
 */
enum { GS_LANE_FLIGHTS = 128 };

/* A piece that is moving. */
struct gs_flight {
    struct gs_block *block;
    unsigned piece;
    bool copied;               /* restored by copying, not new */
    struct gs_hasher_job *job; /* its data is being hashed */
    bool hashed;               /* `digests` are those of its data */
    uint64_t copied_bytes;     /* evicted by copying */
    uint64_t zero, shared;     /* bytes that were zeros, or are in host memory already for another piece or process */
    struct gpushare_digest digests[GS_HASHER_MOST_UNITS];
};

/* For each device: the stream for copies, and the pieces that are moving in it, in order. */
struct gs_lane {
    CUcontext context; /* context of the stream and the events; under gs_memory_lock, as is `busy` */
    bool busy;         /* the mover is using the context */
    CUstream stream;
    CUevent done[GS_LANE_FLIGHTS];
    struct gs_flight flights[GS_LANE_FLIGHTS]; /* a ring: `count` that are moving, then `queued` */
    unsigned first, count, queued;
    uint64_t bytes, queued_bytes;
    CUresult failure; /* error of a piece that was moving together with all that still are */
};

struct gs_lane *gs_lane_of(const struct gs_device *device);

/* Whether a piece has to finish before another can start. */
bool gs_lane_full(const struct gs_lane *lane);

/* Whether a queued piece has to start before another can be queued. */
bool gs_lane_queue_full(const struct gs_lane *lane);

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

/* Queues a piece. The rest of the flight is for the caller to set. */
struct gs_flight *gs_lane_queue(struct gs_lane *lane, struct gs_block *block, unsigned i);

/* Queued piece `n`, in order. */
struct gs_flight *gs_lane_queued(struct gs_lane *lane, unsigned n);

/* The driver has the work for the piece that was queued first. From now on the piece is moving, until that work ends.
 */
CUresult gs_lane_launch_queued(struct gs_lane *lane);

/* The last queued piece does not move after all. The caller settles it. */
void gs_lane_unqueue(struct gs_lane *lane);

/* The driver has the work for a piece; none is queued. */
CUresult gs_lane_launch(struct gs_lane *lane, struct gs_block *block, unsigned i, bool copied);

/*
 * Takes the oldest piece out of the lane if it is done; *result is its outcome. The driver may report only the first of
 * several copies that failed. So if one fails, everything that moves behind it counts as failed, too. The flight is
 * valid until another piece is queued or launched. NULL: none is done.
 */
struct gs_flight *gs_lane_land(struct gs_lane *lane, CUresult *result);

/*
 * Ends the move of a piece, and adds that many bytes to the resident ones. `clean`: how many of its bytes can leave the
 * GPU without a copy, as far as is known.
 */
void gs_lane_settle(struct gs_device *device, struct gs_block *block, unsigned i, int64_t resident, uint64_t clean);

/* Stops using the context, if no piece is moving or queued there. */
void gs_lane_leave_locked(struct gs_lane *lane);

/*
 * The context's memory is retired already. Waits until the mover no longer uses the context, and keeps it from using it
 * again.
 */
void gs_lane_context_ends(CUcontext context);

void gs_lanes_after_fork(void);

#endif

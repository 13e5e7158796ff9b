/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/lane.h"

#include "base/lock.h"
#include "loader/real.h"
#include "memory/blocks.h"

#include <pthread.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

/*
 * Two pieces may always move at once, and more as long as they have at most this many bytes: a moving piece occupies
 * both GPU memory and host memory.
 */
static const uint64_t most_in_flight = 256 * MIB;
static struct gs_lane lanes[GPUSHARE_MAX_GPUS];
static pthread_cond_t lane_left = PTHREAD_COND_INITIALIZER;

struct gs_lane *gs_lane_of(const struct gs_device *device)
{
    return &lanes[device - gs_devices];
}

bool gs_lane_full(const struct gs_lane *lane)
{
    return lane->count == GS_LANE_FLIGHTS || (lane->count >= 2 && lane->bytes >= most_in_flight);
}

bool gs_lane_queue_full(const struct gs_lane *lane)
{
    return lane->count + lane->queued == GS_LANE_FLIGHTS;
}

/* --- The lane's context --- */

static void close_lane(struct gs_lane *lane)
{
    for (unsigned i = 0; i < GS_LANE_FLIGHTS; i++)
        if (lane->done[i] != NULL)
            GS_REAL(cuEventDestroy_v2)(lane->done[i]);
    if (lane->stream != NULL)
        GS_REAL(cuStreamDestroy_v2)(lane->stream);
    memset(lane->done, 0, sizeof(lane->done));
    lane->stream = NULL;
}

CUresult gs_lane_enter(struct gs_lane *lane, CUcontext context)
{
    CUresult result = GS_REAL(cuCtxSetCurrent)(context);
    if (result != CUDA_SUCCESS || lane->stream != NULL)
        return result;
    result = GS_REAL(cuStreamCreate)(&lane->stream, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < GS_LANE_FLIGHTS && result == CUDA_SUCCESS; i++)
        result = GS_REAL(cuEventCreate)(&lane->done[i], CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS)
        close_lane(lane);
    return result;
}

void gs_lane_leave_locked(struct gs_lane *lane)
{
    if (lane->count + lane->queued != 0)
        return;
    lane->busy = false;
    pthread_cond_broadcast(&lane_left);
}

void gs_lane_context_ends(CUcontext context)
{
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned i = 0; i < GPUSHARE_MAX_GPUS; i++) {
        struct gs_lane *lane = &lanes[i];
        /* Copies in another context may use host memory that was page-locked in this one. */
        while (lane->busy)
            gs_cond_wait(&lane_left, &gs_memory_lock);
        if (lane->context != context)
            continue;
        /* The context's end destroys the stream and the events. */
        lane->context = NULL;
        lane->stream = NULL;
        memset(lane->done, 0, sizeof(lane->done));
    }
    gs_mutex_unlock(&gs_memory_lock);
}

/* --- Pieces that are moving --- */

bool gs_lane_take_locked(struct gs_lane *lane, struct gs_block *block, unsigned i)
{
    if (lane->context != block->context) {
        if (lane->count + lane->queued != 0)
            return false;
        close_lane(lane);
        lane->context = block->context;
    }
    lane->busy = true;
    block->moving = true;
    block->flights++;
    block->pieces[i].moving = true;
    return true;
}

void gs_lane_settle(struct gs_device *device, struct gs_block *block, unsigned i, int64_t resident, uint64_t clean)
{
    gs_mutex_lock(&gs_memory_lock);
    block->pieces[i].moving = false;
    device->usage.resident += (uint64_t)resident;
    gs_piece_set_clean_locked(device, &block->pieces[i], clean);
    bool destroy = --block->flights == 0 && gs_block_settle_locked(block);
    gs_lane_leave_locked(gs_lane_of(device));
    gs_mutex_unlock(&gs_memory_lock);
    if (destroy)
        gs_block_destroy(device, block);
}

static unsigned place_of(const struct gs_lane *lane, unsigned n)
{
    return (lane->first + n) % GS_LANE_FLIGHTS;
}

struct gs_flight *gs_lane_queue(struct gs_lane *lane, struct gs_block *block, unsigned i)
{
    struct gs_flight *flight = &lane->flights[place_of(lane, lane->count + lane->queued)];
    flight->block = block;
    flight->piece = i;
    flight->job = NULL;
    flight->copied = flight->hashed = false;
    flight->copied_bytes = flight->zero = flight->shared = 0;
    lane->queued++;
    lane->queued_bytes += gs_piece_bytes(block, i);
    return flight;
}

struct gs_flight *gs_lane_queued(struct gs_lane *lane, unsigned n)
{
    return &lane->flights[place_of(lane, lane->count + n)];
}

static void leave_queue(struct gs_lane *lane, const struct gs_flight *flight)
{
    lane->queued--;
    lane->queued_bytes -= gs_piece_bytes(flight->block, flight->piece);
}

CUresult gs_lane_launch_queued(struct gs_lane *lane)
{
    unsigned place = place_of(lane, lane->count);
    const struct gs_flight *flight = &lane->flights[place];
    CUresult result = GS_REAL(cuEventRecord)(lane->done[place], lane->stream);
    if (result != CUDA_SUCCESS) {
        GS_REAL(cuStreamSynchronize)(lane->stream);
        return result;
    }
    leave_queue(lane, flight);
    lane->count++;
    lane->bytes += gs_piece_bytes(flight->block, flight->piece);
    return CUDA_SUCCESS;
}

void gs_lane_unqueue(struct gs_lane *lane)
{
    leave_queue(lane, &lane->flights[place_of(lane, lane->count + lane->queued - 1)]);
}

CUresult gs_lane_launch(struct gs_lane *lane, struct gs_block *block, unsigned i, bool copied)
{
    gs_lane_queue(lane, block, i)->copied = copied;
    CUresult result = gs_lane_launch_queued(lane);
    if (result != CUDA_SUCCESS)
        gs_lane_unqueue(lane);
    return result;
}

struct gs_flight *gs_lane_land(struct gs_lane *lane, CUresult *result)
{
    if (lane->count == 0)
        return NULL;
    *result = GS_REAL(cuEventQuery)(lane->done[lane->first]);
    if (*result == CUDA_ERROR_NOT_READY)
        return NULL;
    if (lane->failure != CUDA_SUCCESS)
        *result = lane->failure;
    lane->failure = lane->count > 1 ? *result : CUDA_SUCCESS;
    struct gs_flight *landed = &lane->flights[lane->first];
    lane->first = place_of(lane, 1);
    lane->count--;
    lane->bytes -= gs_piece_bytes(landed->block, landed->piece);
    return landed;
}

void gs_lanes_after_fork(void)
{
    pthread_cond_init(&lane_left, NULL);
}

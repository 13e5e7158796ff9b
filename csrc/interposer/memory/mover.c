/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/mover.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "digest.h"
#include "gate/context_list.h"
#include "gate/failures.h"
#include "gate/slots.h"
#include "loader/real.h"
#include "memory/block.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/host.h"
#include "memory/host_ahead.h"
#include "memory/host_disk.h"
#include "memory/lane.h"
#include "memory/memory.h"
#include "memory/outward.h"
#include "memory/staging.h"

#include <string.h>

#define MIB (UINT64_C(1) << 20)

/* How long the helper sleeps when only time can help: during a copy, or when a driver or process has to free memory. */
static const uint64_t copy_pause = GS_MILLISECOND / 20;
static const uint64_t short_pause = GS_MILLISECOND;
/* How long it sleeps when a message will wake it. */
static const uint64_t room_pause = 10 * GS_MILLISECOND;
/* A driver may provide memory only a moment after it was released. */
static const uint64_t device_patience = 50 * GS_MILLISECOND;
/* How long to wait for other processes to return host memory. */
static const uint64_t host_patience = 5000 * GS_MILLISECOND;
/* Progress is reported at most this often, and for at least this many bytes. */
static const uint64_t report_gap = 2 * GS_MILLISECOND, report_bytes = 64 * MIB;
/* How long the scheduler may take to repeat a failed read of a disk. */
static const uint64_t disk_patience = 5000 * GS_MILLISECOND;
static const uint64_t state_gap = 5 * GS_MILLISECOND;

static const struct gs_moves *moves;

/* The last eviction failed. */
static bool stuck;

void gs_moves_set(const struct gs_moves *of_client)
{
    moves = of_client;
}

static void conclude(struct gs_device *device, struct gpushare_moved *moved, uint64_t start,
                     enum gpushare_move_status status)
{
    moved->duration_ns = gs_now_ns() - start;
    moved->status = status;
    gs_mutex_lock(&gs_memory_lock);
    moved->usage = gs_device_usage_locked(device);
    gs_mutex_unlock(&gs_memory_lock);
}

/* The result of trying to start one more piece. */
enum step {
    STEP_STARTED,
    STEP_FULL, /* a piece that is moving has to finish first */
    STEP_NO_ROOM,
    STEP_AWAITED, /* an application thread uses a block, or the scheduler reads data from a disk */
    STEP_NOTHING, /* no piece is left to start */
    STEP_FAILED
};

/* An application thread is populating the block or holds it, or waits for that. It will not take long. */
static bool in_use_locked(const struct gs_block *block)
{
    return (block->moving && block->flights == 0) || gs_block_awaited_locked(block);
}

/* Without a context it cannot be copied. */
static bool unavailable_locked(const struct gs_block *block)
{
    return block->context == NULL || in_use_locked(block);
}

/* The piece stays where it is. */
static void stay(struct gs_device *device, struct gs_block *block, unsigned i)
{
    gs_lane_settle(device, block, i, 0, block->pieces[i].clean);
}

/* --- Evict --- */

/* An eviction. It chooses pieces in rounds, and each round goes through all blocks once. */
struct eviction {
    struct gs_device *device;
    struct gs_lane *lane;
    struct gpushare_moved *moved;
    uint64_t wanted;
    bool rest;  /* memory that cannot be used from the host goes last, because it has to be restored first */
    bool skips; /* a block was in use */
    enum round {
        UNWRITTEN_WHOLE,  /* never written, so evicted without a copy: pieces that are wanted as a whole */
        UNWRITTEN_EXCESS, /* never written: the smallest piece that is more than enough */
        WHOLE,
        EXCESS,
        EXHAUSTED
    } round;
    CUresult result;
    uint64_t start, reported_at, reported_bytes;
    uint64_t short_since; /* since when the host has had no room, or 0 */
};

static uint64_t lacking(const struct eviction *eviction)
{
    uint64_t leaving = eviction->moved->bytes + eviction->lane->bytes + eviction->lane->queued_bytes;
    return leaving < eviction->wanted ? eviction->wanted - leaving : 0;
}

static bool eligible(const struct gs_block *block, unsigned i, bool unwritten, uint64_t submissions)
{
    const struct gs_piece *piece = &block->pieces[i];
    return !block->unevictable && !piece->moving && piece->state == GS_PIECE_RESIDENT &&
           (!unwritten || piece->untouched == submissions);
}

/* The next piece of this round. In the UNWRITTEN_EXCESS round, the smallest piece that is enough. */
static struct gs_block *next_out_locked(struct eviction *eviction, unsigned *piece)
{
    struct gs_device *device = eviction->device;
    bool excess = eviction->round == UNWRITTEN_EXCESS || eviction->round == EXCESS;
    bool unwritten = eviction->round == UNWRITTEN_WHOLE || eviction->round == UNWRITTEN_EXCESS;
    uint64_t limit = lacking(eviction), submissions = gs_gate_submissions();
    struct gs_block *best = NULL;
    for (; device->cursor != NULL; device->cursor = device->cursor->next) {
        struct gs_block *block = device->cursor;
        if ((block->backend->stay == NULL) != eviction->rest)
            continue;
        eviction->skips = eviction->skips || in_use_locked(block);
        for (unsigned i = 0; i < block->piece_count && !unavailable_locked(block); i++) {
            size_t bytes = gs_piece_bytes(block, i);
            if (!eligible(block, i, unwritten, submissions) || (excess ? bytes < limit : bytes > limit))
                continue;
            if (best == NULL || bytes < gs_piece_bytes(best, *piece)) {
                best = block;
                *piece = i;
            }
            if (!excess)
                return best;
        }
    }
    return best;
}

/* Memory that was never written needs no copy. */
static CUresult discard(struct eviction *eviction, struct gs_block *block, unsigned i)
{
    int64_t bytes = (int64_t)gs_piece_bytes(block, i);
    CUresult result = block->backend->discard(block, i);
    eviction->moved->bytes += result == CUDA_SUCCESS ? (uint64_t)bytes : 0;
    gs_lane_settle(eviction->device, block, i, result == CUDA_SUCCESS ? -bytes : 0, 0);
    return result;
}

/* Chooses one more piece, which then waits for its turn. */
static enum step choose_out(struct eviction *eviction)
{
    struct gs_device *device = eviction->device;
    if (lacking(eviction) == 0)
        return STEP_NOTHING;
    /* If the host is short of room, pieces would only be hashed again. */
    if (gs_lane_queue_full(eviction->lane) || (eviction->short_since != 0 && eviction->lane->queued != 0))
        return STEP_FULL;
    unsigned i = 0;
    struct gs_block *block = NULL;
    gs_mutex_lock(&gs_memory_lock);
    while (eviction->round != EXHAUSTED && (block = next_out_locked(eviction, &i)) == NULL) {
        eviction->round++;
        if (eviction->round == EXHAUSTED && !eviction->rest) {
            eviction->rest = true;
            eviction->round = UNWRITTEN_WHOLE;
        }
        device->cursor = device->blocks;
    }
    if (block != NULL && device->cursor == NULL)
        device->cursor = device->blocks; /* such a round looks at all blocks each time */
    bool taken = block != NULL && gs_lane_take_locked(eviction->lane, block, i);
    bool unwritten = taken && block->pieces[i].untouched == gs_gate_submissions();
    bool again = block == NULL && eviction->skips;
    if (again) {
        eviction->skips = eviction->rest = false;
        eviction->round = UNWRITTEN_WHOLE;
        device->cursor = device->blocks;
    }
    gs_mutex_unlock(&gs_memory_lock);
    if (block == NULL)
        return again ? STEP_AWAITED : STEP_NOTHING;
    if (!taken)
        return STEP_FULL;
    CUresult result = gs_lane_enter(eviction->lane, block->context);
    if (result != CUDA_SUCCESS)
        stay(device, block, i);
    else if (unwritten)
        result = discard(eviction, block, i);
    else
        gs_outward_queue(eviction->lane, block, i);
    if (result == CUDA_SUCCESS)
        return STEP_STARTED;
    eviction->result = result;
    return STEP_FAILED;
}

/* The queued pieces stay on the GPU. The flights behind one that is being hashed wait for it. */
static void empty_queue(struct eviction *eviction)
{
    struct gs_lane *lane = eviction->lane;
    while (lane->queued != 0) {
        struct gs_flight *flight = gs_lane_queued(lane, lane->queued - 1);
        if (gs_outward_poll(flight) == CUDA_ERROR_NOT_READY)
            return;
        struct gs_block *block = flight->block;
        unsigned i = flight->piece;
        gs_lane_unqueue(lane);
        stay(eviction->device, block, i);
    }
}

/* Whether a thread is waiting for the block of a queued piece. */
static bool queue_is_awaited(const struct eviction *eviction)
{
    bool awaited = false;
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned n = 0; n < eviction->lane->queued; n++)
        awaited = awaited || gs_block_awaited_locked(gs_lane_queued(eviction->lane, n)->block);
    gs_mutex_unlock(&gs_memory_lock);
    return awaited;
}

/* Starts to move the piece that was queued first. */
static enum step start_out(struct eviction *eviction)
{
    struct gs_flight *flight = eviction->lane->queued != 0 ? gs_lane_queued(eviction->lane, 0) : NULL;
    if (flight == NULL)
        return STEP_NOTHING;
    if (gs_outward_poll(flight) != CUDA_SUCCESS || gs_lane_full(eviction->lane))
        return STEP_FULL;
    CUresult result = gs_outward_start(eviction->lane, flight);
    if (result == CUDA_SUCCESS)
        return STEP_STARTED;
    if (result == CUDA_ERROR_NOT_READY)
        return STEP_NO_ROOM;
    eviction->result = result;
    return STEP_FAILED;
}

static bool land_out(struct eviction *eviction)
{
    CUresult result;
    struct gs_flight *landed = gs_lane_land(eviction->lane, &result);
    if (landed == NULL)
        return false;
    struct gs_block *block = landed->block;
    struct gpushare_moved *moved = eviction->moved;
    int64_t bytes = (int64_t)gs_piece_bytes(block, landed->piece);
    GS_REAL(cuCtxSetCurrent)(block->context);
    result = gs_outward_finish(landed, result);
    if (result != CUDA_SUCCESS) {
        eviction->result = result;
        stay(eviction->device, block, landed->piece);
        return true;
    }
    moved->bytes += (uint64_t)bytes;
    moved->copied += landed->copied_bytes;
    moved->hashed += landed->hashed ? (uint64_t)bytes : 0;
    moved->zero += landed->zero;
    moved->shared += landed->shared;
    gs_lane_settle(eviction->device, block, landed->piece, -bytes, 0);
    return true;
}

static void report(struct eviction *eviction, bool at_once)
{
    struct gpushare_moved *moved = eviction->moved;
    uint64_t now = gs_now_ns(), unreported = moved->bytes - eviction->reported_bytes;
    if (unreported == 0 || (!at_once && unreported < report_bytes && now - eviction->reported_at < report_gap))
        return;
    eviction->reported_at = now;
    eviction->reported_bytes = moved->bytes;
    conclude(eviction->device, moved, eviction->start, GPUSHARE_MOVE_DONE);
    moves->report(moved);
}

/*
 * Another restore returns host memory, and may be waiting for what was evicted from this GPU. So for a while the
 * eviction tries again. True: it ends.
 */
static bool host_is_short(struct eviction *eviction)
{
    uint64_t now = gs_now_ns();
    if (eviction->short_since == 0)
        eviction->short_since = now;
    if (now - eviction->short_since >= host_patience || moves->grant_waits())
        return true;
    report(eviction, true);
    return false;
}

/* True if the eviction ended because the host has no room for more. */
static bool evict_pieces(struct eviction *eviction)
{
    const struct gs_lane *lane = eviction->lane;
    bool going = true, no_room = false;
    eviction->short_since = 0;
    for (;;) {
        enum step chosen = STEP_NOTHING, started = STEP_NOTHING;
        bool ends = !going || no_room || eviction->result != CUDA_SUCCESS;
        bool awaited = !ends && queue_is_awaited(eviction);
        if (!ends && !awaited) {
            chosen = choose_out(eviction);
            started = start_out(eviction);
        }
        bool landed = land_out(eviction);
        report(eviction, false);
        if (started == STEP_STARTED || landed)
            eviction->short_since = 0;
        if (ends || awaited || started == STEP_NO_ROOM) {
            /* Threads may be waiting for these blocks. If the eviction goes on, it has to come to them again. */
            eviction->skips = eviction->skips || lane->queued != 0;
            empty_queue(eviction);
        }
        if (started == STEP_STARTED || landed || (chosen == STEP_STARTED && started != STEP_NO_ROOM)) {
            going = moves->between_pieces(0) && going;
        } else if (lane->count != 0 || (lane->queued != 0 && started != STEP_NO_ROOM)) {
            going = moves->between_pieces(copy_pause) && going;
        } else if (started == STEP_NO_ROOM) {
            no_room = host_is_short(eviction);
            going = moves->between_pieces(short_pause) && going;
        } else if (chosen == STEP_AWAITED) {
            going = moves->between_pieces(short_pause) && going;
        } else if (!awaited) {
            return no_room;
        }
    }
}

/* Drops the memory of contexts that have failed; returns how much of it was on the device. */
static uint64_t drop_failed(const struct gs_device *device, CUresult seen)
{
    gs_mutex_lock(&gs_memory_lock);
    uint64_t before = device->usage.resident;
    gs_mutex_unlock(&gs_memory_lock);
    gs_context_observe(seen);
    if (!gs_memory_drop_failed())
        return 0;
    gs_mutex_lock(&gs_memory_lock);
    uint64_t after = device->usage.resident;
    gs_mutex_unlock(&gs_memory_lock);
    return before > after ? before - after : 0;
}

/* Begins to get host memory ready for what has never been evicted. */
static void expect(const struct gs_device *device, uint64_t wanted)
{
    CUcontext context = NULL;
    uint64_t bytes = 0, submissions = gs_gate_submissions();
    gs_mutex_lock(&gs_memory_lock);
    for (const struct gs_block *block = device->blocks; block != NULL; block = block->next)
        for (unsigned i = 0; i < block->piece_count && block->backend->needs_host; i++)
            if (eligible(block, i, false, submissions) && block->pieces[i].host == NULL &&
                block->pieces[i].untouched != submissions && block->context != NULL) {
                bytes += gs_piece_bytes(block, i);
                context = block->context;
            }
    gs_host_expect(bytes < wanted ? bytes : wanted, context); /* the context cannot end before this */
    gs_mutex_unlock(&gs_memory_lock);
}

void gs_mover_evict(const uint8_t uuid[16], uint64_t bytes, struct gpushare_moved *result)
{
    struct gs_device *device = gs_device_by_uuid(uuid);
    *result = (struct gpushare_moved){.serial = result->serial, .status = GPUSHARE_MOVE_FAILED};
    memcpy(result->usage.gpu, uuid, 16);
    if (device == NULL)
        return;
    uint64_t now = gs_now_ns();
    struct eviction eviction = {.device = device,
                                .lane = gs_lane_of(device),
                                .moved = result,
                                .wanted = bytes,
                                .start = now,
                                .reported_at = now};
    bool host_short = false;
    gs_outward_begin();
    gs_host_begin_moving();
    uint64_t dropped = drop_failed(device, CUDA_SUCCESS);
    expect(device, bytes);
    do {
        result->bytes += dropped;
        eviction.result = CUDA_SUCCESS;
        eviction.rest = false;
        eviction.round = UNWRITTEN_WHOLE;
        gs_mutex_lock(&gs_memory_lock);
        device->cursor = device->blocks;
        gs_mutex_unlock(&gs_memory_lock);
        host_short = evict_pieces(&eviction);
    } while (eviction.result != CUDA_SUCCESS && (dropped = drop_failed(device, eviction.result)) != 0);
    gs_host_expect_no_more();
    gs_host_end_moving();
    gs_host_set_away(gs_devices_are_empty());
    bool failed = host_short || eviction.result != CUDA_SUCCESS;
    /* The scheduler tries again, but the user needs only one line. */
    if (host_short && !stuck)
        gs_print(
            "the host has too little free memory: only %llu of %llu MiB of this process's data could be evicted from "
            "the GPU. No data is lost. End programs that use host memory",
            (unsigned long long)(result->bytes / MIB), (unsigned long long)(bytes / MIB));
    else if (failed && !stuck && eviction.result != CUDA_ERROR_DEINITIALIZED) /* the process is exiting */
        gs_print("could not evict this process's data from the GPU (CUDA error %d); it stays on the GPU",
                 (int)eviction.result);
    stuck = failed;
    gs_host_count_shared();
    conclude(device, result, eviction.start,
             !failed                            ? GPUSHARE_MOVE_DONE
             : result->bytes != 0 || host_short ? GPUSHARE_MOVE_PARTIAL
                                                : GPUSHARE_MOVE_FAILED);
}

/* --- Restore --- */

struct arrival {
    struct gs_device *device;
    bool rest; /* memory that has to be on the GPU comes first, then memory that can also be used from the host */
    struct gs_lane *lane;
    struct gpushare_moved *moved;
    uint64_t short_since;      /* since when the driver has had no memory, or 0 */
    bool awaits_disk;          /* pieces were passed over since the first block, because their data is on a disk */
    bool unreadable;           /* of some of them, it could not be read */
    uint64_t unreadable_since; /* or 0 */
    uint64_t stated, stated_at;
    CUresult result;
};

/* How much may be on the GPU, as far as it is known. */
struct room {
    uint64_t bytes;
    bool last;
};

static struct room room_on(const struct gs_device *device)
{
    struct room room;
    room.bytes = moves->room(device->usage.gpu, &room.last);
    return room;
}

static bool fits_locked(const struct gs_device *device, const struct gs_block *block, unsigned i, struct room room)
{
    return device->usage.resident + gs_lane_of(device)->bytes + gs_piece_bytes(block, i) <= room.bytes;
}

/* Whether a piece is where it should be. */
static bool settled_locked(const struct gs_device *device, const struct gs_block *block, unsigned i, struct room room)
{
    const struct gs_piece *piece = &block->pieces[i];
    return piece->state == GS_PIECE_RESIDENT || (piece->far && room.last && !fits_locked(device, block, i, room));
}

/* Whether the data of a piece is on a disk. The scheduler reads it from there, in the meantime other pieces move. */
static bool awaits_disk_locked(struct arrival *arrival, const struct gs_block *block, unsigned i)
{
    const struct gs_piece *piece = &block->pieces[i];
    if (piece->state != GS_PIECE_SWAPPED || !block->backend->needs_host)
        return false;
    enum gs_host_where where = gs_host_where(piece->host);
    arrival->unreadable = arrival->unreadable || where == GS_HOST_FAILS;
    arrival->awaits_disk = arrival->awaits_disk || where != GS_HOST_HERE;
    return where != GS_HOST_HERE;
}

/* The next piece that is not where it should be. */
static struct gs_block *next_in_locked(struct arrival *arrival, struct room room, unsigned *piece)
{
    struct gs_device *device = arrival->device;
    for (;;) {
        for (; device->cursor != NULL; device->cursor = device->cursor->next) {
            struct gs_block *block = device->cursor;
            if ((block->backend->stay != NULL) != arrival->rest)
                continue;
            for (unsigned i = 0; i < block->piece_count && !unavailable_locked(block); i++) {
                if (block->pieces[i].moving || settled_locked(device, block, i, room) ||
                    awaits_disk_locked(arrival, block, i))
                    continue;
                *piece = i;
                return block;
            }
        }
        if (arrival->rest)
            return NULL;
        arrival->rest = true;
        device->cursor = device->blocks;
    }
}

/* The GPU has no room for the piece, so it is used from the host. */
static CUresult leave(struct gs_device *device, struct gs_block *block, unsigned i)
{
    CUresult result = gs_lane_enter(gs_lane_of(device), block->context);
    if (result == CUDA_SUCCESS)
        block->backend->stay(block, i);
    gs_mutex_lock(&gs_memory_lock);
    block->pieces[i].far = result == CUDA_SUCCESS;
    gs_mutex_unlock(&gs_memory_lock);
    return result;
}

static CUresult begin_in(struct gs_lane *lane, struct gs_block *block, unsigned i)
{
    struct gs_piece *piece = &block->pieces[i];
    CUresult result = gs_lane_enter(lane, block->context);
    if (result != CUDA_SUCCESS)
        return result;
    if (piece->state == GS_PIECE_EMPTY) {
        uint64_t submissions = gs_gate_submissions();
        piece->untouched = gs_context_idle(submissions) ? submissions : GS_WRITTEN;
        result = block->backend->populate(block, i, lane->stream);
        if (result == CUDA_SUCCESS && (result = gs_lane_launch(lane, block, i, false)) != CUDA_SUCCESS)
            block->backend->drop(block, i);
        return result;
    }
    if (block->backend->needs_host)
        gs_host_prepare_reading(piece->host);
    result = block->backend->start_in(block, i, lane->stream);
    if (result == CUDA_SUCCESS && (result = gs_lane_launch(lane, block, i, true)) != CUDA_SUCCESS)
        block->backend->abort_in(block, i);
    return result;
}

/* No other piece can be started now. The pieces on the disk are looked at again. */
static enum step await_disk(struct arrival *arrival)
{
    uint64_t now = gs_now_ns();
    if (!arrival->unreadable)
        arrival->unreadable_since = 0;
    else if (arrival->unreadable_since == 0)
        arrival->unreadable_since = now;
    else if (now - arrival->unreadable_since >= disk_patience) {
        gs_print("the scheduler cannot read this process's data back from the disk. No data is lost unless the disk "
                 "has failed. See `gpushare doctor`, and run the cell again");
        arrival->result = CUDA_ERROR_OPERATING_SYSTEM;
        return STEP_FAILED;
    }
    arrival->awaits_disk = arrival->unreadable = arrival->rest = false;
    gs_mutex_lock(&gs_memory_lock);
    arrival->device->cursor = arrival->device->blocks;
    gs_mutex_unlock(&gs_memory_lock);
    return STEP_AWAITED;
}

static enum step start_in(struct arrival *arrival)
{
    struct gs_device *device = arrival->device;
    struct gs_lane *lane = arrival->lane;
    if (gs_lane_full(lane))
        return STEP_FULL;
    struct room room = room_on(device);
    unsigned i = 0;
    bool taken = false, fits = false, stays = false;
    gs_mutex_lock(&gs_memory_lock);
    struct gs_block *block = next_in_locked(arrival, room, &i);
    if (block != NULL) {
        fits = fits_locked(device, block, i, room);
        stays = !fits && room.last && block->backend->stay != NULL;
        taken = (fits || stays) && gs_lane_take_locked(lane, block, i);
    }
    gs_mutex_unlock(&gs_memory_lock);
    if (block == NULL)
        return arrival->awaits_disk ? await_disk(arrival) : STEP_NOTHING;
    if (!fits && !stays && room.last)
        arrival->result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!taken)
        return fits || stays ? STEP_FULL : room.last ? STEP_FAILED : STEP_NO_ROOM;
    CUresult result = stays ? leave(device, block, i) : begin_in(lane, block, i);
    if (result == CUDA_SUCCESS && !stays) {
        arrival->short_since = 0;
        return STEP_STARTED;
    }
    stay(device, block, i);
    if (result == CUDA_SUCCESS)
        return STEP_STARTED;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        uint64_t now = gs_now_ns();
        if (arrival->short_since == 0)
            arrival->short_since = now;
        if (now - arrival->short_since < device_patience)
            return STEP_NO_ROOM;
    }
    arrival->result = result;
    return STEP_FAILED;
}

/* How many bytes of a restored piece can leave again without a copy, as far as is known. */
static uint64_t clean_bytes(const struct gs_piece *piece, uint64_t bytes)
{
    unsigned units = piece->host != NULL ? gs_host_known(piece->host) : 0;
    if (piece->change.compared && units > piece->change.unchanged)
        units = piece->change.unchanged;
    uint64_t clean = (uint64_t)units * GPUSHARE_DIGEST_UNIT;
    return clean < bytes ? clean : bytes;
}

static bool land_in(struct arrival *arrival)
{
    CUresult result;
    struct gs_flight *landed = gs_lane_land(arrival->lane, &result);
    if (landed == NULL)
        return false;
    struct gs_block *block = landed->block;
    unsigned i = landed->piece;
    struct gs_piece *piece = &block->pieces[i];
    int64_t bytes = (int64_t)gs_piece_bytes(block, i);
    uint64_t clean = 0, copied = landed->copied ? (uint64_t)bytes : 0;
    if (piece->state == GS_PIECE_SWAPPED && result == CUDA_SUCCESS) {
        block->backend->finish_in(block, i);
        piece->untouched = GS_WRITTEN;
        if (piece->host != NULL)
            copied = gs_host_needed(piece->host);
        gs_piece_release_host(piece);
        clean = clean_bytes(piece, (uint64_t)bytes);
    } else if (piece->state == GS_PIECE_SWAPPED) {
        gs_staging_cancel(piece->host);
        block->backend->abort_in(block, i);
    } else if (result != CUDA_SUCCESS) {
        block->backend->drop(block, i);
    }
    if (result == CUDA_SUCCESS) {
        gs_mutex_lock(&gs_memory_lock);
        piece->far = false;
        gs_mutex_unlock(&gs_memory_lock);
        arrival->moved->bytes += (uint64_t)bytes;
        arrival->moved->copied += copied;
    } else {
        arrival->result = result;
    }
    gs_lane_settle(arrival->device, block, i, result == CUDA_SUCCESS ? bytes : 0, clean);
    return true;
}

/*
 * While room is being made, the scheduler reads the device's figures, and must not mistake restored memory for foreign
 * use. So the restored bytes are reported from time to time, and always before a wait for more room.
 */
static bool state_arrived(struct arrival *arrival, bool waits)
{
    uint64_t now = gs_now_ns();
    if (arrival->stated == arrival->moved->bytes || (!waits && now - arrival->stated_at < state_gap) ||
        room_on(arrival->device).last)
        return false;
    arrival->stated = arrival->moved->bytes;
    arrival->stated_at = now;
    gs_mutex_lock(&gs_memory_lock);
    arrival->device->usage_changed = true;
    gs_mutex_unlock(&gs_memory_lock);
    return true;
}

static unsigned known_devices(void)
{
    unsigned count = 0;
    gs_mutex_lock(&gs_memory_lock);
    while (count < GPUSHARE_MAX_GPUS && gs_devices[count].known)
        count++;
    gs_mutex_unlock(&gs_memory_lock);
    return count;
}

/* Calls `open` and returns true if no block lacks memory. Otherwise, all blocks are checked again. */
static bool open_if_complete(void (*open)(void *), void *argument)
{
    bool complete = true;
    struct room rooms[GPUSHARE_MAX_GPUS] = {{0}};
    for (unsigned d = 0, count = known_devices(); d < count; d++)
        rooms[d] = room_on(&gs_devices[d]);
    gs_mutex_lock(&gs_memory_lock);
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++) {
        struct gs_device *device = &gs_devices[d];
        for (struct gs_block *block = device->blocks; block != NULL && complete; block = block->next)
            for (unsigned i = 0; i < block->piece_count && complete && block->context != NULL; i++)
                complete = !block->moving && settled_locked(device, block, i, rooms[d]);
        device->cursor = device->blocks;
    }
    if (complete)
        open(argument);
    gs_mutex_unlock(&gs_memory_lock);
    return complete;
}

bool gs_mover_has_room(void)
{
    bool room = true;
    for (unsigned d = 0, count = known_devices(); d < count && room; d++) {
        struct gs_lane *lane = gs_lane_of(&gs_devices[d]);
        size_t available, total;
        gs_mutex_lock(&gs_memory_lock);
        uint64_t missing = gs_devices[d].footprint - gs_devices[d].usage.resident;
        CUcontext context = missing != 0 && lane->count == 0 ? lane->context : NULL;
        lane->busy = lane->busy || context != NULL;
        gs_mutex_unlock(&gs_memory_lock);
        if (context == NULL)
            continue;
        if (GS_REAL(cuCtxSetCurrent)(context) == CUDA_SUCCESS &&
            GS_REAL(cuMemGetInfo_v2)(&available, &total) == CUDA_SUCCESS)
            room = available >= missing;
        gs_mutex_lock(&gs_memory_lock);
        gs_lane_leave_locked(lane);
        gs_mutex_unlock(&gs_memory_lock);
    }
    return room;
}

/* If contexts have failed, the restore continues without their memory. */
static bool forgive_failed(struct arrival arrivals[GPUSHARE_MAX_GPUS])
{
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++)
        gs_context_observe(arrivals[d].result);
    if (!gs_memory_drop_failed())
        return false;
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++) {
        arrivals[d].result = CUDA_SUCCESS;
        arrivals[d].rest = false;
    }
    return true;
}

enum gs_restored gs_mover_restore(struct gpushare_moved results[GPUSHARE_MAX_GPUS], unsigned *devices,
                                  void (*open)(void *), void *argument)
{
    uint64_t start = gs_now_ns();
    struct arrival arrivals[GPUSHARE_MAX_GPUS];
    enum gs_restored restored = GS_RESTORED;
    memset(results, 0, GPUSHARE_MAX_GPUS * sizeof(results[0]));
    for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++)
        arrivals[d] =
            (struct arrival){.device = &gs_devices[d], .lane = gs_lane_of(&gs_devices[d]), .moved = &results[d]};
    gs_memory_drop_failed();
    gs_host_begin_moving();
    gs_host_set_away(false);
    bool opened = open_if_complete(open, argument);
    while (!opened) {
        bool progress = false, flying = false, wanting = false, device_short = false, changed = false;
        for (unsigned d = 0, count = known_devices(); d < count; d++) {
            struct arrival *arrival = &arrivals[d];
            enum step step = STEP_STARTED;
            while (restored == GS_RESTORED && step == STEP_STARTED) {
                step = start_in(arrival);
                progress = progress || step == STEP_STARTED;
                if (step == STEP_STARTED && !moves->between_pieces(0))
                    restored = GS_RESTORE_ENDED;
            }
            while (land_in(arrival))
                progress = true;
            if (arrival->result != CUDA_SUCCESS)
                restored = GS_RESTORE_FAILED;
            flying = flying || arrival->lane->count != 0;
            wanting = wanting || step == STEP_NO_ROOM;
            device_short = device_short || arrival->short_since != 0;
            changed = state_arrived(arrival, step == STEP_NO_ROOM && arrival->lane->count == 0) || changed;
        }
        if (changed)
            gs_device_flush_reports();
        if (!flying && restored == GS_RESTORE_FAILED && forgive_failed(arrivals)) {
            restored = GS_RESTORED;
            opened = open_if_complete(open, argument);
            continue;
        }
        if (!flying && restored != GS_RESTORED)
            break;
        if (progress)
            continue;
        if (!flying && !wanting) {
            opened = open_if_complete(open, argument);
            if (opened)
                break;
            for (unsigned d = 0; d < GPUSHARE_MAX_GPUS; d++)
                arrivals[d].rest = false;
        }
        uint64_t pause = flying ? copy_pause : wanting && !device_short ? room_pause : short_pause;
        if (!moves->between_pieces(pause) && restored == GS_RESTORED)
            restored = GS_RESTORE_ENDED;
    }
    gs_host_end_moving();
    *devices = known_devices();
    gs_host_count_shared();
    for (unsigned d = 0; d < *devices; d++)
        /* A grant is of no use unless everything is resident. */
        conclude(&gs_devices[d], &results[d], start,
                 restored == GS_RESTORED         ? GPUSHARE_MOVE_DONE
                 : restored == GS_RESTORE_FAILED ? GPUSHARE_MOVE_FAILED
                                                 : GPUSHARE_MOVE_PARTIAL);
    for (unsigned d = 0; d < *devices; d++)
        results[d].error = (uint32_t)arrivals[d].result;
    return restored;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory/outward.h"

#include "digest.h"
#include "loader/real.h"
#include "memory/hasher.h"
#include "memory/host.h"

#include <string.h>

/*
 * Hashing takes a fiftieth of the time of a copy, so it stops only after PATIENCE evictions in a row for which all data
 * had changed. From then on, a piece is not hashed for 1, 3, 7, ... evictions, at most 63.
 */
enum { PATIENCE = 4, MOST_CHANGED = 9 };

/* The pool with whose key data is hashed; 0: none. */
static uint64_t key_of;

void gs_outward_begin(void)
{
    uint64_t key[GPUSHARE_DIGEST_SEED / sizeof(uint64_t)], pool;
    if (!gs_host_key(key, &pool)) {
        key_of = 0;
    } else if (pool != key_of) {
        uint8_t seed[GPUSHARE_DIGEST_SEED];
        memcpy(seed, key, sizeof(seed));
        gs_hasher_set_seed(seed);
        key_of = pool;
    }
}

static bool pays(struct gs_change *change)
{
    if (key_of == 0)
        return false;
    if (change->unhashed == 0)
        return true;
    change->unhashed--;
    return false;
}

void gs_outward_queue(struct gs_lane *lane, struct gs_block *block, unsigned i)
{
    struct gs_flight *flight = gs_lane_queue(lane, block, i);
    CUdeviceptr address;
    if (block->backend->show == NULL || !pays(&block->pieces[i].change) ||
        block->backend->show(block, i, &address) != CUDA_SUCCESS)
        return;
    flight->job = gs_hasher_begin(block->context, address, gs_piece_bytes(block, i));
    if (flight->job == NULL)
        block->backend->hide(block, i);
}

CUresult gs_outward_poll(struct gs_flight *flight)
{
    if (flight->job == NULL)
        return CUDA_SUCCESS;
    CUresult result = gs_hasher_poll(flight->job, flight->digests);
    if (result == CUDA_ERROR_NOT_READY)
        return result;
    flight->job = NULL;
    flight->hashed = result == CUDA_SUCCESS; /* otherwise all of it is copied, or that fails, too */
    flight->block->backend->hide(flight->block, flight->piece);
    return CUDA_SUCCESS;
}

static struct gs_host_digests digests_of(const struct gs_flight *flight)
{
    return (struct gs_host_digests){.of_units = flight->hashed ? flight->digests : NULL, .pool = key_of};
}

/* Remembers whether hashing has paid. `known`: of how many units the earlier data was known. */
static void learn(struct gs_change *change, const struct gs_host_summary *summary, unsigned known)
{
    unsigned unchanged = summary->zero + summary->same + summary->shared;
    if (known == 0 && unchanged == 0)
        return; /* there was nothing to compare with */
    change->compared = true;
    change->unchanged = (uint16_t)unchanged;
    if (unchanged != 0)
        change->changed = 0;
    else if (change->changed < MOST_CHANGED)
        change->changed++;
    if (change->changed >= PATIENCE)
        change->unhashed = (uint8_t)((1u << (change->changed - PATIENCE + 1)) - 1);
}

static bool take_host(struct gs_flight *flight)
{
    struct gs_piece *piece = &flight->block->pieces[flight->piece];
    size_t bytes = gs_piece_bytes(flight->block, flight->piece);
    if (piece->host == NULL && (piece->host = gs_host_record_new(bytes)) == NULL)
        return false;
    struct gs_host_digests digests = digests_of(flight);
    struct gs_host_summary summary;
    unsigned known = gs_host_known(piece->host);
    if (!gs_host_take(piece->host, &digests, &summary))
        return false;
    if (flight->hashed)
        learn(&piece->change, &summary, known);
    flight->zero = (uint64_t)summary.zero * GPUSHARE_DIGEST_UNIT;
    flight->shared = (uint64_t)summary.shared * GPUSHARE_DIGEST_UNIT;
    flight->copied_bytes = (uint64_t)summary.written * GPUSHARE_DIGEST_UNIT;
    if (flight->copied_bytes > bytes)
        flight->copied_bytes = bytes;
    return true;
}

CUresult gs_outward_start(struct gs_lane *lane, struct gs_flight *flight)
{
    struct gs_block *block = flight->block;
    CUresult result = gs_lane_enter(lane, block->context);
    if (result != CUDA_SUCCESS)
        return result;
    flight->copied_bytes = gs_piece_bytes(block, flight->piece);
    if (block->backend->needs_host && !take_host(flight))
        return CUDA_ERROR_NOT_READY;
    result = block->backend->start_out(block, flight->piece, lane->stream);
    if (result == CUDA_SUCCESS)
        result = gs_lane_launch_queued(lane);
    if (result != CUDA_SUCCESS)
        gs_piece_release_host(&block->pieces[flight->piece]);
    return result;
}

CUresult gs_outward_finish(struct gs_flight *flight, CUresult result)
{
    struct gs_block *block = flight->block;
    struct gs_piece *piece = &block->pieces[flight->piece];
    struct gs_host_digests digests = digests_of(flight);
    if (result == CUDA_SUCCESS && block->backend->needs_host)
        gs_host_publish(piece->host, &digests);
    if (result == CUDA_SUCCESS)
        result = block->backend->finish_out(block, flight->piece);
    if (result != CUDA_SUCCESS)
        gs_piece_release_host(piece);
    return result;
}

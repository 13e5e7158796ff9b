/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Host memory for swapped data: chunks of the user's pool (pool.h), page-locked, not copied by fork.
 *
 * A piece is a list of extents, each within one registration, so that each is to be copied by a call of its own. What
 * is page-locked ahead of need, or stays so for the next move, follows the scheduler's PREPARE.
 */
#ifndef GPUSHARE_MEMORY_HOST_H
#define GPUSHARE_MEMORY_HOST_H

#include "driver.h"

#include <stddef.h>
#include <stdint.h>

struct gs_host_extent {
    void *address;
    size_t bytes;
};

struct gs_host_piece;

/*
 * The scheduler's pool and our mark in it. Takes the descriptor over. -1: it has none, and a private pool of the same
 * layout is made on first need. The pool that we have already is kept; of an earlier one, what is in use lives on.
 */
void gs_host_offer(int fd, uint32_t slot);

/* Needs a current context. Page-locked already, or now. NULL: no room at present. */
struct gs_host_piece *gs_host_take(size_t bytes);

/* Memory stays page-locked up to what was asked for by gs_host_prepare; the rest is unlocked in the background. */
void gs_host_give(struct gs_host_piece *piece);

/* Their number; together they have the piece's bytes, in this order. */
unsigned gs_host_extents(const struct gs_host_piece *piece, const struct gs_host_extent **extents);

/* Bytes of the chunks that we own. */
uint64_t gs_host_bytes(void);

/* Host memory that swapped data may take, of all processes together. */
uint64_t gs_host_limit(void);

/* Bytes that had to be page-locked on the path of a move, since the process began. */
uint64_t gs_host_page_locked_late(void);

/* Has so many bytes page-locked, in use or free, by a thread of low priority. */
void gs_host_prepare(uint64_t bytes, CUcontext context);

/* Page-locks that were made in the context go with it. To be called before or after its end. */
void gs_host_context_ends(CUcontext context);

/* The driver may have lost page-locks when the process was checkpointed: those are made again. */
void gs_host_restored(void);

void gs_host_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Small allocations share blocks ("slabs"): which ranges of them are free. Called under gs_memory_lock, which none of
 * them gives up.
 *
 * The free ranges of all slabs of one home are in lists by size, neighbours that are both free are one range: taking
 * and giving take the same short time however many there are (a two-level segregated fit; Masmano and others, 2004).
 * What a list holds is at most 1/8 larger than asked for, and what is too much is split off.
 */
#ifndef GPUSHARE_MEMORY_SLAB_H
#define GPUSHARE_MEMORY_SLAB_H

#include "memory/block.h"

#include <stdbool.h>
#include <stddef.h>

struct gs_slab;

/* A range that is in use. */
struct gs_range;

CUdeviceptr gs_range_address(const struct gs_range *range);
struct gs_block *gs_range_block(const struct gs_range *range);

/*
 * NULL if no slab of that home has room. A home is whatever the memory goes with: a context, or a device for memory
 * that outlives its context.
 */
struct gs_range *gs_slab_take_locked(const void *home, size_t size);

/* The slab is open. */
void gs_slab_give_locked(struct gs_range *range);

/*
 * Makes a new block a slab of that home, and takes `size` bytes of it, which must fit. NULL: no memory. To be called
 * without the lock. gs_slab_open_locked lets others take from it.
 */
struct gs_range *gs_slab_make(struct gs_block *block, const void *home, size_t size);
void gs_slab_open_locked(struct gs_slab *slab);

/* False: nothing else can be in the range's slab, which goes with it. */
bool gs_range_is_open_locked(const struct gs_range *range);

/*
 * An empty slab of that home that is to go; it is not taken from any more. One empty slab is kept for a while beside
 * others, so that allocations at the brink do not make and destroy one each time. NULL: none.
 */
struct gs_block *gs_slab_surplus_locked(const void *home);

/* For gs_block_free; all of it is free, or it was never opened. */
void gs_slab_free(struct gs_slab *slab);

#endif

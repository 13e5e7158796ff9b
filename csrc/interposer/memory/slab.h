/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Slabs: blocks that are shared by small allocations, and their free ranges. All functions are called under
 * gs_memory_lock and do not release it.
 *
 * The free ranges of all slabs of one home are in lists by size, and adjacent free ranges are merged. Taking and
 * returning a range take the same short time, however many there are (two-level segregated fit; Masmano and others,
 * 2004). A range is at most 1/8 larger than requested when it is found, and the excess is split off.
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
 * NULL if no slab of that home has room. The home is what the memory's life depends on: a context, or a device for
 * memory that outlives its context.
 */
struct gs_range *gs_slab_take_locked(const void *home, size_t size);

/* Returns a range. The slab must be open. */
void gs_slab_return_locked(struct gs_range *range);

/*
 * Makes a new block a slab of that home, and takes `size` bytes of it, which must fit. NULL: out of memory. Called
 * without the lock. Other threads can use the slab after gs_slab_open_locked.
 */
struct gs_range *gs_slab_make(struct gs_block *block, const void *home, size_t size);
void gs_slab_open_locked(struct gs_slab *slab);

/* False: the slab can contain no other range, and ends with this one. */
bool gs_range_is_open_locked(const struct gs_range *range);

/*
 * Removes and returns an empty slab of that home. NULL: there is none to remove. One empty slab is kept for a while in
 * addition to those in use. Otherwise a program that allocates and frees continually could create and destroy a slab
 * each time.
 */
struct gs_block *gs_slab_surplus_locked(const void *home);

/* For gs_block_free; the whole slab is free, or it was never opened. */
void gs_slab_free(struct gs_slab *slab);

#endif

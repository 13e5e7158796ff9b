/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pool of host memory, in chunks: the scheduler's, which all processes of the machine claim chunks of (pool.h), or
 * one of our own. For host.c, whose lock guards it, and for population.c.
 */
#ifndef GPUSHARE_MEMORY_HOST_POOL_H
#define GPUSHARE_MEMORY_HOST_POOL_H

#include "driver.h"
#include "pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* What a chunk is shared by, where pieces are smaller: device memory comes in multiples of it. */
enum {
    GS_HOST_UNIT = 2 << 20,
    GS_HOST_UNITS = GPUSHARE_POOL_CHUNK / GS_HOST_UNIT,
    GS_HOST_ALL_UNITS = (1 << GS_HOST_UNITS) - 1
};

struct gs_host_chunk {
    CUcontext page_locked_in; /* NULL: not page-locked by us */
    uint8_t used;             /* a bit for each unit that a piece has */
    bool fresh;               /* just claimed: others wait until it is page-locked */
    struct gs_host_chunk *next, **link;
};

struct gs_host_pool {
    struct gpushare_pool *shared;
    char *data;
    size_t mapped;
    uint32_t count, slot;
    bool own; /* not a scheduler's */
    dev_t device;
    ino_t inode;
    struct gs_host_chunk *chunks;
    struct gs_host_chunk *partial; /* ours, and neither full nor fresh */
    unsigned pieces;
    uint32_t page_locked; /* chunks that we have page-locked, whoever owns them now */
    struct gs_host_pool *next;
};

/* The order in which chunks are preferred: none but the first is page-locked already. */
enum gs_host_preference {
    GS_HOST_PAGE_LOCKED,
    GS_HOST_PREPARED,
    GS_HOST_PREPARED_FOR_ANOTHER,
    GS_HOST_UNPREPARED,
    GS_HOST_NO_PREFERENCE
};

struct gs_host_search {
    enum gs_host_preference preference;
    uint32_t next;
};

/* The scheduler's, which the descriptor is of. NULL, and said, if it cannot be used. */
struct gs_host_pool *gs_host_pool_map(int fd, const struct stat *file, uint32_t slot);

/* Addresses for as much as the host has, pages as they are needed. */
struct gs_host_pool *gs_host_pool_make(void);

void gs_host_pool_destroy(struct gs_host_pool *pool);

/* Which chunk an address is in, and where a chunk is. */
uint32_t gs_host_pool_index(const struct gs_host_pool *pool, const void *address);
char *gs_host_pool_address(const struct gs_host_pool *pool, uint32_t i);

/* How many of the chunks are to be used. */
uint32_t gs_host_pool_limit(const struct gs_host_pool *pool);

/* False: another process has it. */
bool gs_host_pool_claim(struct gs_host_pool *pool, uint32_t i);

/* The next best chunk, claimed. */
bool gs_host_pool_claim_best(struct gs_host_pool *pool, struct gs_host_search *search, uint32_t *found);

/* Makes its pages exist, and be in our page tables; the caller owns it. False if the host has none. */
bool gs_host_pool_populate(struct gs_host_pool *pool, uint32_t i);

/* In the current context. */
CUresult gs_host_pool_page_lock(struct gs_host_pool *pool, uint32_t i);

/* Keeps the list of chunks that others of our pieces can share. */
void gs_host_pool_list_partial(struct gs_host_pool *pool, struct gs_host_chunk *chunk);

/* The mask of `units` bits, from bit `first` on. */
uint8_t gs_host_pool_mask(unsigned first, unsigned units);

/* The units of the first free run from `from` on. */
unsigned gs_host_pool_run_after(uint8_t used, unsigned from, unsigned *first);

#endif

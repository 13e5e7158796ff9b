/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pool of host memory, in chunks. Either the scheduler's pool, from which all processes of the user claim chunks
 * (pool.h), or a private one. For host.c, whose lock guards it, and for population.c.
 */
#ifndef GPUSHARE_MEMORY_HOST_POOL_H
#define GPUSHARE_MEMORY_HOST_POOL_H

#include "driver.h"
#include "pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* The unit in which pieces share a chunk. Device memory is a multiple of it. */
enum {
    GS_HOST_UNIT = 2 << 20,
    GS_HOST_UNITS = GPUSHARE_POOL_CHUNK / GS_HOST_UNIT,
    GS_HOST_ALL_UNITS = (1 << GS_HOST_UNITS) - 1
};

struct gs_host_chunk {
    CUcontext page_locked_in; /* NULL: not page-locked by this process */
    uint8_t used;             /* one bit for each unit that a piece uses */
    bool fresh;               /* just claimed: other threads wait until it is page-locked */
    struct gs_host_chunk *next, **link;
};

struct gs_host_pool {
    struct gpushare_pool *shared;
    char *data;
    size_t mapped;
    uint32_t count, slot;
    bool own; /* private, not a scheduler's */
    dev_t device;
    ino_t inode;
    struct gs_host_chunk *chunks;
    struct gs_host_chunk *partial; /* owned by this process, and neither full nor fresh */
    unsigned pieces;
    uint32_t page_locked; /* chunks that this process has page-locked, whichever process owns them now */
    struct gs_host_pool *next;
};

/* The order in which chunks are preferred. Only the first kind is page-locked already. */
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

/* Maps the scheduler's pool, given its descriptor. NULL, after printing the reason, if it cannot be used. */
struct gs_host_pool *gs_host_pool_map(int fd, const struct stat *file, uint32_t slot);

/* Creates a private pool: addresses for as much as the host has, and pages on demand. */
struct gs_host_pool *gs_host_pool_make(void);

void gs_host_pool_destroy(struct gs_host_pool *pool);

/* The chunk of an address, and the address of a chunk. */
uint32_t gs_host_pool_index(const struct gs_host_pool *pool, const void *address);
char *gs_host_pool_address(const struct gs_host_pool *pool, uint32_t i);

/* How many chunks may be used. */
uint32_t gs_host_pool_limit(const struct gs_host_pool *pool);

/* False: another process owns the chunk. */
bool gs_host_pool_claim(struct gs_host_pool *pool, uint32_t i);

/* Claims the best chunk that is free. */
bool gs_host_pool_claim_best(struct gs_host_pool *pool, struct gs_host_search *search, uint32_t *found);

/*
 * Creates the chunk's pages and maps them into this process; the caller owns the chunk. False if the host has no pages.
 */
bool gs_host_pool_populate(struct gs_host_pool *pool, uint32_t i);

/* Page-locks the chunk in the current context. */
CUresult gs_host_pool_page_lock(struct gs_host_pool *pool, uint32_t i);

/* Keeps the list of chunks that have room for more pieces. */
void gs_host_pool_list_partial(struct gs_host_pool *pool, struct gs_host_chunk *chunk);

/* A mask of `units` bits, from bit `first` on. */
uint8_t gs_host_pool_mask(unsigned first, unsigned units);

/* The length of the first free run at or after `from`; *first is its start. */
unsigned gs_host_pool_run_after(uint8_t used, unsigned from, unsigned *first);

#endif

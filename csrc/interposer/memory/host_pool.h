/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A pool of host memory, as this process has mapped it. Either the scheduler's pool, from which all processes of the
 * user claim units (pool.h), or a private one. For host.c, whose lock guards it, and for population.c.
 */
#ifndef GPUSHARE_MEMORY_HOST_POOL_H
#define GPUSHARE_MEMORY_HOST_POOL_H

#include "driver.h"
#include "pool.h"
#include "pool_directory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum { GS_HOST_UNIT = GPUSHARE_POOL_UNIT, GS_HOST_UNITS = GPUSHARE_POOL_UNITS };

/* What a move has done to get a chunk ready for copies (host_crew.c). */
enum gs_host_stage { GS_HOST_AT_REST, GS_HOST_TO_MAKE, GS_HOST_MAKING, GS_HOST_TO_LOCK, GS_HOST_LOCKING };

/* What this process has of a chunk. */
struct gs_host_chunk {
    CUcontext page_locked_in;        /* NULL: not page-locked by this process */
    uint32_t holders[GS_HOST_UNITS]; /* number of records that need the unit */
    uint32_t homes;                  /* number of units that records of restored pieces have here */
    uint8_t used;                    /* one bit for each unit that this process needs or writes */
    enum gs_host_stage stage;
    bool ahead;       /* claimed as a whole for an eviction, and not used yet */
    bool lacks_pages; /* the host had no pages for it */
    bool working;     /* the thread is page-locking or unlocking it */
    bool unlocking;
    bool stays_locked; /* the driver did not end the page-lock, so the pages must stay, and copies do without it */
    struct gs_host_pool *pool; /* valid if it is not at rest */
    struct gs_host_chunk *queued;
    bool bare;                          /* used, and not page-locked */
    struct gs_host_chunk *next, **link; /* chunks with used and other units that no move is page-locking */
};

/* Chunks that contain kept copies, by the time when they were last used. */
enum { GS_HOST_OLDEST = 64 };
struct gs_host_kept {
    uint32_t chunk, used_at;
};

struct gs_host_pool {
    struct gpushare_pool *shared;
    struct gpushare_pool_directory directory; /* without buckets: there is none */
    char *data;
    size_t mapped;
    uint64_t serial; /* never that of another pool */
    uint64_t user;   /* this process's bit */
    uint32_t count, slot;
    bool own; /* private, not a scheduler's */
    dev_t device;
    ino_t inode;
    struct gs_host_chunk *chunks;
    struct gs_host_chunk *partial;
    unsigned records;     /* that need units of this pool */
    uint32_t page_locked; /* chunks that this process has page-locked, whatever process uses them now */
    uint32_t bare;        /* chunks that this process uses and has not page-locked */
    uint32_t beat;        /* the scheduler's disk, as it was first seen at `beat_since` and last at `beat_seen` */
    uint64_t beat_since, beat_seen;
    struct gs_host_kept oldest[GS_HOST_OLDEST];
    unsigned oldest_count, oldest_next;
    struct gs_host_pool *next;
};

/* The order in which chunks without users are preferred. Only the first kind is page-locked already. */
enum gs_host_preference {
    GS_HOST_PAGE_LOCKED,
    GS_HOST_PREPARED,
    GS_HOST_PREPARED_FOR_ANOTHER,
    GS_HOST_UNPREPARED,
    GS_HOST_KEPT /* has kept copies */
};

struct gs_host_search {
    enum gs_host_preference preference, end; /* those before `end` */
    uint32_t next;
};

/* Maps the scheduler's pool, given its descriptor. NULL, after printing the reason, if it cannot be used. */
struct gs_host_pool *gs_host_pool_map(int fd, const struct stat *file, uint32_t slot);

/* Creates a private pool: addresses for as much as the host has, and pages on demand. */
struct gs_host_pool *gs_host_pool_make(void);

void gs_host_pool_destroy(struct gs_host_pool *pool);

/* The address of a chunk. */
char *gs_host_pool_address(const struct gs_host_pool *pool, uint32_t i);

/* How many chunks may be used. */
uint32_t gs_host_pool_limit(const struct gs_host_pool *pool);

/* Whether this process may use units of the chunk that it does not use yet. */
bool gs_host_pool_usable(const struct gs_host_pool *pool, uint32_t i);

/* Finds the best chunk without users and without kept copies. It is not claimed. */
bool gs_host_pool_find(struct gs_host_pool *pool, struct gs_host_search *search, uint32_t *found);

/* Claims the first units of such a chunk. */
bool gs_host_pool_claim_new(struct gs_host_pool *pool, struct gs_host_search *search, unsigned units, uint32_t *found);

/* Claims the first units of the chunk without users whose kept copies were last used the longest time ago. */
bool gs_host_pool_claim_kept(struct gs_host_pool *pool, unsigned units, uint32_t *found);

/*
 * Creates the chunk's pages and maps them into this process. The caller uses a unit of the chunk, or has begun a
 * page-lock. False if the host has no pages.
 */
bool gs_host_pool_populate(struct gs_host_pool *pool, uint32_t i);

/* Page-locks the chunk in the current context. */
CUresult gs_host_pool_page_lock(struct gs_host_pool *pool, uint32_t i);

/* Keeps the number of bare chunks. */
void gs_host_pool_count_bare(struct gs_host_pool *pool, struct gs_host_chunk *chunk);

/* Keeps the list of chunks that have room for more data of this process. */
void gs_host_pool_list_partial(struct gs_host_pool *pool, struct gs_host_chunk *chunk);

#endif

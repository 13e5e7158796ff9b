/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Host memory for evicted data: units of the user's pool (pool.h), page-locked, not copied by fork.
 *
 * A piece of GPU memory has a record of its units, which it keeps when it is restored:
 *
 *     gs_host_record_new(bytes)          none yet
 *     gs_host_take(record, digests)      each unit is zeros, holds its data already, or is to be written
 *     gs_host_publish(record, digests)   all are written. The record needs its units: their data is nowhere else
 *     gs_host_prepare_reading(record)    page-locked, or to be copied through staging.h
 *     gs_host_release(record)            the data is on the GPU again. The units are kept as long as nobody needs them
 *     gs_host_record_free(record)        any time
 *
 * The scheduler's PREPARE sets how much is page-locked in advance and how much stays page-locked for the next move.
 */
#ifndef GPUSHARE_MEMORY_HOST_H
#define GPUSHARE_MEMORY_HOST_H

#include "driver.h"
#include "memory/host_place.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpushare_digest;
struct gs_host_record;

/* Digests of the units of a piece, made with the key of a pool. */
struct gs_host_digests {
    const struct gpushare_digest *of_units; /* NULL: the data was not hashed */
    uint64_t pool;                          /* from gs_host_key */
};

/* A part of a piece, and its host memory within one registration. */
struct gs_host_extent {
    size_t offset, bytes;
    void *address; /* NULL: zeros */
    bool page_locked;
};

/*
 * Offers the scheduler's pool and this process's slot in it. Takes ownership of the descriptor; -1 means that the
 * scheduler has no pool. Then a private pool of the same layout is created when it is needed. If the pool is the
 * current one, it stays. Of an earlier pool, the units in use stay until they are free.
 */
void gs_host_offer(int fd, uint32_t slot);

/* The key for digests, and the number of the pool that it belongs to. False: there is no host memory. */
bool gs_host_key(uint64_t key[4], uint64_t *pool);

/* NULL: out of memory. */
struct gs_host_record *gs_host_record_new(size_t bytes);
void gs_host_record_free(struct gs_host_record *record);

/*
 * Finds a unit for all data of the piece, and begins to page-lock those that are to be written. Needs a current
 * context. False: no room now, and the record needs no unit.
 */
bool gs_host_take(struct gs_host_record *record, const struct gs_host_digests *digests,
                  struct gs_host_summary *summary);
void gs_host_publish(struct gs_host_record *record, const struct gs_host_digests *digests);
void gs_host_prepare_reading(struct gs_host_record *record);

/* Also ends a take without publishing. Nothing is copied to or from the units any more. */
void gs_host_release(struct gs_host_record *record);

/* How many units the record has whose data is still known, by digest or as zeros. */
unsigned gs_host_known(const struct gs_host_record *record);

/* Bytes of the units that the record needs. */
uint64_t gs_host_needed(const struct gs_host_record *record);

/*
 * The next extent of the piece, from unit *next on (0 at first): those that are to be written, or, with `reading`, all.
 * Waits until it is page-locked, if it can be. False: there is none.
 */
bool gs_host_next(const struct gs_host_record *record, bool reading, unsigned *next, struct gs_host_extent *extent);

/* Bytes of the units that this process needs. */
uint64_t gs_host_bytes(void);

/* How many of them other processes needed, too, when they were last counted. */
uint64_t gs_host_shared(void);
void gs_host_count_shared(void);

/* The host memory that evicted data of all processes may use together. */
uint64_t gs_host_limit(void);

/* Bytes that had to be page-locked during a move since the process began. */
uint64_t gs_host_page_locked_late(void);

/*
 * An eviction begins that will take about that many bytes for which no unit is page-locked yet: pages are created and
 * page-locked in that context ahead of the piece at hand. Call the other one at its end.
 */
void gs_host_expect(uint64_t bytes, CUcontext context);
void gs_host_expect_no_more(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Which unit of host memory has which data. For host.c, under its lock. */
#ifndef GPUSHARE_MEMORY_HOST_PLACE_H
#define GPUSHARE_MEMORY_HOST_PLACE_H

#include <stdbool.h>

struct gpushare_digest;
struct gs_host_record;

/* What is known about a record's units, as numbers of units. */
struct gs_host_summary {
    unsigned zero;
    unsigned same;    /* the unit that had the data before has it still */
    unsigned shared;  /* another unit has it */
    unsigned written; /* to be copied */
};

/* The record's pool, or NULL if it exists no more. */
struct gs_host_pool *gs_host_pool_of(const struct gs_host_record *record);

/* Decides for each unit whether it is zeros, can be held, or is WANTED. */
void gs_host_match(struct gs_host_record *record, const struct gpushare_digest *digests,
                   struct gs_host_summary *summary);

/* Claims a unit for each that is WANTED. False: there is no room now for those that still are. */
bool gs_host_place(struct gs_host_record *record);

/* The WRITING units are written. */
void gs_host_publish_locked(struct gs_host_record *record, const struct gpushare_digest *digests);

/* The record needs no unit any more. */
void gs_host_release_locked(struct gs_host_record *record);

/* The record's data is not needed, neither here nor later. */
void gs_host_forget_locked(struct gs_host_record *record);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* What host.c, host_place.c and host_ahead.c have in common: the pools, the records, and the lock that guards them. */
#ifndef GPUSHARE_MEMORY_HOST_STATE_H
#define GPUSHARE_MEMORY_HOST_STATE_H

#include "base/lock.h"
#include "driver.h"
#include "memory/host_pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct gs_host_unit {
    uint32_t number; /* chunk * GS_HOST_UNITS + unit, of KEPT, NEEDED and WRITING */
    enum {
        GS_UNIT_NONE,
        GS_UNIT_KEPT, /* the data is or was there, if the generation is the same */
        GS_UNIT_ZERO,
        GS_UNIT_NEEDED,
        GS_UNIT_WANTED, /* to be written, and not placed yet. `number` as of KEPT, or GS_NO_UNIT */
        GS_UNIT_WRITING
    } state;
    uint64_t generation;
};

#define GS_NO_UNIT UINT32_MAX

struct gs_host_record {
    struct gs_host_pool *pool; /* valid if it `needs` units; otherwise, find the pool by `serial` */
    uint64_t serial;
    bool needs;
    size_t bytes;
    unsigned count;
    struct gs_host_unit units[];
};

struct gs_host {
    struct gs_mutex lock;
    pthread_cond_t changed;
    struct gs_host_pool *pools; /* the first is the current pool; the others are kept for the data in them */
    CUcontext context;          /* for page-locking in advance; NULL: none */
    uint64_t wanted;            /* number of chunks to page-lock */
    bool away;                  /* all memory of the process was evicted */
    bool rests;                 /* nothing is to be page-locked until its next restore */
    bool refused;               /* the last attempt to page-lock in advance failed */
    bool started;
    bool working;         /* on a job of host_ahead.c */
    CUcontext working_in; /* the job calls the driver there */
    bool unlocking;       /* the job ends a page-lock */
    unsigned taking;
    unsigned moving; /* moves that use the contents of units, see host_disk.h */
    uint64_t last_move_ns, looked_ns;
    uint64_t bytes, shared, page_locked_late; /* atomic */
    bool printed_page_lock_refused;
};

extern struct gs_host gs_host;

void gs_host_record_page_lock_locked(struct gs_host_pool *pool, uint32_t i, CUcontext context);
/* With the driver's answer to the end of a page-lock. In a context that has failed, it may refuse. */
void gs_host_record_unlock_locked(struct gs_host_pool *pool, uint32_t i, CUresult result);
bool gs_host_page_lock_has_ended(CUresult result);
void gs_host_print_refused_locked(CUresult result);
/* The present pool, which is made if there is none. NULL: that is not possible. */
struct gs_host_pool *gs_host_present_locked(void);

#endif

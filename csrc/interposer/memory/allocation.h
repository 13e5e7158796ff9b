/* SPDX-License-Identifier: BSD-3-Clause */
/* One allocation of the application's. For memory.c, and for free_queue.c, which has it after it was freed. */
#ifndef GPUSHARE_MEMORY_ALLOCATION_H
#define GPUSHARE_MEMORY_ALLOCATION_H

#include "base/ordered_map.h"
#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_block;
struct gs_device;
struct gs_range;

struct gs_allocation {
    struct gs_node node; /* by address */
    size_t size;
    uint64_t id;
    struct gs_device *device;
    CUcontext context;      /* NULL: of a pool, and the device has no context at present */
    bool of_pool;           /* it goes with the device, not with the context */
    struct gs_block *block; /* NULL: of the `plain` backend, unevictable */
    struct gs_range *range; /* NULL: has the block to itself */
    struct gs_allocation *next, **link;
    bool freed;                  /* by the application: it goes once nothing uses it any more */
    CUevent passed;              /* where the stream is past the free */
    struct gs_allocation *later; /* in its queue */
};

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* One allocation by the application. For memory.c, and for free_queue.c, which keeps it after it was freed. */
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
    CUcontext context;      /* NULL: belongs to a pool, and the device has no context now */
    bool of_pool;           /* lives as long as the device, not the context */
    struct gs_block *block; /* NULL: made by the `plain` backend, unevictable */
    struct gs_range *range; /* NULL: the only allocation in its block */
    struct gs_allocation *next, **link;
    bool freed;                  /* freed by the application; removed once no work uses it */
    CUevent passed;              /* passed when the stream has reached the free */
    struct gs_allocation *later; /* next in its queue */
};

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Admits bytes that cannot be evicted from the GPU. They need room before they are allocated. */
#ifndef GPUSHARE_MEMORY_ADMISSION_H
#define GPUSHARE_MEMORY_ADMISSION_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_device;
struct gs_slot;

/* Waits until there is room for these unevictable bytes, and counts them. */
CUresult gs_memory_reserve_unevictable(CUdevice device, size_t bytes);
void gs_memory_release_unevictable(CUdevice device, size_t bytes);

/* Counts unevictable bytes that are on the GPU already. `bytes` may be negative. */
void gs_memory_count_unevictable(CUdevice device, int64_t bytes);

/*
 * Around the creation of a context: before it; after it succeeded; and after it failed, or when the context ends. The
 * scheduler counts everything in use on the GPU beyond a context as foreign use, and learns of the context only from
 * these calls.
 */
CUresult gs_memory_admit_context(CUdevice device);
void gs_memory_context_begun(CUdevice device);
void gs_memory_context_gone(CUdevice device);

/*
 * The driver has no room for what it loads besides allocations, which is mostly code. Books some memory and enters the
 * gate, so that other memory is evicted. False if no room can be made. Afterwards, the scheduler measures how much was
 * loaded.
 */
struct gs_load {
    struct gs_slot *entered;
    struct gs_device *device;
};

bool gs_memory_begin_load(struct gs_load *load);
void gs_memory_end_load(const struct gs_load *load);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes on the GPU that cannot leave it: for them there must be room before they are there. */
#ifndef GPUSHARE_MEMORY_ADMISSION_H
#define GPUSHARE_MEMORY_ADMISSION_H

#include "driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_device;
struct gs_slot;

/* Unevictable bytes: waits until there is room. */
CUresult gs_memory_reserve_unevictable(CUdevice device, size_t bytes);
void gs_memory_release_unevictable(CUdevice device, size_t bytes);

/* The same for bytes that were taken already: `bytes` may be negative. */
void gs_memory_count_unevictable(CUdevice device, int64_t bytes);

/*
 * A context may begin; it has: what the GPU has in use beyond it is others', which the scheduler cannot tell before; it
 * has not, or has ended.
 */
CUresult gs_memory_admit_context(CUdevice device);
void gs_memory_context_begun(CUdevice device);
void gs_memory_context_gone(CUdevice device);

/*
 * The driver has no room for what it brings to the GPU beside allocations (code, mostly): books some memory and enters
 * the gate, so that others make room. False if there is none to be had. Afterwards, the scheduler sees what
 * it took.
 */
struct gs_load {
    struct gs_slot *entered;
    struct gs_device *device;
};

bool gs_memory_begin_load(struct gs_load *load);
void gs_memory_end_load(const struct gs_load *load);

#endif

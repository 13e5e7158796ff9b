/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The devices of this process, their memory figures, and the lock of all tables of memory.
 *
 * The figures of a device change only under gs_memory_lock. One thread at a time asks the scheduler for more memory or
 * returns some. It holds a lock of its own, which is taken before gs_memory_lock (lock.h).
 */
#ifndef GPUSHARE_MEMORY_DEVICES_H
#define GPUSHARE_MEMORY_DEVICES_H

#include "base/lock.h"
#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GS_GRANULARITY = 2 << 20 };

struct gs_allocation;
struct gs_block;
struct gs_walk;

struct gs_device {
    bool known;
    CUdevice ordinal;
    struct gpushare_usage usage;
    uint64_t total, footprint;
    uint64_t limit;    /* bytes that may be resident, by the last final answer; UINT64_MAX: no limit */
    uint64_t arriving; /* part of it that application threads have claimed for new blocks */
    size_t piece_size, slab_size;
    bool usage_changed;
    struct gs_block *blocks, **last_block;
    struct gs_block *cursor; /* for the mover: the block that it looks at next */
    struct gs_walk *walks;   /* for gs_blocks_visit */
    struct gs_allocation *allocations;
};

extern struct gs_mutex gs_memory_lock;
extern struct gs_device gs_devices[GPUSHARE_MAX_GPUS];

static inline size_t gs_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* NULL: the driver has no such device. */
struct gs_device *gs_device_of(CUdevice ordinal);

/* NULL: no device with that UUID was used yet. */
struct gs_device *gs_device_by_uuid(const uint8_t uuid[16]);

/* The device of the calling thread, and its context if `context` is not NULL. */
CUresult gs_device_current(struct gs_device **device, CUcontext *context);

/* The handle type with which memory of that device can be opened by another process. */
CUmemAllocationHandleType gs_device_handle_type(CUdevice device);

/* The GPUs that this process sees. The first call asks the driver. */
void gs_devices_see(struct gpushare_seen *seen);

/* A GPU of the process was replaced by another one of the same model. */
void gs_device_moved(const uint8_t from[16], const uint8_t to[16]);

/* Finds out whether the driver has restored what was on `from` to `to`, although no scheduler reported that. */
bool gs_device_find_moved(uint8_t from[16], uint8_t to[16]);

uint64_t gs_device_limit(const uint8_t uuid[16]);
void gs_device_set_limit(const uint8_t uuid[16], uint64_t bytes);

/* A context is about to end, and a new one may get the same handle. */
void gs_device_forget_contexts(void);

/*
 * Asks for `evictable` more bytes of footprint, and for `unevictable` and `context` more of the other kinds, and books
 * them. Requests only what existing promises do not cover. May wait (see promises.h). If refused, prints the reason.
 */
CUresult gs_device_book(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context);

/* Prints that one allocation of `size` bytes is larger than the GPU, at most once a second. */
void gs_device_print_too_large(const struct gs_device *device, uint64_t size);

/* While a lease is being released: asks for room on the GPU for everything that was promised. May wait. */
bool gs_device_promise_now(struct gs_device *device);

/* Does so for all devices. */
bool gs_devices_promise_now(void);

void gs_device_unbook(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context);

/* Subtracts from a figure of a device. Builds with GS_LOCK_RANKS check that no figure becomes negative. */
#ifdef GS_LOCK_RANKS
void gs_device_subtract_locked(uint64_t *figure, uint64_t bytes);
#else
static inline void gs_device_subtract_locked(uint64_t *figure, uint64_t bytes)
{
    *figure -= bytes;
}
#endif

/* Whether none of this process's evictable memory is on a device. */
bool gs_devices_are_empty(void);

struct gpushare_usage gs_device_usage_locked(const struct gs_device *device);

/* Reports the figures that changed (`usage_changed`). Call it without any of the locks. */
void gs_device_flush_reports(void);

/* --- For the client. --- */

/* Copies the usages of all devices in use, and returns their number. */
unsigned gs_devices_usages(struct gpushare_usage usages[GPUSHARE_MAX_GPUS]);
void gs_devices_set_headroom(uint64_t bytes);

/* Reports the usage of all devices again. */
void gs_devices_report(void);

/* The footprint and the size of one device, for the NVML shim. False: the interposer does not manage that device. */
bool gs_devices_own(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);

void gs_devices_after_fork(void);

#endif

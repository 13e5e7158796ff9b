/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The devices of this process and their figures, and the lock of all tables of memory.
 *
 * Device figures change under gs_memory_lock alone. One thread at a time asks the scheduler for more, or gives back,
 * under a lock of its own, which comes before it (lock.h).
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
    uint64_t limit;    /* what may be resident, as last told for good; UINT64_MAX: all */
    uint64_t arriving; /* claimed of it by application threads that give blocks memory */
    size_t piece_size, slab_size;
    bool usage_changed;
    struct gs_block *blocks, **last_block;
    struct gs_block *cursor; /* the mover's: the block that it looks at next */
    struct gs_walk *walks;   /* of gs_blocks_visit */
    struct gs_allocation *allocations;
};

extern struct gs_mutex gs_memory_lock;
extern struct gs_device gs_devices[GPUSHARE_MAX_GPUS];

static inline size_t gs_round_up(size_t value, size_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* NULL: the driver does not know it. */
struct gs_device *gs_device_of(CUdevice ordinal);

/* NULL: no device that was used yet. */
struct gs_device *gs_device_by_uuid(const uint8_t uuid[16]);

/* The device, and the context where that is not NULL, of the calling thread. */
CUresult gs_device_current(struct gs_device **device, CUcontext *context);

/* How memory of that device is to be made so that another process can open it. */
CUmemAllocationHandleType gs_device_handle_type(CUdevice device);

/* The GPUs that this process sees; the first time, the driver is asked. */
void gs_devices_see(struct gpushare_seen *seen);

/* What the process knows as one GPU is another one of the same kind now. */
void gs_device_moved(const uint8_t from[16], const uint8_t to[16]);

/* Whether the driver has put what is on `from` on `to` without our being told. */
bool gs_device_find_moved(uint8_t from[16], uint8_t to[16]);

uint64_t gs_device_limit(const uint8_t uuid[16]);
void gs_device_set_limit(const uint8_t uuid[16], uint64_t bytes);

/* Some context is about to end; another may get its name. */
void gs_device_forget_contexts(void);

/*
 * Asks for `evictable` more bytes of footprint, and for `unevictable` and `context` more of the others, and books them.
 * Only what the promise does not cover is asked for. May wait (see promises.h), and prints why it was refused.
 */
CUresult gs_device_book(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context);

/* Prints that one allocation of `size` bytes is larger than the GPU, at most once a second. */
void gs_device_say_too_large(const struct gs_device *device, uint64_t size);

/* Under a lease that is being given back: asks for room on the GPU for all that is promised. May wait likewise. */
bool gs_device_promise_now(struct gs_device *device);

/* The same for all devices. */
bool gs_devices_promise_now(void);

void gs_device_unbook(struct gs_device *device, uint64_t evictable, uint64_t unevictable, uint64_t context);

/* Subtracts from one of a device's figures. Builds that check the locks' ranks check that no figure is below zero. */
#ifdef GS_LOCK_RANKS
void gs_device_subtract_locked(uint64_t *figure, uint64_t bytes);
#else
static inline void gs_device_subtract_locked(uint64_t *figure, uint64_t bytes)
{
    *figure -= bytes;
}
#endif

struct gpushare_usage gs_device_usage_locked(const struct gs_device *device);

/* Sends the figures that changed (`usage_changed`). Without any of the locks. */
void gs_device_flush_reports(void);

/* --- For the client. --- */

/* Of the devices that were used; returns how many. */
unsigned gs_devices_usages(struct gpushare_usage usages[GPUSHARE_MAX_GPUS]);
void gs_devices_set_headroom(uint64_t bytes);

/* States the usage of all devices anew. */
void gs_devices_report(void);

/* The footprint and the size of one device, for the NVML shim. False: we do not manage that device. */
bool gs_devices_own(const uint8_t uuid[16], uint64_t *footprint, uint64_t *total);

void gs_devices_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of the client's state, and the waits of application threads for something that only the helper thread can
 * do. Waiting threads check again whenever something has changed. An interrupt by the user ends all waits.
 */
#ifndef GPUSHARE_CLIENT_WAITS_H
#define GPUSHARE_CLIENT_WAITS_H

#include "base/lock.h"
#include "driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * The result of a cancelled wait. It is not sticky. It is not "out of memory", because PyTorch would then empty its
 * cache and try again. CUDA_ERROR_OPERATING_SYSTEM fits: the wait's system call was interrupted.
 */
#define GS_ERROR_CANCELLED CUDA_ERROR_OPERATING_SYSTEM

/* Guards the state of all files in client/. The gate's state changes only under this lock. */
extern struct gs_mutex gs_client_lock;

/* Wakes all waiting threads, because something has changed. */
void gs_waits_wake(void);

/*
 * Read the epoch under the lock, release the lock, then wait: until something changes after the read, or until the time
 * is over (NULL: no limit).
 */
uint32_t gs_waits_epoch(void);
void gs_waits_sleep(uint32_t epoch, const struct timespec *timeout);

/* How often waits of this process were cancelled. */
uint64_t gs_waits_cancels_locked(void);
uint64_t gs_waits_cancels(void);

/* Records that a wait ends because it was cancelled. */
void gs_waits_cancelled_locked(void);

/* Whether a wait was cancelled since the last call. */
bool gs_waits_take_cancelled(void);

/* Cancels all waits; the caller wakes the threads. */
void gs_waits_cancel_locked(void);

#endif

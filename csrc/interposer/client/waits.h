/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of the client's state, and the application threads that wait for what only the helper thread brings: they
 * look again whenever something has changed. All their waits end when the user interrupts.
 */
#ifndef GPUSHARE_CLIENT_WAITS_H
#define GPUSHARE_CLIENT_WAITS_H

#include "base/lock.h"
#include "driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * What a cancelled wait returns. Not sticky, and not "out of memory", for which PyTorch would empty its cache and try
 * again: the system call that waited was interrupted.
 */
#define GS_ERROR_CANCELLED CUDA_ERROR_OPERATING_SYSTEM

/* Guards the state of all files of the client; the gate's word changes under it alone. */
extern struct gs_mutex gs_client_lock;

/* Something has changed. */
void gs_waits_wake(void);

/*
 * Until something changes after the epoch was read, or the time is over (NULL: never): the epoch is read under the
 * lock, which is let go before the wait.
 */
uint32_t gs_waits_epoch(void);
void gs_waits_sleep(uint32_t epoch, const struct timespec *timeout);

/* How often the waits of this process were cancelled. */
uint64_t gs_waits_cancels_locked(void);
uint64_t gs_waits_cancels(void);

/* A wait ends because of that. */
void gs_waits_cancelled_locked(void);

/* Whether one has since this was called last. */
bool gs_waits_take_cancelled(void);

/* Cancels all waits; the caller wakes the threads. */
void gs_waits_cancel_locked(void);

#endif

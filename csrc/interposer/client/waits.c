/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/waits.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

struct gs_mutex gs_client_lock = GS_MUTEX(GS_RANK_CLIENT);

static struct {
    uint32_t epoch; /* futex; changes whenever waiting threads should check again */
    uint64_t cancels;
    bool cancelled; /* a wait was cancelled, and its thread has not noticed yet */
} waits;

void gs_waits_wake(void)
{
    __atomic_add_fetch(&waits.epoch, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &waits.epoch, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

uint32_t gs_waits_epoch(void)
{
    return __atomic_load_n(&waits.epoch, __ATOMIC_ACQUIRE);
}

void gs_waits_sleep(uint32_t epoch, const struct timespec *timeout)
{
    gs_lock_waits(GS_RANK_GROWTH);
    syscall(SYS_futex, &waits.epoch, FUTEX_WAIT_PRIVATE, epoch, timeout, NULL, 0);
}

uint64_t gs_waits_cancels_locked(void)
{
    return waits.cancels;
}

uint64_t gs_waits_cancels(void)
{
    gs_mutex_lock(&gs_client_lock);
    uint64_t cancels = waits.cancels;
    gs_mutex_unlock(&gs_client_lock);
    return cancels;
}

void gs_waits_cancelled_locked(void)
{
    waits.cancelled = true;
}

bool gs_waits_take_cancelled(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool taken = waits.cancelled;
    waits.cancelled = false;
    gs_mutex_unlock(&gs_client_lock);
    return taken;
}

void gs_waits_cancel_locked(void)
{
    waits.cancels++;
}

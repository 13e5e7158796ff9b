/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/waking.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "client/channel.h"
#include "client/waits.h"
#include "gate/awake.h"
#include "hibernate/hibernate.h"

#include <time.h>

/* How long an exiting process waits to be woken. */
static const uint64_t exit_patience = 5 * GS_SECOND;

static struct {
    enum gs_waking state;
    uint64_t park; /* serial of the last PARK */
    uint64_t parks;
    unsigned sleepers; /* threads that wait to call the driver */
    bool asked;
    uint64_t serial, ask_at;
    uint64_t failures;
    CUresult failure;
    bool ending; /* the process is exiting; it exits without having been woken */
    bool ended;
    uint64_t alone_at;
} waking;

enum gs_waking gs_waking_state_locked(void)
{
    return waking.state;
}

bool gs_waking_is_awake(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool awake = waking.state == GS_WAKING_AWAKE;
    gs_mutex_unlock(&gs_client_lock);
    return awake;
}

void gs_waking_ask_locked(const struct gpushare_usage *needed)
{
    if (waking.state == GS_WAKING_AWAKE || waking.asked || gs_now_ns() < waking.ask_at)
        return;
    struct gpushare_wake wake = {
        .serial = gs_channel_next_serial_locked(),
        .at_ns = gs_now_ns(),
        .cause = waking.ending ? GPUSHARE_WAKE_EXIT : GPUSHARE_WAKE_CALL,
        .needs = *needed,
    };
    waking.serial = wake.serial;
    waking.asked = gs_channel_is_open();
    gs_channel_send(GPUSHARE_WAKE, &wake, sizeof(wake));
    gs_channel_reopen_at_once_locked();
}

void gs_waking_forget_question_locked(void)
{
    waking.asked = false;
}

/* Waits until the second gate is open, for up to `patience` (ns). Returns the same errors as gs_lease_acquire. */
static CUresult await_awake(uint64_t patience)
{
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    struct gpushare_usage needed;
    gs_hibernate_needs(&needed);
    uint64_t end = patience == UINT64_MAX ? patience : gs_now_ns() + patience;
    gs_mutex_lock(&gs_client_lock);
    uint64_t cancels = gs_waits_cancels_locked(), failures = waking.failures;
    waking.sleepers++;
    while (__atomic_load_n(&gs_awake_shut, __ATOMIC_RELAXED)) {
        uint64_t now = gs_now_ns();
        if (waking.ended)
            result = CUDA_ERROR_DEINITIALIZED;
        else if (gs_waits_cancels_locked() != cancels)
            result = GS_ERROR_CANCELLED;
        else if (waking.failures != failures)
            result = waking.failure;
        else if (now >= end)
            result = CUDA_ERROR_TIMEOUT;
        if (result != CUDA_SUCCESS)
            break;
        gs_waking_ask_locked(&needed);
        uint64_t pause = waking.asked || waking.ask_at <= now ? GS_SECOND : waking.ask_at - now;
        if (end - now < pause)
            pause = end - now;
        uint32_t epoch = gs_waits_epoch();
        gs_mutex_unlock(&gs_client_lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        struct timespec timeout = {.tv_sec = (time_t)(pause / GS_SECOND), .tv_nsec = (long)(pause % GS_SECOND)};
        gs_waits_sleep(epoch, &timeout);
        gs_mutex_lock(&gs_client_lock);
    }
    if (result == GS_ERROR_CANCELLED)
        gs_waits_cancelled_locked();
    waking.sleepers--;
    gs_mutex_unlock(&gs_client_lock);
    return result;
}

CUresult gs_waking_await(void)
{
    return await_awake(UINT64_MAX);
}

void gs_waking_at_exit(void)
{
    gs_mutex_lock(&gs_client_lock);
    waking.ending = true;
    bool asleep = waking.state != GS_WAKING_AWAKE;
    waking.ask_at = 0;
    waking.alone_at = 0;
    gs_mutex_unlock(&gs_client_lock);
    if (!asleep || await_awake(exit_patience) == CUDA_SUCCESS)
        return;
    gs_mutex_lock(&gs_client_lock);
    waking.ended = waking.state != GS_WAKING_AWAKE;
    gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

unsigned gs_waking_sleepers_locked(void)
{
    return waking.sleepers;
}

uint64_t gs_waking_failures_locked(void)
{
    return waking.failures;
}

CUresult gs_waking_failure_locked(void)
{
    return waking.failure;
}

bool gs_waking_is_ending_locked(void)
{
    return waking.ending;
}

bool gs_waking_has_ended_locked(void)
{
    return waking.ended;
}

void gs_waking_park_locked(void)
{
    waking.state = GS_WAKING_PARKED;
    __atomic_add_fetch(&waking.parks, 1, __ATOMIC_RELAXED);
    waking.alone_at = 0;
}

void gs_waking_parked_by_locked(uint64_t serial)
{
    waking.park = serial;
}

uint64_t gs_waking_parks(void)
{
    return __atomic_load_n(&waking.parks, __ATOMIC_RELAXED);
}

bool gs_waking_hibernated_locked(uint64_t serial, bool done)
{
    if (waking.state != GS_WAKING_PARKED || serial != waking.park)
        return false;
    if (done)
        waking.state = GS_WAKING_HIBERNATED;
    else
        gs_waking_wake_locked();
    return true;
}

void gs_waking_wake_locked(void)
{
    waking.state = GS_WAKING_AWAKE;
    waking.asked = false;
    waking.serial = waking.ask_at = 0;
    gs_awake_open_gate();
    gs_waits_wake();
}

bool gs_waking_failed_locked(uint64_t serial, CUresult status)
{
    if (waking.state == GS_WAKING_AWAKE || serial == 0 || serial != waking.serial)
        return false;
    waking.failures++;
    waking.failure = status;
    waking.asked = false;
    waking.ask_at = gs_now_ns() + GS_SECOND;
    return true;
}

uint64_t gs_waking_alone_at_locked(void)
{
    return waking.alone_at;
}

void gs_waking_set_alone_at(uint64_t time)
{
    gs_mutex_lock(&gs_client_lock);
    waking.alone_at = time;
    gs_mutex_unlock(&gs_client_lock);
}

void gs_waking_after_fork(void)
{
    waking.state = GS_WAKING_AWAKE;
    waking.sleepers = 0;
    waking.ending = waking.ended = false;
    gs_awake_open_gate();
}

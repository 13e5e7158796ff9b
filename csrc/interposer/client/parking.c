/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/parking.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "client/channel.h"
#include "client/grants.h"
#include "client/growth.h"
#include "client/lease.h"
#include "client/placement.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/awake.h"
#include "gate/capture.h"
#include "gate/drain.h"
#include "gate/meter.h"
#include "hibernate/hibernate.h"
#include "memory/devices.h"
#include "memory/host_ahead.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* If a thread stays in the driver for longer than this, or work does not end, the process does not park. */
static const uint64_t parking_patience = 100 * GS_MILLISECOND;
/* How long to wait for a thread that is between two driver calls of one operation. */
static const uint64_t parking_pause = 10 * GS_MILLISECOND;

/*
 * Whether the helper is busy with something. Threads that wait for a lease, or to call the driver, do not prevent
 * parking.
 */
static bool is_busy_locked(void)
{
    return gs_lease_is_held_locked() || gs_lease_paced_locked() != 0 || gs_growth_is_wanted_locked() ||
           gs_lease_is_ending_locked() || gs_waking_is_ending_locked();
}

static bool is_busy(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool busy = is_busy_locked();
    gs_mutex_unlock(&gs_client_lock);
    return busy;
}

static bool await_drained(uint64_t end)
{
    while (!gs_context_drained()) {
        if (gs_now_ns() >= end || is_busy())
            return false;
        usleep(200);
    }
    return true;
}

/* The second gate is shut. Waits until no thread of this process is in the driver. */
static enum gpushare_parking park(struct gpushare_usage *needed)
{
    uint64_t end = gs_now_ns() + parking_patience;
    while (!gs_awake_empty()) {
        if (gs_now_ns() >= end || is_busy())
            return GPUSHARE_PARKING_BUSY;
        usleep(200);
    }
    enum gpushare_parking may = gs_hibernate_may(needed);
    if (may != GPUSHARE_PARKING_DONE)
        return may;
    if (!gs_context_begin_drain(false))
        return GPUSHARE_PARKING_CAPTURE;
    if (!await_drained(end))
        return GPUSHARE_PARKING_BUSY;
    gs_meter_look_from_helper();
    for (end = gs_now_ns() + parking_pause; gs_now_ns() < end; usleep(1000))
        if (is_busy())
            return GPUSHARE_PARKING_BUSY;
    return GPUSHARE_PARKING_DONE;
}

void gs_parking_be_awake(const uint8_t *from, const uint8_t *to)
{
    uint8_t left[16], found[16];
    /* The scheduler that moved the process may have exited before it reported the new GPU. */
    bool unreported = from == NULL && gs_device_find_moved(left, found);
    gs_hibernate_restored(unreported ? left : from, unreported ? found : to);
    if (unreported || from != NULL)
        gs_placement_moved(unreported ? left : from, unreported ? found : to);
    gs_mutex_lock(&gs_client_lock);
    gs_waking_wake_locked();
    /* The current scheduler still has the old GPU, so another HELLO reports the new one. */
    if (unreported)
        gs_channel_break_locked();
    gs_mutex_unlock(&gs_client_lock);
    gs_grants_prepare();
    gs_devices_report();
}

void gs_parking_park(const struct gpushare_park *order)
{
    struct gpushare_parked parked = {.serial = order->serial};
    parked.status = gs_capture_open() ? GPUSHARE_PARKING_CAPTURE : GPUSHARE_PARKING_BUSY;
    gs_hibernate_needs(&parked.needs);
    /* For a process that is not awake, the GPUs are known from when it was parked. */
    gs_devices_see(&parked.seen);
    if (gs_waking_is_awake() && !is_busy() && gs_host_rest(is_busy)) {
        gs_mutex_lock(&gs_client_lock);
        gs_awake_shut_gate();
        gs_mutex_unlock(&gs_client_lock);
        parked.status = park(&parked.needs);
    }
    gs_mutex_lock(&gs_client_lock);
    if (gs_waking_state_locked() != GS_WAKING_AWAKE) {
        parked.status = GPUSHARE_PARKING_DONE;
    } else if (parked.status == GPUSHARE_PARKING_DONE && !is_busy_locked()) {
        gs_waking_park_locked();
    } else {
        if (parked.status == GPUSHARE_PARKING_DONE)
            parked.status = GPUSHARE_PARKING_BUSY;
        gs_waking_wake_locked();
    }
    gs_waking_parked_by_locked(order->serial);
    /* Checked first: the scheduler may not want to hibernate a process that has waiting threads. */
    if (gs_waking_state_locked() != GS_WAKING_AWAKE && gs_waking_sleepers_locked() != 0)
        gs_waking_ask_locked(&parked.needs);
    gs_channel_send(GPUSHARE_PARKED, &parked, sizeof(parked));
    if (gs_waking_state_locked() != GS_WAKING_AWAKE && gs_lease_waiters_locked() != 0)
        gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

void gs_parking_hibernated(const struct gpushare_hibernated *hibernated)
{
    gs_mutex_lock(&gs_client_lock);
    if (gs_waking_hibernated_locked(hibernated->serial, hibernated->done) && hibernated->done)
        gs_hibernate_note_context_bytes(hibernated->context);
    gs_mutex_unlock(&gs_client_lock);
}

void gs_parking_awake(const struct gpushare_awake *awake)
{
    gs_mutex_lock(&gs_client_lock);
    /* The process is awake, whichever scheduler reported it. It does not repeat where its data is. */
    bool woken = gs_waking_state_locked() != GS_WAKING_AWAKE && awake->status == 0;
    if (!woken && gs_waking_failed_locked(awake->serial, (CUresult)awake->status)) {
        if (gs_waking_sleepers_locked() != 0 || gs_lease_waiters_locked() != 0)
            gs_print("%.*s", (int)sizeof(awake->text), awake->text);
        gs_lease_forget_request_locked();
        gs_waits_wake();
    }
    gs_mutex_unlock(&gs_client_lock);
    if (woken)
        gs_parking_be_awake(awake->moved ? awake->from : NULL, awake->to);
}

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/helper.h"

#include "base/clock.h"
#include "base/lock.h"
#include "client/alone.h"
#include "client/attach.h"
#include "client/bursts.h"
#include "client/channel.h"
#include "client/growth.h"
#include "client/lease.h"
#include "client/messages.h"
#include "client/metering.h"
#include "client/quiet.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/capture.h"
#include "gate/meter.h"
#include "gate/pace.h"
#include "memory/memory.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

/* How often work in flight is checked while a thread waits for its end. */
static const uint64_t look_interval = GS_MILLISECOND / 5;
/* After this long without a scheduler, the process restores its memory by itself for a waiting thread. */
static const uint64_t alone_after = 5 * GS_SECOND;
/* A process that holds a lease waits only this long before it allocates by itself. */
static const uint64_t holder_alone_after = GS_SECOND / 2;
/* If the scheduler exited while it was checkpointing this process, its hibernator may still be running. */
static const uint64_t alone_after_unfinished = 12 * GS_SECOND;

/* What the helper has to do now. */
struct duties {
    bool release, watch_quiet, check_end, reconnect, go_alone;
    bool wake_alone;
    bool look, report; /* check work in flight; report GPU time */
    uint64_t patience; /* how long (ns) the helper may sleep */
};

static uint64_t until(uint64_t time, uint64_t now)
{
    return time > now ? time - now : 0;
}

static void shorten(uint64_t *patience, uint64_t limit)
{
    if (limit < *patience)
        *patience = limit;
}

/* The driver must not be called. The only duty is to find out whether the process should be woken. */
static void look_around_parked(uint64_t now, struct duties *duties)
{
    if (gs_alone_is_waking()) {
        duties->wake_alone = true;
        shorten(&duties->patience, 20 * GS_MILLISECOND);
        return; /* a scheduler that starts now would wake the process, too */
    }
    if (gs_channel_is_open())
        return;
    duties->reconnect = now >= gs_channel_reopen_at();
    shorten(&duties->patience, until(gs_channel_reopen_at(), now));
    if (gs_waking_sleepers_locked() == 0 && gs_lease_waiters_locked() == 0)
        return;
    uint64_t alone_at = gs_waking_alone_at_locked();
    if (!gs_waking_is_ending_locked()) {
        uint64_t patience = gs_waking_state_locked() == GS_WAKING_PARKED ? alone_after_unfinished : alone_after;
        if (gs_channel_away_since() + patience > alone_at)
            alone_at = gs_channel_away_since() + patience;
    }
    duties->wake_alone = now >= alone_at;
    shorten(&duties->patience, until(alone_at, now));
}

static struct duties look_around(uint64_t now)
{
    gs_mutex_lock(&gs_client_lock);
    bool away = !gs_channel_is_open();
    struct duties duties = {.release = gs_lease_is_ending_locked(), .patience = 3600 * GS_SECOND};
    if (gs_waking_state_locked() != GS_WAKING_AWAKE) {
        look_around_parked(now, &duties);
        gs_mutex_unlock(&gs_client_lock);
        return duties;
    }
    if (duties.release) {
        shorten(&duties.patience, gs_lease_release_pause_locked());
    } else if (gs_quiet_is_watched() && gs_lease_gate_is_open()) {
        duties.watch_quiet = true;
        shorten(&duties.patience, gs_quiet_is_draining() ? GS_MILLISECOND / 2 : gs_quiet_gap() / 4);
    }
    if (gs_lease_paced_may_continue_locked()) {
        duties.look = true;
        shorten(&duties.patience, look_interval);
    }
    if (gs_meter_in_flight() != 0 || (gs_lease_gate_is_open() && gs_pace_metered())) {
        duties.report = now >= gs_metering_at_locked();
        shorten(&duties.patience, until(gs_metering_at_locked(), now));
    }
    uint64_t usage_at, end_check_at = gs_bursts_end_check_at_locked();
    if (gs_channel_holds_usages_locked(&usage_at))
        shorten(&duties.patience, until(usage_at, now));
    if (end_check_at != 0) {
        duties.check_end = now >= end_check_at;
        shorten(&duties.patience, until(end_check_at, now));
    }
    if (away) {
        duties.reconnect = now >= gs_channel_reopen_at();
        shorten(&duties.patience, until(gs_channel_reopen_at(), now));
    }
    if (away && (gs_lease_waiters_locked() != 0 || gs_growth_is_wanted_locked())) {
        uint64_t alone_at = gs_channel_away_since() + (gs_lease_is_held_locked() ? holder_alone_after : alone_after);
        duties.go_alone = now >= alone_at;
        /* Without a scheduler, nothing more can be done until something changes, so check from time to time. */
        shorten(&duties.patience, duties.go_alone ? 100 * GS_MILLISECOND : until(alone_at, now));
    }
    gs_mutex_unlock(&gs_client_lock);
    return duties;
}

static void *help(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare");
    gs_channel_set_helper_thread();
    GS_LEAVES_CAPTURES_ALONE;
    gs_messages_handle(); /* messages that arrived together with WELCOME */
    for (;;) {
        gs_messages_await(look_around(gs_now_ns()).patience);
        uint64_t now = gs_now_ns();
        struct duties duties = look_around(now);
        gs_channel_send_due_usages();
        if (gs_waking_is_awake())
            gs_memory_drop_failed();
        if (duties.release)
            gs_lease_step_release();
        if (duties.look || duties.report)
            gs_lease_look_for_paced();
        if (duties.report)
            gs_metering_report();
        if (duties.watch_quiet)
            gs_bursts_step_quiet(now);
        if (duties.check_end)
            gs_bursts_step_end_check(now);
        if (duties.reconnect)
            gs_attach_reconnect();
        if (duties.go_alone && !gs_channel_is_open())
            gs_alone_continue();
        if (duties.wake_alone && (gs_alone_is_waking() || !gs_channel_is_open()))
            gs_alone_wake();
    }
    return NULL;
}

bool gs_helper_start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t helper;
    int problem = pthread_create(&helper, NULL, help, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (problem != 0)
        return false;
    pthread_detach(helper);
    return true;
}

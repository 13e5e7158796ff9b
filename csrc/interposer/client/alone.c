/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/alone.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/print.h"
#include "client/attach.h"
#include "client/channel.h"
#include "client/grants.h"
#include "client/growth.h"
#include "client/lease.h"
#include "client/parking.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/slots.h"
#include "hibernate/hibernate.h"

#include <stddef.h>
#include <stdio.h>

/* How long the process waits for the hibernator that it has started. */
static const uint64_t longest_wake = 120 * GS_SECOND;
static const uint64_t shortest_wake_retry = 1 * GS_SECOND;
static const uint64_t longest_wake_retry = 60 * GS_SECOND;

static struct {
    uint64_t patience;
    uint64_t parks; /* how often the process had been parked at the last attempt */
    uint64_t gap;   /* between two attempts */
    uint64_t since; /* when the current attempt began, or 0 */
    bool printed;   /* the failure was printed */
} alone;

void gs_alone_set_patience(uint64_t patience)
{
    alone.patience = patience;
}

/* Threads that wait for memory continue to wait, or fail if the wait takes too long. */
static void lack_room_locked(void)
{
    if (gs_attach_is_refused()) {
        if (gs_lease_notify_waiters_locked())
            gs_print(
                "the GPU has no room for this process's data, and the scheduler refused the process: %s. The call "
                "waits until there is room or a scheduler accepts the process. Interrupt it to stop waiting. No data "
                "is lost",
                gs_attach_refusal());
    } else if (gs_now_ns() - gs_channel_away_since() >= alone.patience) {
        gs_print(
            "no scheduler answers on %s, and this process's data does not fit on the GPU. No data is lost. Run the "
            "cell again when the Jupyter server or `gpushare scheduler` is running",
            gs_attach_path());
        gs_lease_fail_waiters_locked(CUDA_ERROR_OUT_OF_MEMORY);
    } else if (gs_lease_notify_waiters_locked()) {
        uint64_t waited = gs_now_ns() - gs_channel_away_since();
        gs_print(
            "no scheduler has answered on %s for %u s, and this process's data does not fit on the GPU. Waiting for "
            "a scheduler or for free GPU memory, for up to %u s",
            gs_attach_path(), (unsigned)(waited / GS_SECOND), (unsigned)((alone.patience - waited) / GS_SECOND));
    }
}

void gs_alone_continue(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool must_open =
        gs_lease_waiters_locked() != 0 && gs_lease_gate_state() == GS_GATE_SHUT && !gs_lease_is_ending_locked();
    gs_growth_answer_alone_locked();
    gs_mutex_unlock(&gs_client_lock);
    if (must_open)
        gs_grants_restore_alone(lack_room_locked);
}

void gs_alone_wake(void)
{
    if (alone.parks != gs_waking_parks()) {
        alone.parks = gs_waking_parks();
        alone.gap = shortest_wake_retry;
        alone.printed = false;
    }
    char text[256];
    enum gs_hibernator state = gs_hibernator_run(text, sizeof(text));
    uint64_t now = gs_now_ns();
    if (alone.since == 0)
        alone.since = now;
    if (state == GS_HIBERNATOR_RUNS && now - alone.since < longest_wake)
        return;
    if (state == GS_HIBERNATOR_RUNS)
        snprintf(text, sizeof(text), "the driver does not respond");
    alone.since = 0;
    if (state == GS_HIBERNATOR_DONE) {
        gs_debug("woken without a scheduler");
        gs_parking_be_awake(NULL, NULL);
        return;
    }
    gs_waking_set_alone_at(now + alone.gap);
    alone.gap = alone.gap * 2 < longest_wake_retry ? alone.gap * 2 : longest_wake_retry;
    if (alone.printed)
        return;
    alone.printed = true;
    if (gs_attach_is_refused())
        gs_print("this process is hibernated and cannot wake by itself (%s), and the scheduler on %s refused it: %s. "
                 "No data is lost, and the process keeps trying",
                 text, gs_attach_path(), gs_attach_refusal());
    else
        gs_print(
            "no scheduler answers on %s, and this hibernated process cannot wake without one (%s). No data is lost. "
            "The process keeps trying, and continues when the Jupyter server or `gpushare scheduler` is running",
            gs_attach_path(), text);
}

bool gs_alone_is_waking(void)
{
    return alone.since != 0;
}

void gs_alone_after_fork(void)
{
    alone.since = 0;
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/growth.h"

#include "base/interrupt.h"
#include "base/lock.h"
#include "client/channel.h"
#include "client/lease.h"
#include "client/waits.h"
#include "gate/capture.h"
#include "memory/backing.h"
#include "memory/devices.h"

#include <stddef.h>

/* One thread that waits for GROWN; lives on its stack. */
struct pending_growth {
    struct gpushare_grow request;
    struct gpushare_grown answer;
    bool answered;
    struct pending_growth *next;
};

static struct pending_growth *growths;

CUresult gs_growth_ask(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                       struct gpushare_grown *answer)
{
    struct pending_growth pending = {.request = {.least = *least, .most = most}};
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    gs_mutex_lock(&gs_client_lock);
    pending.request.serial = gs_channel_next_serial_locked();
    pending.request.oversubscribe = gs_memory_oversubscribes();
    pending.request.urgent = urgent || gs_capture_open();
    pending.next = growths;
    growths = &pending;
    gs_channel_send(GPUSHARE_GROW, &pending.request, sizeof(pending.request));
    gs_channel_reopen_at_once_locked();
    while (!pending.answered) {
        if (gs_waits_cancels_locked() != cancels) {
            gs_waits_cancelled_locked();
            result = GS_ERROR_CANCELLED;
            break;
        }
        uint32_t epoch = gs_waits_epoch();
        gs_mutex_unlock(&gs_client_lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        gs_waits_sleep(epoch, NULL);
        gs_mutex_lock(&gs_client_lock);
    }
    struct pending_growth **link = &growths;
    while (*link != &pending)
        link = &(*link)->next;
    *link = pending.next;
    gs_mutex_unlock(&gs_client_lock);
    *answer = pending.answer;
    return result;
}

void gs_growth_answered(const struct gpushare_grown *grown)
{
    bool found = false;
    gs_mutex_lock(&gs_client_lock);
    for (struct pending_growth *growth = growths; growth != NULL; growth = growth->next) {
        if (growth->request.serial != grown->serial)
            continue;
        growth->answer = *grown;
        growth->answered = true;
        found = true;
    }
    /*
     * Shuts the gate before the caller hands out addresses that have no memory yet. It must also happen before REVOKE,
     * which may follow at once and would give the release another cause.
     */
    if (found && grown->status == GPUSHARE_GROWTH_SWAPPED)
        gs_lease_release_locked(GPUSHARE_CAUSE_GROWTH);
    gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
    if (!found)
        gs_devices_report(); /* that wait was cancelled: the promise is returned */
}

bool gs_growth_is_wanted_locked(void)
{
    return growths != NULL;
}

void gs_growth_ask_again_locked(void)
{
    for (struct pending_growth *growth = growths; growth != NULL; growth = growth->next)
        if (!growth->answered)
            gs_channel_send(GPUSHARE_GROW, &growth->request, sizeof(growth->request));
}

void gs_growth_answer_alone_locked(void)
{
    for (struct pending_growth *growth = growths; growth != NULL; growth = growth->next) {
        if (growth->answered)
            continue;
        growth->answer.status = gs_lease_is_held_locked() ? GPUSHARE_GROWTH_RESIDENT : GPUSHARE_GROWTH_SWAPPED;
        growth->answer.promised = growth->request.least.promised;
        growth->answered = true;
        gs_waits_wake();
    }
}

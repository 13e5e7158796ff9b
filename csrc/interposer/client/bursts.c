/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/bursts.h"

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/session.h"
#include "client/channel.h"
#include "client/lease.h"
#include "client/metering.h"
#include "client/quiet.h"
#include "client/waits.h"
#include "gate/awake.h"
#include "gate/capture.h"
#include "gate/drain.h"
#include "gate/meter.h"
#include "gate/slots.h"
#include "memory/memory.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

/* An end that the server reported counts if nothing is submitted for this long after it. */
static const uint64_t end_check_delay = 2 * GS_MILLISECOND;
/* It also requires that nothing is in flight, which is checked at this interval. */
static const uint64_t end_check_interval = 20 * GS_MILLISECOND;

/* Guarded by the client's lock. */
static struct {
    uint64_t at, passes;
    bool draining;
} end_check;

/* The cell that runs, for schedulers that know nothing of it. Guarded by the client's lock. */
static struct {
    struct gpushare_cell cell;
    pid_t process; /* that runs it: the child of a fork does not; 0: no cell runs */
} open_cell;

void gs_bursts_cell(enum gpushare_phase phase, const char *msg_id)
{
    if (phase == GPUSHARE_PHASE_BEGIN)
        gs_interrupt_watch();
    else
        gs_interrupt_unwatch();
    struct gpushare_cell cell = {.at_ns = gs_now_ns(), .phase = phase};
    if (msg_id != NULL)
        snprintf(cell.msg_id, sizeof(cell.msg_id), "%s", msg_id);
    struct gs_slot *called;
    if (phase == GPUSHARE_PHASE_END && gs_session_attached() && gs_awake_try_enter(&called)) {
        gs_meter_look();
        gs_awake_leave(called);
        gs_metering_send();
    }
    gs_mutex_lock(&gs_client_lock);
    open_cell.cell = cell;
    open_cell.process = phase == GPUSHARE_PHASE_BEGIN ? getpid() : 0;
    if (phase == GPUSHARE_PHASE_END && gs_session_attached())
        gs_lease_end_burst_locked(GPUSHARE_CAUSE_CELL);
    gs_channel_send(GPUSHARE_CELL, &cell, sizeof(cell));
    gs_mutex_unlock(&gs_client_lock);
}

void gs_bursts_reattach_locked(void)
{
    if (open_cell.process == getpid())
        gs_channel_send(GPUSHARE_CELL, &open_cell.cell, sizeof(open_cell.cell));
}

void gs_bursts_contended(const struct gpushare_contended *contended)
{
    gs_mutex_lock(&gs_client_lock);
    gs_quiet_watch(contended->waiting, contended->beside);
    gs_mutex_unlock(&gs_client_lock);
}

void gs_bursts_check_end(void)
{
    gs_mutex_lock(&gs_client_lock);
    end_check.at = gs_now_ns() + end_check_delay;
    end_check.passes = gs_gate_passes();
    end_check.draining = false;
    gs_mutex_unlock(&gs_client_lock);
}

void gs_bursts_step_quiet(uint64_t now)
{
    gs_mutex_lock(&gs_client_lock);
    uint64_t passes = gs_gate_passes();
    bool busy = !gs_gate_empty() || gs_lease_paced_locked() != 0;
    bool quiet = gs_quiet_is_over(now, passes, busy, gs_capture_open());
    bool draining = gs_quiet_set_draining(quiet);
    gs_mutex_unlock(&gs_client_lock);
    if (!quiet)
        return;
    bool begun = draining || gs_context_begin_drain(false);
    if (begun && !gs_context_drained())
        return;
    gs_memory_reap();
    gs_meter_look_from_helper();
    gs_metering_send();
    gs_mutex_lock(&gs_client_lock);
    if (begun && gs_gate_passes() == passes && gs_lease_paced_locked() == 0)
        gs_lease_end_burst_locked(GPUSHARE_CAUSE_QUIET);
    gs_quiet_set_draining(false);
    gs_mutex_unlock(&gs_client_lock);
}

/*
 * A thread that is waiting for work in flight submits nothing, although the burst continues. So the check waits, too.
 */
void gs_bursts_step_end_check(uint64_t now)
{
    gs_mutex_lock(&gs_client_lock);
    uint64_t passes = end_check.passes;
    bool open = gs_lease_gate_is_open() && !gs_lease_is_ending_locked();
    bool continues = gs_gate_passes() != passes || !gs_gate_empty() || gs_lease_paced_locked() != 0;
    bool draining = end_check.draining;
    end_check.at = 0;
    end_check.draining = false;
    gs_mutex_unlock(&gs_client_lock);
    if (!open || continues || !(draining || gs_context_begin_drain(false)))
        return;
    bool drained = gs_context_drained();
    if (drained) {
        gs_meter_look_from_helper();
        gs_metering_send();
    }
    gs_mutex_lock(&gs_client_lock);
    if (!drained) {
        end_check.at = now + end_check_interval;
        end_check.draining = true;
    } else if (gs_gate_passes() == passes && gs_lease_paced_locked() == 0) {
        gs_lease_end_burst_locked(GPUSHARE_CAUSE_IDLE);
    }
    gs_mutex_unlock(&gs_client_lock);
}

uint64_t gs_bursts_end_check_at_locked(void)
{
    return end_check.at;
}

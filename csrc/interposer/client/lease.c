/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/lease.h"

#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "client/channel.h"
#include "client/metering.h"
#include "client/moving.h"
#include "client/quiet.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/awake.h"
#include "gate/capture.h"
#include "gate/drain.h"
#include "gate/meter.h"
#include "gate/pace.h"
#include "hibernate/hibernate.h"
#include "memory/devices.h"
#include "memory/memory.h"

#include <stddef.h>
#include <time.h>

/* The shortest interval at which work in flight is checked while a thread waits for its end. */
static const uint64_t shortest_look = GS_MILLISECOND / 20;
/* If a release takes longer than this, the process reports what it is waiting for. */
static const uint64_t stuck_after = 200 * GS_MILLISECOND;

/* A thread that is waiting for a lease; allocated on its stack. */
struct waiter {
    struct waiter *next;
};

enum release_step { RELEASE_NONE, RELEASE_CAPTURE, RELEASE_INSIDE, RELEASE_DRAIN };

static struct {
    uint64_t id;
    bool held;
    bool requested;
    unsigned waiters;
    struct waiter *first_waiter; /* in order of arrival */
    /* the waiting threads have been told that there is no room, and no scheduler to make room */
    bool notified;
    unsigned drainers; /* threads that wait until the lease is released */
    unsigned paced;    /* threads that have to wait before they may submit, although there is a lease */
    uint64_t returned; /* submissions at the helper's last check */
    uint64_t failures; /* how many times waits failed because the memory could not be restored */
    CUresult failure;  /* the result of these failed waits */

    enum release_step release;
    bool step;     /* one waiting thread may submit, although the gate is shut */
    bool unserved; /* there is a lease, and no thread that waited for it has entered yet */
    enum gpushare_cause release_cause;
    bool lacks_room;           /* an allocation has no room under the lease that is being released */
    uint64_t shortages;        /* number of allocations without room */
    uint64_t searched_in_vain; /* the last such allocation for which a thread searched for room in vain */
    bool looking;              /* a thread is searching for room */
    uint64_t announced;        /* the last such allocation during a capture for which the waiting threads were woken */
    unsigned release_polls;
    uint64_t release_since;
    uint64_t stuck; /* the lease that the last STUCK was about */
    uint64_t capture_patience;
    void (*ends)(void);
} lease;

void gs_lease_set_capture_patience(uint64_t patience)
{
    lease.capture_patience = patience;
}

void gs_lease_set_end(void (*ends)(void))
{
    lease.ends = ends;
}

/* --- The state of the gate --- */

void gs_lease_set_gate_locked(enum gs_gate_state state)
{
    __atomic_store_n(&gs_gate_word, state, __ATOMIC_SEQ_CST);
}

uint32_t gs_lease_gate_state(void)
{
    return __atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED);
}

bool gs_lease_gate_is_open(void)
{
    return gs_lease_gate_state() == GS_GATE_OPEN || gs_lease_gate_state() == GS_GATE_PACED;
}

void gs_lease_open_gate_locked(void)
{
    gs_lease_set_gate_locked(gs_pace_active() ? GS_GATE_PACED : GS_GATE_OPEN);
}

/* --- Messages to the scheduler --- */

static void send_request(void)
{
    lease.requested = gs_channel_is_open();
    struct gpushare_lease request = {.lease = gs_channel_next_serial_locked(), .at_ns = gs_now_ns()};
    gs_channel_send(GPUSHARE_REQUEST, &request, sizeof(request));
    gs_channel_reopen_at_once_locked();
}

void gs_lease_send_last_released_locked(uint64_t id, enum gpushare_cause cause)
{
    struct gpushare_lease released = {.lease = id, .at_ns = gs_now_ns(), .cause = cause};
    gs_channel_send(GPUSHARE_RELEASED, &released, sizeof(released));
    lease.requested = false;
}

void gs_lease_send_released_locked(uint64_t id, enum gpushare_cause cause)
{
    gs_lease_send_last_released_locked(id, cause);
    if (lease.waiters != 0)
        send_request();
}

static void send_burst(enum gpushare_phase phase, enum gpushare_cause cause)
{
    struct gpushare_burst burst = {.at_ns = gs_now_ns(), .phase = phase, .cause = cause};
    gs_channel_send(GPUSHARE_BURST, &burst, sizeof(burst));
}

void gs_lease_forget_request_locked(void)
{
    lease.requested = false;
}

void gs_lease_keep_request_locked(void)
{
    lease.requested = gs_channel_is_open();
}

void gs_lease_reattach_locked(void)
{
    lease.stuck = 0;
    /* A request that was made while there was no scheduler has not reached this one. */
    lease.requested = false;
    if (lease.waiters != 0 && !lease.held)
        send_request();
}

/* --- Application threads --- */

static bool lacks_memory(enum gpushare_cause cause)
{
    return cause == GPUSHARE_CAUSE_GROWTH || cause == GPUSHARE_CAUSE_FAILED;
}

/* The allocation gets memory with the next lease, and this lease cannot be released before the capture ends. */
static bool capture_lacks_room(void)
{
    return lease.release != RELEASE_NONE && lease.lacks_room && gs_capture_open();
}

/*
 * The memory may have been requested before the capture began. Because the capture is open, the scheduler makes room
 * instead of waiting for the lease. The lock is released meanwhile.
 */
static void look_for_room_locked(void)
{
    uint64_t shortages = lease.shortages;
    lease.looking = true;
    gs_mutex_unlock(&gs_client_lock);
    bool there = gs_devices_promise_now();
    gs_mutex_lock(&gs_client_lock);
    lease.looking = false;
    if (!there) {
        lease.searched_in_vain = lease.shortages;
    } else if (lease.shortages == shortages) {
        lease.lacks_room = false;
        gs_helper_call();
    }
    gs_waits_wake();
}

/* Whether this thread has to go on before the capture can end. */
static bool waits_for_itself(void)
{
    if (!capture_lacks_room() || lease.looking || !gs_capture_own())
        return false;
    gs_print("memory that was allocated during a stream capture does not fit on the GPU before the capture ends. End "
             "the capture before you submit other work");
    return true;
}

CUresult gs_lease_acquire(bool *entered)
{
    CUresult result = CUDA_SUCCESS;
    *entered = false;
    bool watching = false, counted = false;
    bool looked = false; /* for room, because the thread waits */
    struct gpushare_usage needed;
    struct timespec second = {.tv_sec = 1};
    struct gs_slot *paused = gs_awake_pause();
    gs_mutex_lock(&gs_client_lock);
    gs_quiet_continues();
    uint64_t cancels = gs_waits_cancels_locked(), failures = lease.failures,
             wake_failures = gs_waking_failures_locked();
    if (lease.waiters++ == 0)
        lease.notified = false;
    struct waiter self = {.next = NULL}, **link = &lease.first_waiter;
    while (*link != NULL)
        link = &(*link)->next;
    *link = &self;
    while (gs_lease_gate_state() == GS_GATE_SHUT) {
        if (gs_waits_cancels_locked() != cancels) {
            gs_waits_cancelled_locked();
            result = GS_ERROR_CANCELLED;
            break;
        }
        if (lease.failures != failures) {
            result = lease.failure;
            break;
        }
        if (gs_waking_failures_locked() != wake_failures) {
            result = gs_waking_failure_locked();
            break;
        }
        if (gs_waking_has_ended_locked()) {
            result = CUDA_ERROR_DEINITIALIZED;
            break;
        }
        if (capture_lacks_room() && !lease.looking && !(looked && lease.searched_in_vain == lease.shortages)) {
            look_for_room_locked();
            looked = true;
            continue;
        }
        if (waits_for_itself()) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        /* Threads are served in order: any of them may submit what the others wait for. */
        if (lease.step && lease.first_waiter == &self) {
            lease.step = false;
            gs_gate_enter_shut();
            *entered = true;
            break;
        }
        /* While a lease is being released, the helper requests the next one after RELEASED. */
        if (!lease.requested && lease.release == RELEASE_NONE)
            send_request();
        /* The process was hibernated while this thread was waiting, and will be woken when it is its turn. */
        bool asleep = gs_waking_state_locked() != GS_WAKING_AWAKE;
        if (asleep && counted)
            gs_waking_ask_locked(&needed);
        uint32_t epoch = gs_waits_epoch();
        gs_mutex_unlock(&gs_client_lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        if (asleep && !counted)
            gs_hibernate_needs(&needed);
        else
            gs_waits_sleep(epoch, asleep ? &second : NULL);
        counted = asleep;
        gs_mutex_lock(&gs_client_lock);
    }
    lease.unserved = lease.unserved && result != CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && gs_lease_gate_state() == GS_GATE_HELD) {
        gs_lease_open_gate_locked();
        gs_quiet_begin_again();
        send_burst(GPUSHARE_PHASE_BEGIN, GPUSHARE_CAUSE_NONE);
        if (gs_quiet_is_watched() || gs_pace_metered())
            gs_helper_call();
    }
    lease.waiters--;
    for (link = &lease.first_waiter; *link != &self;)
        link = &(*link)->next;
    *link = self.next;
    if (lease.step)
        gs_waits_wake(); /* another thread is the first now */
    gs_mutex_unlock(&gs_client_lock);
    result = gs_awake_resume(paused, result);
    if (result != CUDA_SUCCESS && *entered) {
        gs_gate_leave_shut();
        *entered = false;
    }
    return result;
}

CUresult gs_lease_pace(struct gs_submission *submission)
{
    uint64_t since = gs_now_ns(), patience;
    if (gs_pace_admit(submission, since, &patience) || (gs_meter_look() && gs_pace_admit(submission, since, &patience)))
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    gs_mutex_lock(&gs_client_lock);
    uint64_t cancels = gs_waits_cancels_locked();
    lease.paced++;
    while (gs_lease_gate_state() == GS_GATE_PACED && !gs_pace_admit(submission, since, &patience)) {
        if (gs_waits_cancels_locked() != cancels) {
            gs_waits_cancelled_locked();
            result = GS_ERROR_CANCELLED;
            break;
        }
        uint32_t epoch = gs_waits_epoch();
        if (!watching)
            gs_helper_call(); /* the helper checks work in flight, which this thread must not do */
        gs_mutex_unlock(&gs_client_lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        if (gs_meter_in_flight() != 0 && patience > shortest_look)
            patience = shortest_look;
        struct timespec timeout = {.tv_sec = (time_t)(patience / GS_SECOND), .tv_nsec = (long)(patience % GS_SECOND)};
        gs_waits_sleep(epoch, &timeout);
        gs_meter_look();
        gs_mutex_lock(&gs_client_lock);
    }
    lease.paced--;
    gs_mutex_unlock(&gs_client_lock);
    return result;
}

void gs_lease_release_locked(enum gpushare_cause cause)
{
    bool begins = lease.release == RELEASE_NONE;
    /* The release had begun for another reason. Now captures cannot continue as before. */
    bool changes = !begins && lease.release != RELEASE_DRAIN && lacks_memory(cause) && !lease.lacks_room;
    lease.shortages += lacks_memory(cause);
    if (!lease.held || !(begins || changes))
        return;
    gs_gate_shut();
    if (begins)
        lease.release_since = gs_now_ns();
    if (lease.paced != 0)
        gs_waits_wake(); /* threads outside the gate wait for the next lease from now on */
    lease.release = RELEASE_INSIDE;
    lease.release_cause = cause;
    lease.lacks_room = lacks_memory(cause);
    lease.release_polls = 0;
    /* If each lease is revoked at once, a thread that wakes up slowly would never enter without this. */
    lease.step = begins && lease.unserved && lease.waiters != 0 && !lacks_memory(cause);
    if (cause != GPUSHARE_CAUSE_REVOKE)
        gs_quiet_ended(false);
}

void gs_lease_release(enum gpushare_cause cause)
{
    gs_mutex_lock(&gs_client_lock);
    gs_lease_release_locked(cause);
    gs_mutex_unlock(&gs_client_lock);
    gs_helper_call();
}

enum gs_reach gs_lease_reach(bool promised, struct gs_slot **entered)
{
    enum gs_reach reach = GS_REACH_NONE;
    gs_mutex_lock(&gs_client_lock);
    if (lease.held && gs_lease_gate_state() == GS_GATE_SHUT) {
        bool room = promised || !lease.lacks_room;
        reach = !room ? GS_REACH_LATER : gs_gate_enter_shut_leased(entered) ? GS_REACH_NOW : GS_REACH_NONE;
    }
    gs_mutex_unlock(&gs_client_lock);
    return reach;
}

bool gs_lease_await_released(uint64_t patience)
{
    uint64_t end = gs_now_ns() + patience, now;
    gs_mutex_lock(&gs_client_lock);
    uint64_t cancels = gs_waits_cancels_locked();
    lease.drainers++;
    while (lease.held && gs_lease_gate_state() == GS_GATE_SHUT && gs_waits_cancels_locked() == cancels &&
           (now = gs_now_ns()) < end) {
        struct timespec timeout = {.tv_sec = (time_t)((end - now) / GS_SECOND),
                                   .tv_nsec = (long)((end - now) % GS_SECOND)};
        uint32_t epoch = gs_waits_epoch();
        gs_mutex_unlock(&gs_client_lock);
        gs_waits_sleep(epoch, &timeout);
        gs_mutex_lock(&gs_client_lock);
    }
    lease.drainers--;
    bool over = !lease.held || gs_lease_gate_state() != GS_GATE_SHUT;
    gs_mutex_unlock(&gs_client_lock);
    return over;
}

bool gs_lease_is_held(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool held = lease.held;
    gs_mutex_unlock(&gs_client_lock);
    return held;
}

unsigned gs_lease_waiters_locked(void)
{
    return lease.waiters;
}

unsigned gs_lease_paced_locked(void)
{
    return lease.paced;
}

bool gs_lease_paced_may_continue_locked(void)
{
    uint64_t returned;
    return lease.paced != 0 && (gs_pace_in_flight(&returned) != 0 || returned != lease.returned);
}

/* Wakes the threads that wait for work in flight when some of it is done, or when there was none. */
void gs_lease_look_for_paced(void)
{
    gs_meter_look_from_helper();
    gs_mutex_lock(&gs_client_lock);
    uint64_t before = lease.returned;
    gs_pace_in_flight(&lease.returned);
    if (lease.paced != 0 && lease.returned != before)
        gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

void gs_lease_fail_waiters_locked(CUresult failure)
{
    lease.failures++;
    lease.failure = failure;
    gs_waits_wake();
}

bool gs_lease_notify_waiters_locked(void)
{
    bool first = !lease.notified;
    lease.notified = true;
    return first;
}

/* --- What the scheduler has granted --- */

bool gs_lease_is_held_locked(void)
{
    return lease.held;
}

uint64_t gs_lease_id_locked(void)
{
    return lease.id;
}

void gs_lease_grant_locked(uint64_t id)
{
    lease.id = id;
    lease.held = true;
    lease.requested = false;
    gs_quiet_begin();
    lease.unserved = lease.waiters != 0;
    if (lease.waiters != 0) {
        gs_lease_open_gate_locked();
        gs_waits_wake();
    } else {
        gs_lease_set_gate_locked(GS_GATE_HELD);
        send_burst(GPUSHARE_PHASE_END, GPUSHARE_CAUSE_QUIET);
    }
}

void gs_lease_step_locked(uint64_t id)
{
    lease.step = lease.waiters != 0;
    if (lease.step) {
        if (!lease.held)
            lease.release_since = gs_now_ns();
        lease.id = id;
        lease.held = true;
        lease.release = RELEASE_INSIDE;
        lease.release_cause = GPUSHARE_CAUSE_REVOKE;
        lease.lacks_room = false;
        lease.release_polls = 0;
        gs_waits_wake();
    }
}

void gs_lease_take_alone(void)
{
    lease.held = true;
    lease.id = 0;
}

/* --- The end of a lease --- */

void gs_lease_end_burst_locked(enum gpushare_cause cause)
{
    if (!gs_lease_gate_is_open() || lease.release != RELEASE_NONE)
        return;
    gs_lease_set_gate_locked(GS_GATE_HELD);
    gs_quiet_ended(cause == GPUSHARE_CAUSE_QUIET);
    send_burst(GPUSHARE_PHASE_END, cause);
}

bool gs_lease_is_ending_locked(void)
{
    return lease.release != RELEASE_NONE;
}

bool gs_lease_is_draining_locked(uint64_t id)
{
    return lease.held && lease.id == id && (lease.release == RELEASE_INSIDE || lease.release == RELEASE_DRAIN);
}

/* Another process may be waiting for this release, so check often at first: most drains are short. */
uint64_t gs_lease_release_pause_locked(void)
{
    return lease.release_polls < 50 ? 0 : lease.release_polls < 200 ? GS_MILLISECOND / 20 : GS_MILLISECOND / 2;
}

static void finish_release(void)
{
    gs_memory_drop_failed(); /* the drain has found the failed contexts */
    gs_memory_reap();        /* freed memory must not be moved or counted */
    lease.ends();
    gs_meter_look_from_helper();
    gs_metering_send();
    gs_mutex_lock(&gs_client_lock);
    /* A thread that is giving memory to a new block must have finished: see gs_lease_reach. */
    if (gs_gate_empty()) {
        lease.held = false;
        lease.release = RELEASE_NONE;
        gs_lease_send_released_locked(lease.id, lease.release_cause);
        if (lease.drainers != 0)
            gs_waits_wake();
    }
    gs_mutex_unlock(&gs_client_lock);
}

static void go_to(enum release_step step)
{
    gs_mutex_lock(&gs_client_lock);
    lease.release = step;
    gs_mutex_unlock(&gs_client_lock);
}

static void open_until_capture_ends(void *unused)
{
    (void)unused;
    gs_mutex_lock(&gs_client_lock);
    if (!lease.lacks_room) {
        lease.release = RELEASE_CAPTURE;
        gs_lease_open_gate_locked();
        gs_waits_wake();
    }
    gs_mutex_unlock(&gs_client_lock);
}

/* A capture may need work that its thread submits outside it. Until the capture ends, the lease is used as before. */
static void wait_for_capture(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool lacks_room = lease.lacks_room;
    if (lacks_room && lease.announced != lease.shortages) {
        lease.announced = lease.shortages;
        gs_waits_wake();
    }
    gs_mutex_unlock(&gs_client_lock);
    if (lacks_room)
        return;
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    /* Memory that was allocated while the gate was shut has no backing yet. */
    gs_moving_restore(GS_MOVE_IN, 0, moved, &devices, open_until_capture_ends, NULL);
}

/* The capture needs memory that has no room before it ends. An error ends it. */
static void fail_waiters(void)
{
    gs_mutex_lock(&gs_client_lock);
    gs_lease_fail_waiters_locked(CUDA_ERROR_OUT_OF_MEMORY);
    gs_mutex_unlock(&gs_client_lock);
}

static void shut_after_capture(void)
{
    gs_mutex_lock(&gs_client_lock);
    if (lease.release == RELEASE_CAPTURE) {
        gs_gate_shut();
        lease.release = RELEASE_INSIDE;
    }
    gs_mutex_unlock(&gs_client_lock);
}

/*
 * Released at once, not at the helper's next check: otherwise a thread that captures continually would never release
 * the lease.
 */
void gs_lease_capture_ended(void)
{
    if (!gs_session_attached() || gs_capture_open())
        return;
    shut_after_capture();
    gs_helper_call();
}

/* Once for each lease that takes long to release. */
static void report_if_stuck(void)
{
    uint64_t since = lease.release_since;
    if (lease.stuck == lease.id || gs_now_ns() - since < stuck_after)
        return;
    struct gpushare_stuck stuck = {.lease = lease.id};
    gs_meter_running(stuck.kernel, &since);
    stuck.since_ns = since;
    lease.stuck = lease.id;
    gs_mutex_lock(&gs_client_lock);
    gs_channel_send(GPUSHARE_STUCK, &stuck, sizeof(stuck));
    gs_mutex_unlock(&gs_client_lock);
}

void gs_lease_step_release(void)
{
    bool patient = gs_now_ns() - lease.release_since < lease.capture_patience;
    lease.release_polls++;
    gs_mutex_lock(&gs_client_lock);
    enum release_step step = lease.release;
    lease.step = lease.step && lease.waiters != 0;
    bool one_goes = lease.step;
    gs_mutex_unlock(&gs_client_lock);
    if (one_goes || step == RELEASE_NONE)
        return; /* the process has yet to wake up */
    if (step == RELEASE_CAPTURE && !(patient && gs_capture_open())) {
        shut_after_capture();
        step = RELEASE_INSIDE;
    }
    if (step == RELEASE_INSIDE && gs_gate_empty()) {
        if (gs_context_begin_drain(!patient))
            go_to(step = RELEASE_DRAIN);
        else if (patient)
            wait_for_capture();
        else
            fail_waiters();
    }
    if (step == RELEASE_DRAIN && gs_context_drained())
        finish_release();
    else if (step != RELEASE_CAPTURE)
        report_if_stuck();
}

/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/lease.h"

#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/say.h"
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

/* While somebody waits for work in flight to end, it is looked at so often. */
static const uint64_t shortest_look = GS_MILLISECOND / 20;
/* Who gives a lease back and takes longer than this says what it waits for. */
static const uint64_t stuck_after = 200 * GS_MILLISECOND;

/* One thread that waits for a lease; lives on its stack. */
struct waiter {
    struct waiter *next;
};

enum release_step { RELEASE_NONE, RELEASE_CAPTURE, RELEASE_INSIDE, RELEASE_DRAIN };

static struct {
    uint64_t id;
    bool held;
    bool requested;
    unsigned waiters;
    struct waiter *first_waiter; /* in the order in which they came */
    bool told;                   /* the waiting threads know that there is no room, and no scheduler to make some */
    unsigned drainers;           /* threads that wait for the lease to be given back */
    unsigned paced;              /* threads that wait under a lease until they may submit */
    uint64_t given_back;         /* submissions, when the helper looked last */
    uint64_t failures;           /* waits ended because the memory does not come in */
    CUresult failure;            /* what these calls return */

    enum release_step release;
    bool step;     /* one waiting thread may submit, although the gate is shut */
    bool unserved; /* there is a lease, and none of the threads that waited for it has entered yet */
    enum gpushare_cause release_cause;
    bool lacks_room;    /* an allocation has no room under the lease that is being given back */
    uint64_t shortages; /* counts the allocations that had none */
    uint64_t hopeless;  /* the last shortage for which a thread looked for room in vain */
    bool looking;       /* a thread is looking for room */
    uint64_t announced; /* the last shortage during a capture for which the waiting threads were woken */
    unsigned release_polls;
    uint64_t release_since;
    uint64_t stuck; /* the lease of which the last STUCK was */
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

/* --- The gate's word --- */

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

/* --- What the scheduler is told --- */

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
    /* What was asked of nobody, by one that waits no more, was not asked of this one. */
    lease.requested = false;
    if (lease.waiters != 0 && !lease.held)
        send_request();
}

/* --- Application threads --- */

static bool lacks_memory(enum gpushare_cause cause)
{
    return cause == GPUSHARE_CAUSE_GROWTH || cause == GPUSHARE_CAUSE_FAILED;
}

/* What was allocated comes with the next lease, for which this one waits for the end of a capture. */
static bool capture_lacks_room(void)
{
    return lease.release != RELEASE_NONE && lease.lacks_room && gs_capture_open();
}

/*
 * What has no room was perhaps asked for before the capture began. Since it is open, the scheduler makes room rather
 * than wait for the lease. The lock is given up meanwhile.
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
        lease.hopeless = lease.shortages;
    } else if (lease.shortages == shortages) {
        lease.lacks_room = false;
        gs_helper_call();
    }
    gs_waits_wake();
}

/* The capture does not end before this thread goes on. */
static bool waits_for_itself(void)
{
    if (!capture_lacks_room() || lease.looking || !gs_capture_own())
        return false;
    gs_say("memory that was allocated during a stream capture has no room on the GPU before the capture is over; end "
           "the capture before you submit work beside it");
    return true;
}

CUresult gs_lease_acquire(bool *entered)
{
    CUresult result = CUDA_SUCCESS;
    *entered = false;
    bool watching = false, counted = false;
    bool looked = false; /* for room, since it waits */
    struct gpushare_usage needed;
    struct timespec second = {.tv_sec = 1};
    struct gs_slot *paused = gs_awake_pause();
    gs_mutex_lock(&gs_client_lock);
    gs_quiet_goes_on();
    uint64_t cancels = gs_waits_cancels_locked(), failures = lease.failures,
             wake_failures = gs_waking_failures_locked();
    if (lease.waiters++ == 0)
        lease.told = false;
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
        if (capture_lacks_room() && !lease.looking && !(looked && lease.hopeless == lease.shortages)) {
            look_for_room_locked();
            looked = true;
            continue;
        }
        if (waits_for_itself()) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        /* In turn: the one that the others wait for may be any of them. */
        if (lease.step && lease.first_waiter == &self) {
            lease.step = false;
            gs_gate_enter_shut();
            *entered = true;
            break;
        }
        /* While a lease is being given back, the helper asks for the next one after RELEASED. */
        if (!lease.requested && lease.release == RELEASE_NONE)
            send_request();
        /* It was hibernated while it waits, and is woken in its turn. */
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
        gs_waits_wake(); /* another is the first now */
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
            gs_helper_call(); /* it looks at what is in flight where this thread must not */
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

void gs_lease_give_up_locked(enum gpushare_cause cause)
{
    bool begins = lease.release == RELEASE_NONE;
    /* Under way for another reason, it learns that its captures cannot go on as before. */
    bool changes = !begins && lease.release != RELEASE_DRAIN && lacks_memory(cause) && !lease.lacks_room;
    lease.shortages += lacks_memory(cause);
    if (!lease.held || !(begins || changes))
        return;
    gs_gate_shut();
    if (begins)
        lease.release_since = gs_now_ns();
    if (lease.paced != 0)
        gs_waits_wake(); /* who waits outside the gate waits for the next lease now */
    lease.release = RELEASE_INSIDE;
    lease.release_cause = cause;
    lease.lacks_room = lacks_memory(cause);
    lease.release_polls = 0;
    /* Else a thread that is slow to wake up would never come in, if each lease is wanted back at once. */
    lease.step = begins && lease.unserved && lease.waiters != 0 && !lacks_memory(cause);
    if (cause != GPUSHARE_CAUSE_REVOKE)
        gs_quiet_ended(false);
}

void gs_lease_give_up(enum gpushare_cause cause)
{
    gs_mutex_lock(&gs_client_lock);
    gs_lease_give_up_locked(cause);
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

bool gs_lease_paced_may_go_on_locked(void)
{
    uint64_t given_back;
    return lease.paced != 0 && (gs_pace_in_flight(&given_back) != 0 || given_back != lease.given_back);
}

/* Who waits for work in flight is told when some of it is done, or was none. */
void gs_lease_look_for_paced(void)
{
    gs_meter_look_from_helper();
    gs_mutex_lock(&gs_client_lock);
    uint64_t before = lease.given_back;
    gs_pace_in_flight(&lease.given_back);
    if (lease.paced != 0 && lease.given_back != before)
        gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

void gs_lease_fail_waiters_locked(CUresult failure)
{
    lease.failures++;
    lease.failure = failure;
    gs_waits_wake();
}

bool gs_lease_tell_waiters_locked(void)
{
    bool first = !lease.told;
    lease.told = true;
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

/* --- Its end --- */

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

/* A release is somebody's wait: look often at first, since most drains are short. */
uint64_t gs_lease_release_pause_locked(void)
{
    return lease.release_polls < 50 ? 0 : lease.release_polls < 200 ? GS_MILLISECOND / 20 : GS_MILLISECOND / 2;
}

static void finish_release(void)
{
    gs_memory_drop_failed(); /* the drain has found out which */
    gs_memory_reap();        /* nobody is to be charged for what was freed, nor is it to be moved */
    lease.ends();
    gs_meter_look_from_helper();
    gs_metering_send();
    gs_mutex_lock(&gs_client_lock);
    /* A thread that gives new memory a place must be done with it: see gs_lease_reach. */
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

/* What is captured may need what the same thread submits beside it: until its end the lease is used as before. */
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
    /* What was allocated while the gate was shut has no memory yet. */
    gs_moving_restore(GS_MOVE_IN, 0, moved, &devices, open_until_capture_ends, NULL);
}

/* The capture needs memory for which there is no room before it ends: an error ends it. */
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

/* At once, and not when the helper looks again: else a thread that captures all the time would never let go. */
void gs_lease_capture_ended(void)
{
    if (!gs_session_attached() || gs_capture_open())
        return;
    shut_after_capture();
    gs_helper_call();
}

/* Once for each lease that takes its time to be given back. */
static void say_if_stuck(void)
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
        return; /* it has yet to wake up */
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
        say_if_stuck();
}

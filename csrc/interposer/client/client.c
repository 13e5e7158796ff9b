/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/client.h"

#include "backends/choose.h"
#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/say.h"
#include "base/session.h"
#include "client/connection.h"
#include "client/placement.h"
#include "gate/awake.h"
#include "gate/capture.h"
#include "gate/context_list.h"
#include "gate/contexts.h"
#include "gate/drain.h"
#include "gate/keeper.h"
#include "gate/meter.h"
#include "gate/pace.h"
#include "gate/slots.h"
#include "hibernate/hibernate.h"
#include "loader/pci.h"
#include "loader/real.h"
#include "memory/backing.h"
#include "memory/blocks.h"
#include "memory/devices.h"
#include "memory/host.h"
#include "memory/lane.h"
#include "memory/memory.h"
#include "memory/mover.h"
#include "memory/peers.h"
#include "memory/promises.h"
#include "memory/reservations.h"
#include "memory/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long the first cuInit waits for a scheduler that is being started or taken over, and for its welcome. */
static const uint64_t first_patience = 2 * GS_SECOND;
static const uint64_t greeting_patience = 2 * GS_SECOND;
/* A socket that takes connections and says nothing is kept for a scheduler that is being started, or replaced. */
static const uint64_t first_greeting_patience = 10 * GS_SECOND;
static const uint64_t shortest_retry = 20 * GS_MILLISECOND;
static const uint64_t longest_retry = 1 * GS_SECOND;
/* Our server may be about to write the ticket without which the scheduler does not know us. */
static const uint64_t ticket_patience = 10 * GS_SECOND;
/* Between two attempts of a refused process while none of its threads waits: for its protocol, or for what it is. */
static const uint64_t longest_retry_of_foreign = 5 * GS_SECOND;
static const uint64_t longest_retry_of_refused = 30 * GS_SECOND;
/* A waiter whose scheduler stays away for this long tries to make its memory resident by itself. */
static const uint64_t alone_after = 5 * GS_SECOND;
/* It tries for so long (seconds) before its wait fails; a process that starts waits so long for a scheduler. */
static const uint64_t default_patience = 300;
/* A process that starts reports after this time that it waits for a scheduler; between two attempts it pauses. */
static const uint64_t said_after = 2 * GS_SECOND;
static const uint64_t longest_pause = GS_SECOND / 2;
/* A holder has its lease and need not wait so long to allocate. */
static const uint64_t holder_alone_after = GS_SECOND / 2;
/* A scheduler that went while it had a process checkpointed may have left somebody behind who still does it. */
static const uint64_t alone_after_unfinished = 12 * GS_SECOND;
/* The hibernator that we run has so long before it is left to itself. */
static const uint64_t longest_wake = 120 * GS_SECOND;
static const uint64_t shortest_wake_retry = 1 * GS_SECOND;
static const uint64_t longest_wake_retry = 60 * GS_SECOND;
/* A process that ends waits so long to be awake. */
static const uint64_t exit_patience = 5 * GS_SECOND;
/* Threads that are in the driver for longer than this, or work that is not done then, keep a process from parking. */
static const uint64_t parking_patience = 100 * GS_MILLISECOND;
/* A thread that is between two calls of one operation comes to the driver again within this. */
static const uint64_t parking_pause = 10 * GS_MILLISECOND;

/*
 * Restores that fail one after the other, without bringing in more, before the calls that wait for them fail. The
 * scheduler leaves up to a second between two. What the driver has free may be about to change; other errors hardly.
 */
enum { MOST_FAILED_RESTORES = 8, MOST_RESTORES_WITHOUT_MEMORY = 16 };

/* A capture that was begun and never ended holds a lease that is wanted back no longer than this (milliseconds). */
static const uint64_t default_capture_patience = 30000;
/* One that comes and goes within this time has not come back: it may fall over at what we ask of it. */
static const uint64_t stable_after = 2 * GS_SECOND;
/* An end that the server saw is believed if nothing is submitted for this long after it. */
static const uint64_t end_check_delay = 2 * GS_MILLISECOND;
/* And if nothing is in flight any more, which is looked at so often. */
static const uint64_t end_check_interval = 20 * GS_MILLISECOND;
/* The learnt quiet gap stays under this, so that a holder that computes on the CPU is found within 50 ms. */
static const uint64_t longest_quiet_gap = 30 * GS_MILLISECOND;

/* While somebody waits for work in flight to end, it is looked at so often. */
static const uint64_t look_interval = GS_MILLISECOND / 5;
static const uint64_t shortest_look = GS_MILLISECOND / 20;
static const uint64_t meter_interval = 100 * GS_MILLISECOND;
/* A program that allocates and frees all the time states no more often than this what it holds. */
static const uint64_t usage_gap = 5 * GS_MILLISECOND;
/* Who gives a lease back and takes longer than this says what it waits for. */
static const uint64_t stuck_after = 200 * GS_MILLISECOND;

/* One thread that waits for a lease; lives on its stack. */
struct waiter {
    struct waiter *next;
};

/* PARKED: that has been said, and what came of it has not been heard. */
enum sleep { AWAKE, PARKED, HIBERNATED };
enum release_step { RELEASE_NONE, RELEASE_CAPTURE, RELEASE_INSIDE, RELEASE_DRAIN };

/* One thread that waits for GROWN; lives on its stack. */
struct pending_growth {
    struct gpushare_grow request;
    struct gpushare_grown answer;
    bool answered;
    struct pending_growth *next;
};

/* A frame that arrived during a move and has to wait for its end. */
struct deferred_frame {
    struct gpushare_header header;
    char body[512];
};
enum { MOST_DEFERRED = 32 };

static struct {
    const struct gs_client_watch *watch;
    struct gs_mutex start_lock; /* during the attempt in cuInit */
    struct gs_mutex await_lock; /* of the thread that waits for a scheduler before its first context */
    char path[108];
    struct gpushare_hello hello;
    bool begun;    /* the environment was read, and sharing is wanted */
    bool expected; /* a scheduler is, or is to come */
    bool awaiting; /* a thread waits for it */
    uint64_t patience;

    struct gs_mutex lock; /* guards all below; the gate's word changes under it alone */
    int socket;           /* -1 while the scheduler is away */
    bool broken;          /* a frame was lost: nothing more is sent over this connection */
    struct gs_outbox outbox;
    struct gpushare_usage usages[GPUSHARE_MAX_GPUS]; /* to be stated at this time, or with the next message */
    unsigned usage_count;
    uint64_t usage_at;
    uint32_t epoch; /* futex: changes whenever a waiter should look again */
    uint64_t lease;
    bool leased;
    bool requested;
    unsigned waiters;
    struct waiter *first_waiter; /* in the order in which they came */
    unsigned drainers;           /* threads that wait for the lease to be given back */
    unsigned paced;              /* threads that wait under a lease until they may submit */
    uint64_t cancels;
    uint64_t failures; /* waits ended because the memory does not come in */
    CUresult failure;  /* what these calls return */
    bool wait_was_cancelled;
    uint64_t serial;
    struct pending_growth *growths;

    enum sleep sleep;
    uint64_t park;     /* the last PARK's */
    unsigned sleepers; /* threads that wait to enter the driver */
    bool wake_asked;
    uint64_t wake_serial, ask_at;
    uint64_t wake_failures;
    CUresult wake_failure;
    bool ending; /* the process is; ended: and was not woken */
    bool ended;
    uint64_t alone_gap, alone_at; /* between two attempts to wake it by ourselves, and the next */
    uint64_t alone_since;         /* one is under way since then; 0: none */
    bool alone_said;

    enum release_step release;
    bool step;     /* one that waits may submit, though the gate is shut */
    bool unserved; /* there is a lease, and none of those that waited for it has come in yet */
    enum gpushare_cause release_cause;
    bool lacks_room;    /* an allocation has no room under the lease that is being given back */
    uint64_t shortages; /* counts the allocations that had none */
    uint64_t hopeless;  /* the last shortage for which a thread looked for room in vain */
    bool looking;       /* a thread is looking for room */
    uint64_t announced; /* the last shortage during a capture for which the waiting threads were woken */
    unsigned release_polls;
    uint64_t release_since;
    uint64_t capture_patience;

    uint32_t beside;
    struct gpushare_meter meters[GPUSHARE_MAX_GPUS]; /* as last said */
    uint64_t meter_at;
    uint64_t given_back; /* submissions, when the helper looked last */
    uint64_t stuck;      /* the lease of which the last STUCK was */
    uint64_t quiet_gap, shortest_quiet_gap;
    uint64_t quiet_passes, quiet_since;
    bool quiet_draining, ended_by_quiet;
    uint64_t end_check_at, end_check_passes;
    bool end_check_draining;

    /* The helper's own. */
    uint64_t attached_at, away_since, retry_at, retry_gap;
    bool shortage_said;    /* to the threads that wait now: no room, and no scheduler that would make some */
    enum gs_ticket ticket; /* what was presented last */
    bool refused;          /* the last scheduler that answered refused us: for this reason; read without a lock */
    uint32_t refusal_code;
    bool refusal_said;
    char refusal[sizeof(((struct gpushare_refused *)NULL)->text) + 1];
    struct gs_inbox inbox;
    struct deferred_frame deferred[MOST_DEFERRED];
    unsigned deferred_count;
    enum { NO_MOVE, MOVE_OUT, MOVE_BACK, MOVE_IN, MOVE_IN_FILLING } move;
    unsigned failed_restores; /* one after the other */
    uint64_t most_restored;   /* bytes that were resident after the best of them */
    uint64_t move_lease;
    uint64_t revoked;                              /* the lease that the last REVOKE named */
    struct gpushare_room rooms[GPUSHARE_MAX_GPUS]; /* of the lease that the last ROOM named */
    unsigned room_count;
    uint64_t prepare;
    bool prepare_waits; /* for a context */
} client = {.start_lock = GS_MUTEX(GS_RANK_START),
            .await_lock = GS_MUTEX(GS_RANK_AWAIT),
            .lock = GS_MUTEX(GS_RANK_CLIENT),
            .socket = -1,
            .inbox.descriptor = -1};

static __thread bool is_helper __attribute__((tls_model("initial-exec")));

static void futex_wait(uint32_t *word, uint32_t value, const struct timespec *timeout)
{
    gs_lock_waits(GS_RANK_GROWTH);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static void wake_waiters(void)
{
    __atomic_add_fetch(&client.epoch, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &client.epoch, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* A frame could not be sent, so no later one may be. Attaching again states everything that matters. */
static void break_connection_locked(void)
{
    client.broken = true;
    shutdown(client.socket, SHUT_RDWR); /* the helper sees the end */
}

/* Never waits for the scheduler. What the socket does not take at once, the helper sends later. */
static void post_frame(enum gpushare_type type, const void *body, size_t size)
{
    if (client.socket < 0 || client.broken)
        return;
    bool waited = !gs_outbox_empty(&client.outbox);
    if (!gs_post(client.socket, &client.outbox, type, body, size))
        break_connection_locked();
    else if (!waited && !gs_outbox_empty(&client.outbox))
        gs_helper_call();
}

static void send_usages(void)
{
    if (client.usage_count == 0)
        return;
    for (unsigned i = 0; i < client.usage_count; i++)
        post_frame(GPUSHARE_USAGE, &client.usages[i], sizeof(client.usages[i]));
    client.usage_count = 0;
    client.usage_at = gs_now_ns() + usage_gap;
}

/* Of each GPU, the last statement counts. */
static void hold_usage(const struct gpushare_usage *usage)
{
    unsigned i = 0;
    while (i < client.usage_count && memcmp(client.usages[i].gpu, usage->gpu, sizeof(usage->gpu)) != 0)
        i++;
    if (i == GPUSHARE_MAX_GPUS) {
        send_usages(); /* a wake has renamed one */
        i = 0;
    }
    client.usages[i] = *usage;
    if (i == client.usage_count)
        client.usage_count++;
}

static void send_frame(enum gpushare_type type, const void *body, size_t size)
{
    send_usages();
    post_frame(type, body, size);
}

static void send_due_usages(void)
{
    gs_mutex_lock(&client.lock);
    if (client.usage_count != 0 && gs_now_ns() >= client.usage_at)
        send_usages();
    gs_mutex_unlock(&client.lock);
}

static void flush_outbox(void)
{
    gs_mutex_lock(&client.lock);
    if (client.socket >= 0 && !client.broken && !gs_flush(client.socket, &client.outbox))
        break_connection_locked();
    gs_mutex_unlock(&client.lock);
}

/* A thread waits for what only a scheduler gives. */
static void look_for_scheduler_at_once(void)
{
    if (client.socket >= 0)
        return;
    client.retry_at = 0;
    gs_helper_call();
}

static void send_request(void)
{
    client.requested = client.socket >= 0;
    struct gpushare_lease request = {.lease = ++client.serial, .at_ns = gs_now_ns()};
    send_frame(GPUSHARE_REQUEST, &request, sizeof(request));
    look_for_scheduler_at_once();
}

static void send_last_released(uint64_t lease, enum gpushare_cause cause)
{
    struct gpushare_lease released = {.lease = lease, .at_ns = gs_now_ns(), .cause = cause};
    send_frame(GPUSHARE_RELEASED, &released, sizeof(released));
    client.requested = false;
}

/* Threads that are waiting ask for the next lease. */
static void send_released(uint64_t lease, enum gpushare_cause cause)
{
    send_last_released(lease, cause);
    if (client.waiters != 0)
        send_request();
}

static void send_burst(enum gpushare_phase phase, enum gpushare_cause cause)
{
    struct gpushare_burst burst = {.at_ns = gs_now_ns(), .phase = phase, .cause = cause};
    send_frame(GPUSHARE_BURST, &burst, sizeof(burst));
}

static void set_gate(enum gs_gate_state state)
{
    __atomic_store_n(&gs_gate_word, state, __ATOMIC_SEQ_CST);
}

static uint32_t gate_state(void)
{
    return __atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED);
}

/* A burst is under way. */
static bool is_open(void)
{
    return gate_state() == GS_GATE_OPEN || gate_state() == GS_GATE_PACED;
}

static void open_for_submissions(void)
{
    set_gate(gs_pace_active() ? GS_GATE_PACED : GS_GATE_OPEN);
}

/* Somebody is to know when bursts begin and end. */
static bool is_watched(void)
{
    return gs_session_contended() != 0 || client.beside != 0;
}

/* Says how much of the GPUs there was, where that has changed. */
static void send_meters(void)
{
    struct gpushare_meter meters[GPUSHARE_MAX_GPUS];
    if (!gs_pace_metered())
        return;
    unsigned gpus = gs_meter_read(meters);
    gs_mutex_lock(&client.lock);
    uint64_t now = gs_now_ns();
    client.meter_at = now + meter_interval;
    for (unsigned i = 0; i < gpus; i++) {
        if (meters[i].submissions == client.meters[i].submissions && meters[i].busy_ns == client.meters[i].busy_ns)
            continue;
        client.meters[i] = meters[i];
        meters[i].at_ns = now;
        send_frame(GPUSHARE_METER, &meters[i], sizeof(meters[i]));
    }
    gs_mutex_unlock(&client.lock);
}

/* --- Application threads --- */

/* A burst that quiet ended goes on: the gap was one of the application's own, so a longer one is needed. */
static void learn_quiet_gap(void)
{
    if (!client.ended_by_quiet)
        return;
    client.ended_by_quiet = false;
    uint64_t gap = gs_now_ns() - client.quiet_since;
    if (gap < 4 * longest_quiet_gap)
        client.quiet_gap = gap + gap / 4;
    else
        client.quiet_gap -= client.quiet_gap / 4;
    if (client.quiet_gap < client.shortest_quiet_gap)
        client.quiet_gap = client.shortest_quiet_gap;
    if (client.quiet_gap > longest_quiet_gap)
        client.quiet_gap = longest_quiet_gap;
}

static bool lacks_memory(enum gpushare_cause cause)
{
    return cause == GPUSHARE_CAUSE_GROWTH || cause == GPUSHARE_CAUSE_FAILED;
}

/* What was allocated comes with the next lease, for which this one waits for the end of a capture. */
static bool capture_lacks_room(void)
{
    return client.release != RELEASE_NONE && client.lacks_room && gs_capture_open();
}

/*
 * What has no room was perhaps asked for before the capture began. Since it is open, the scheduler makes room rather
 * than wait for the lease. The lock is let go meanwhile.
 */
static void look_for_room_locked(void)
{
    uint64_t shortages = client.shortages;
    client.looking = true;
    gs_mutex_unlock(&client.lock);
    bool there = gs_devices_promise_now();
    gs_mutex_lock(&client.lock);
    client.looking = false;
    if (!there) {
        client.hopeless = client.shortages;
    } else if (client.shortages == shortages) {
        client.lacks_room = false;
        gs_helper_call();
    }
    wake_waiters();
}

/* The capture does not end before this thread goes on. */
static bool waits_for_itself(void)
{
    if (!capture_lacks_room() || client.looking || !gs_capture_own())
        return false;
    gs_say("memory that was allocated during a stream capture has no room on the GPU before the capture is over; end "
           "the capture before you submit work beside it");
    return true;
}

/* Somebody is to call the driver. A failure is not followed by the next attempt at once. */
static void ask_to_wake(const struct gpushare_usage *needed)
{
    if (client.sleep == AWAKE || client.wake_asked || gs_now_ns() < client.ask_at)
        return;
    struct gpushare_wake wake = {
        .serial = ++client.serial,
        .at_ns = gs_now_ns(),
        .cause = client.ending ? GPUSHARE_WAKE_EXIT : GPUSHARE_WAKE_CALL,
        .needs = *needed,
    };
    client.wake_serial = wake.serial;
    client.wake_asked = client.socket >= 0;
    send_frame(GPUSHARE_WAKE, &wake, sizeof(wake));
    look_for_scheduler_at_once();
}

static CUresult gs_client_acquire(bool *entered)
{
    CUresult result = CUDA_SUCCESS;
    *entered = false;
    bool watching = false, counted = false;
    bool looked = false; /* for room, since it waits */
    struct gpushare_usage needed;
    struct timespec second = {.tv_sec = 1};
    struct gs_slot *paused = gs_awake_pause();
    gs_mutex_lock(&client.lock);
    learn_quiet_gap();
    uint64_t cancels = client.cancels, failures = client.failures, wake_failures = client.wake_failures;
    if (client.waiters++ == 0)
        client.shortage_said = false;
    struct waiter self = {.next = NULL}, **link = &client.first_waiter;
    while (*link != NULL)
        link = &(*link)->next;
    *link = &self;
    while (gate_state() == GS_GATE_SHUT) {
        if (client.cancels != cancels) {
            client.wait_was_cancelled = true;
            result = GS_ERROR_CANCELLED;
            break;
        }
        if (client.failures != failures) {
            result = client.failure;
            break;
        }
        if (client.wake_failures != wake_failures) {
            result = client.wake_failure;
            break;
        }
        if (client.ended) {
            result = CUDA_ERROR_DEINITIALIZED;
            break;
        }
        if (capture_lacks_room() && !client.looking && !(looked && client.hopeless == client.shortages)) {
            look_for_room_locked();
            looked = true;
            continue;
        }
        if (waits_for_itself()) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        /* In turn: the one that the others wait for may be any of them. */
        if (client.step && client.first_waiter == &self) {
            client.step = false;
            gs_gate_enter_shut();
            *entered = true;
            break;
        }
        /* While a lease is being given back, the helper asks for the next one after RELEASED. */
        if (!client.requested && client.release == RELEASE_NONE)
            send_request();
        /* It was hibernated while it waits, and is woken in its turn. */
        bool asleep = client.sleep != AWAKE;
        if (asleep && counted)
            ask_to_wake(&needed);
        uint32_t epoch = __atomic_load_n(&client.epoch, __ATOMIC_ACQUIRE);
        gs_mutex_unlock(&client.lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        if (asleep && !counted)
            gs_hibernate_needs(&needed);
        else
            futex_wait(&client.epoch, epoch, asleep ? &second : NULL);
        counted = asleep;
        gs_mutex_lock(&client.lock);
    }
    client.unserved = client.unserved && result != CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && gate_state() == GS_GATE_HELD) {
        open_for_submissions();
        client.quiet_since = gs_now_ns();
        client.quiet_draining = false;
        send_burst(GPUSHARE_PHASE_BEGIN, GPUSHARE_CAUSE_NONE);
        if (is_watched() || gs_pace_metered())
            gs_helper_call();
    }
    client.waiters--;
    for (link = &client.first_waiter; *link != &self;)
        link = &(*link)->next;
    *link = self.next;
    if (client.step)
        wake_waiters(); /* another is the first now */
    gs_mutex_unlock(&client.lock);
    result = gs_awake_resume(paused, result);
    if (result != CUDA_SUCCESS && *entered) {
        gs_gate_leave_shut();
        *entered = false;
    }
    return result;
}

static CUresult gs_client_pace(struct gs_submission *submission)
{
    uint64_t since = gs_now_ns(), patience;
    if (gs_pace_admit(submission, since, &patience) || (gs_meter_look() && gs_pace_admit(submission, since, &patience)))
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    gs_mutex_lock(&client.lock);
    uint64_t cancels = client.cancels;
    client.paced++;
    while (gate_state() == GS_GATE_PACED && !gs_pace_admit(submission, since, &patience)) {
        if (client.cancels != cancels) {
            client.wait_was_cancelled = true;
            result = GS_ERROR_CANCELLED;
            break;
        }
        uint32_t epoch = __atomic_load_n(&client.epoch, __ATOMIC_ACQUIRE);
        if (!watching)
            gs_helper_call(); /* it looks at what is in flight where this thread must not */
        gs_mutex_unlock(&client.lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        if (gs_meter_in_flight() != 0 && patience > shortest_look)
            patience = shortest_look;
        struct timespec timeout = {.tv_sec = (time_t)(patience / GS_SECOND), .tv_nsec = (long)(patience % GS_SECOND)};
        futex_wait(&client.epoch, epoch, &timeout);
        gs_meter_look();
        gs_mutex_lock(&client.lock);
    }
    client.paced--;
    gs_mutex_unlock(&client.lock);
    return result;
}

static void give_up_locked(enum gpushare_cause cause)
{
    bool begins = client.release == RELEASE_NONE;
    /* Under way for another reason, it learns that its captures cannot go on as before. */
    bool changes = !begins && client.release != RELEASE_DRAIN && lacks_memory(cause) && !client.lacks_room;
    client.shortages += lacks_memory(cause);
    if (!client.leased || !(begins || changes))
        return;
    gs_gate_shut();
    if (begins)
        client.release_since = gs_now_ns();
    if (client.paced != 0)
        wake_waiters(); /* who waits outside the gate waits for the next lease now */
    client.release = RELEASE_INSIDE;
    client.release_cause = cause;
    client.lacks_room = lacks_memory(cause);
    client.release_polls = 0;
    /* Else a thread that is slow to wake up would never come in, if each lease is wanted back at once. */
    client.step = begins && client.unserved && client.waiters != 0 && !lacks_memory(cause);
    client.ended_by_quiet = client.ended_by_quiet && cause == GPUSHARE_CAUSE_REVOKE;
}

static void gs_client_give_up_lease(enum gpushare_cause cause)
{
    gs_mutex_lock(&client.lock);
    give_up_locked(cause);
    gs_mutex_unlock(&client.lock);
    gs_helper_call();
}

static uint64_t gs_client_cancels(void)
{
    gs_mutex_lock(&client.lock);
    uint64_t cancels = client.cancels;
    gs_mutex_unlock(&client.lock);
    return cancels;
}

static CUresult gs_client_grow(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                               struct gpushare_grown *answer)
{
    struct pending_growth pending = {.request = {.least = *least, .most = most}};
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    gs_mutex_lock(&client.lock);
    pending.request.serial = ++client.serial;
    pending.request.oversubscribe = gs_memory_oversubscribes();
    pending.request.urgent = urgent || gs_capture_open();
    pending.next = client.growths;
    client.growths = &pending;
    send_frame(GPUSHARE_GROW, &pending.request, sizeof(pending.request));
    look_for_scheduler_at_once();
    while (!pending.answered) {
        if (client.cancels != cancels) {
            client.wait_was_cancelled = true;
            result = GS_ERROR_CANCELLED;
            break;
        }
        uint32_t epoch = __atomic_load_n(&client.epoch, __ATOMIC_ACQUIRE);
        gs_mutex_unlock(&client.lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        futex_wait(&client.epoch, epoch, NULL);
        gs_mutex_lock(&client.lock);
    }
    struct pending_growth **link = &client.growths;
    while (*link != &pending)
        link = &(*link)->next;
    *link = pending.next;
    gs_mutex_unlock(&client.lock);
    *answer = pending.answer;
    return result;
}

static enum gs_reach gs_client_reach(bool promised, struct gs_slot **entered)
{
    enum gs_reach reach = GS_REACH_NONE;
    gs_mutex_lock(&client.lock);
    if (client.leased && gate_state() == GS_GATE_SHUT) {
        bool room = promised || !client.lacks_room;
        reach = !room ? GS_REACH_LATER : gs_gate_enter_shut_leased(entered) ? GS_REACH_NOW : GS_REACH_NONE;
    }
    gs_mutex_unlock(&client.lock);
    return reach;
}

static bool gs_client_await_released(uint64_t patience)
{
    uint64_t end = gs_now_ns() + patience, now;
    gs_mutex_lock(&client.lock);
    uint64_t cancels = client.cancels;
    client.drainers++;
    while (client.leased && gate_state() == GS_GATE_SHUT && client.cancels == cancels && (now = gs_now_ns()) < end) {
        struct timespec timeout = {.tv_sec = (time_t)((end - now) / GS_SECOND),
                                   .tv_nsec = (long)((end - now) % GS_SECOND)};
        uint32_t epoch = __atomic_load_n(&client.epoch, __ATOMIC_ACQUIRE);
        gs_mutex_unlock(&client.lock);
        futex_wait(&client.epoch, epoch, &timeout);
        gs_mutex_lock(&client.lock);
    }
    client.drainers--;
    bool over = !client.leased || gate_state() != GS_GATE_SHUT;
    gs_mutex_unlock(&client.lock);
    return over;
}

/* Waits until the second gate is open, or for `patience` (ns). Ends as gs_client_acquire does. */
static CUresult await_awake(uint64_t patience)
{
    CUresult result = CUDA_SUCCESS;
    bool watching = false;
    struct gpushare_usage needed;
    gs_hibernate_needs(&needed);
    uint64_t end = patience == UINT64_MAX ? patience : gs_now_ns() + patience;
    gs_mutex_lock(&client.lock);
    uint64_t cancels = client.cancels, failures = client.wake_failures;
    client.sleepers++;
    while (__atomic_load_n(&gs_awake_shut, __ATOMIC_RELAXED)) {
        uint64_t now = gs_now_ns();
        if (client.ended)
            result = CUDA_ERROR_DEINITIALIZED;
        else if (client.cancels != cancels)
            result = GS_ERROR_CANCELLED;
        else if (client.wake_failures != failures)
            result = client.wake_failure;
        else if (now >= end)
            result = CUDA_ERROR_TIMEOUT;
        if (result != CUDA_SUCCESS)
            break;
        ask_to_wake(&needed);
        uint64_t pause = client.wake_asked || client.ask_at <= now ? GS_SECOND : client.ask_at - now;
        if (end - now < pause)
            pause = end - now;
        uint32_t epoch = __atomic_load_n(&client.epoch, __ATOMIC_ACQUIRE);
        gs_mutex_unlock(&client.lock);
        if (!watching) {
            gs_interrupt_watch();
            watching = true;
        }
        struct timespec timeout = {.tv_sec = (time_t)(pause / GS_SECOND), .tv_nsec = (long)(pause % GS_SECOND)};
        futex_wait(&client.epoch, epoch, &timeout);
        gs_mutex_lock(&client.lock);
    }
    client.wait_was_cancelled = client.wait_was_cancelled || result == GS_ERROR_CANCELLED;
    client.sleepers--;
    gs_mutex_unlock(&client.lock);
    return result;
}

static CUresult gs_client_await_awake(void)
{
    return await_awake(UINT64_MAX);
}

/* What the driver does when a process ends, it cannot do for one that is checkpointed. */
static void be_awake_at_exit(void)
{
    gs_mutex_lock(&client.lock);
    client.ending = true;
    bool asleep = client.sleep != AWAKE;
    client.ask_at = 0;
    client.alone_at = 0;
    gs_mutex_unlock(&client.lock);
    if (!asleep || await_awake(exit_patience) == CUDA_SUCCESS)
        return;
    gs_mutex_lock(&client.lock);
    client.ended = client.sleep != AWAKE;
    wake_waiters();
    gs_mutex_unlock(&client.lock);
}

static void gs_client_report_usage(const struct gpushare_usage *usage)
{
    gs_mutex_lock(&client.lock);
    bool first = client.usage_count == 0;
    hold_usage(usage);
    /* What the helper states, the scheduler may be waiting for. */
    if (is_helper || gs_now_ns() >= client.usage_at)
        send_usages();
    else if (first)
        gs_helper_call();
    gs_mutex_unlock(&client.lock);
}

/* The burst is over, the lease stays: the next submission opens the gate again by itself. */
static void end_burst_locked(enum gpushare_cause cause)
{
    if (!is_open() || client.release != RELEASE_NONE)
        return;
    set_gate(GS_GATE_HELD);
    client.ended_by_quiet = cause == GPUSHARE_CAUSE_QUIET;
    send_burst(GPUSHARE_PHASE_END, cause);
}

void gs_client_cell(enum gpushare_phase phase, const char *msg_id)
{
    if (phase == GPUSHARE_PHASE_BEGIN)
        gs_interrupt_watch();
    else
        gs_interrupt_unwatch();
    if (!gs_session_attached())
        return;
    struct gpushare_cell cell = {.at_ns = gs_now_ns(), .phase = phase};
    if (msg_id != NULL)
        snprintf(cell.msg_id, sizeof(cell.msg_id), "%s", msg_id);
    struct gs_slot *called;
    if (phase == GPUSHARE_PHASE_END && gs_awake_try_enter(&called)) {
        gs_meter_look();
        gs_awake_leave(called);
        send_meters();
    }
    gs_mutex_lock(&client.lock);
    if (phase == GPUSHARE_PHASE_END)
        end_burst_locked(GPUSHARE_CAUSE_CELL);
    send_frame(GPUSHARE_CELL, &cell, sizeof(cell));
    gs_mutex_unlock(&client.lock);
}

bool gs_client_refused(void)
{
    return gs_session_attached() && __atomic_load_n(&client.refused, __ATOMIC_RELAXED);
}

bool gs_client_take_interrupt(void)
{
    gs_mutex_lock(&client.lock);
    bool taken = client.wait_was_cancelled;
    client.wait_was_cancelled = false;
    gs_mutex_unlock(&client.lock);
    return taken;
}

const char *gs_client_group(void)
{
    return client.hello.group;
}

static bool gs_client_leased(void)
{
    gs_mutex_lock(&client.lock);
    bool leased = client.leased;
    gs_mutex_unlock(&client.lock);
    return leased;
}

/* --- The helper: messages --- */

static void cancel_waits(void)
{
    gs_mutex_lock(&client.lock);
    client.cancels++;
    client.requested = false;
    client.wake_asked = false; /* the scheduler may have given the wait up, too: the next call asks again */
    wake_waiters();
    gs_mutex_unlock(&client.lock);
}

static void on_grown(const struct gpushare_grown *grown)
{
    bool found = false;
    gs_mutex_lock(&client.lock);
    for (struct pending_growth *growth = client.growths; growth != NULL; growth = growth->next) {
        if (growth->request.serial != grown->serial)
            continue;
        growth->answer = *grown;
        growth->answered = true;
        found = true;
    }
    /* Shut before the caller hands out addresses that have no memory behind them, and before REVOKE, which may follow
       at once, gives the release another cause. */
    if (found && grown->status == GPUSHARE_GROWTH_SWAPPED)
        give_up_locked(GPUSHARE_CAUSE_GROWTH);
    wake_waiters();
    gs_mutex_unlock(&client.lock);
    if (!found)
        gs_devices_report(); /* a wait that was cancelled: give the promise back */
}

static void on_contended(const struct gpushare_contended *contended)
{
    gs_mutex_lock(&client.lock);
    bool watched = is_watched();
    gs_session_set_contended(contended->waiting);
    client.beside = contended->beside;
    if (!watched && is_watched()) {
        client.quiet_passes = gs_gate_passes();
        client.quiet_since = gs_now_ns();
        client.quiet_draining = false;
    }
    gs_mutex_unlock(&client.lock);
}

static void set_pace(const struct gpushare_pace *pace)
{
    gs_mutex_lock(&client.lock);
    gs_pace_set(pace);
    if (is_open())
        open_for_submissions();
    if (client.paced != 0)
        wake_waiters();
    gs_mutex_unlock(&client.lock);
}

/* Everything is resident: lets submissions in, or keeps the lease idle where the one who asked has given up. */
static void open_gate(void *lease)
{
    gs_mutex_lock(&client.lock);
    client.lease = *(const uint64_t *)lease;
    client.leased = true;
    client.requested = false;
    client.quiet_passes = gs_gate_passes();
    client.quiet_since = gs_now_ns();
    client.quiet_draining = false;
    client.unserved = client.waiters != 0;
    if (client.waiters != 0) {
        open_for_submissions();
        wake_waiters();
    } else {
        set_gate(GS_GATE_HELD);
        send_burst(GPUSHARE_PHASE_END, GPUSHARE_CAUSE_QUIET);
    }
    gs_mutex_unlock(&client.lock);
}

static bool is_awake(void)
{
    gs_mutex_lock(&client.lock);
    bool awake = client.sleep == AWAKE;
    gs_mutex_unlock(&client.lock);
    return awake;
}

/* Pages are locked in a context: before there is one, there is nothing to move either. */
static void prepare_if_possible(void)
{
    CUcontext context = client.prepare_waits && is_awake() ? gs_context_any() : NULL;
    if (context == NULL)
        return;
    client.prepare_waits = false;
    gs_host_prepare(client.prepare, context);
}

static void on_prepare(const struct gpushare_prepare *prepare)
{
    client.prepare = prepare->bytes;
    client.prepare_waits = true;
    prepare_if_possible();
}

/* Ends the waits for a lease that are under way. */
static void fail_waiters_locked(CUresult failure)
{
    client.failures++;
    client.failure = failure;
    wake_waiters();
}

static bool lacks_descriptors(void)
{
    int copy = fcntl(gs_helper_calls(), F_DUPFD_CLOEXEC, 0);
    if (copy >= 0)
        close(copy);
    return copy < 0 && errno == EMFILE;
}

/* Why the restore failed; also whether it is one too many of those that did, one after the other. */
static CUresult count_failed_restore(const struct gpushare_moved *moved, unsigned devices, bool *last)
{
    CUresult failure = CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t resident = 0;
    for (unsigned i = 0; i < devices; i++) {
        resident += moved[i].usage.resident;
        if (moved[i].error != CUDA_SUCCESS)
            failure = (CUresult)moved[i].error;
    }
    if (client.failed_restores == 0 || resident > client.most_restored) {
        client.failed_restores = 0;
        client.most_restored = resident;
    }
    bool may_pass = failure == CUDA_ERROR_OUT_OF_MEMORY && !lacks_descriptors();
    *last = ++client.failed_restores >= (may_pass ? MOST_RESTORES_WITHOUT_MEMORY : MOST_FAILED_RESTORES);
    return failure;
}

/* Nothing is lost: what has not come in stays in host memory, and the next call asks for a lease again. */
static void give_restore_up_locked(CUresult failure)
{
    const char *name = NULL;
    if (GS_REAL(cuGetErrorName)(failure, &name) != CUDA_SUCCESS || name == NULL)
        name = "CUDA error";
    gs_say(
        "this process's data could not be moved back to the GPU in %u attempts (%s, %d)%s; the CUDA calls that waited "
        "for it fail. Nothing is lost: the data stays in host memory, and the next call tries again",
        client.failed_restores, name, (int)failure,
        lacks_descriptors() ? ", because the process has no file descriptors left (`ulimit -n`)" : "");
    client.failed_restores = 0;
    fail_waiters_locked(failure);
}

static void on_grant(const struct gpushare_lease *grant)
{
    uint64_t lease = grant->lease;
    gs_mutex_lock(&client.lock);
    bool stale = client.leased, asleep = client.sleep != AWAKE;
    if (asleep)
        send_released(lease, GPUSHARE_CAUSE_FAILED); /* nobody has asked for it */
    gs_mutex_unlock(&client.lock);
    if (stale || asleep)
        return;
    prepare_if_possible();
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    client.move = grant->filling ? MOVE_IN_FILLING : MOVE_IN;
    client.move_lease = lease;
    enum gs_restored restored = gs_mover_restore(moved, &devices, open_gate, &lease);
    client.move = NO_MOVE;
    bool failed = restored == GS_RESTORE_FAILED, last = false;
    CUresult failure = failed ? count_failed_restore(moved, devices, &last) : CUDA_SUCCESS;
    if (restored == GS_RESTORED)
        client.failed_restores = 0;
    gs_mutex_lock(&client.lock);
    /* If no call is waiting any more, there is nothing to try again for. */
    last = failed && (last || client.waiters == 0);
    for (unsigned i = 0; i < devices; i++) {
        moved[i].serial = lease;
        if (last)
            moved[i].status = GPUSHARE_MOVE_PARTIAL; /* a failed one, the scheduler has tried again */
        send_frame(GPUSHARE_RESTORED, &moved[i], sizeof(moved[i]));
    }
    if (restored == GS_RESTORE_ENDED) {
        send_released(lease, GPUSHARE_CAUSE_FAILED);
    } else if (last) {
        if (client.waiters != 0)
            give_restore_up_locked(failure);
        client.failed_restores = 0;
        send_last_released(lease, GPUSHARE_CAUSE_RELEASE);
    } else if (failed) {
        client.requested = client.socket >= 0; /* the scheduler queues us again */
    } else if (client.revoked == lease) {
        give_up_locked(GPUSHARE_CAUSE_REVOKE);
    }
    gs_mutex_unlock(&client.lock);
}

static void on_revoke(const struct gpushare_lease *revoke)
{
    client.revoked = revoke->lease;
    gs_mutex_lock(&client.lock);
    if (client.lease == revoke->lease)
        give_up_locked(GPUSHARE_CAUSE_REVOKE);
    gs_mutex_unlock(&client.lock);
}

static void let_one_submit(void *lease)
{
    gs_mutex_lock(&client.lock);
    client.step = client.waiters != 0;
    if (client.step) {
        if (!client.leased)
            client.release_since = gs_now_ns();
        client.lease = *(const uint64_t *)lease;
        client.leased = true;
        client.release = RELEASE_INSIDE;
        client.release_cause = GPUSHARE_CAUSE_REVOKE;
        client.lacks_room = false;
        client.release_polls = 0;
        wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
}

/*
 * The group's lease is given back, and what still runs of it may wait for what this process has yet to submit. Its
 * memory stays until all have given the lease back, so a submission under it finds what it needs.
 */
static void on_step(const struct gpushare_lease *step)
{
    uint64_t lease = step->lease;
    gs_mutex_lock(&client.lock);
    bool given_back = !client.leased && step->filling;
    bool drains =
        client.leased && client.lease == lease && (client.release == RELEASE_INSIDE || client.release == RELEASE_DRAIN);
    bool waits = client.waiters != 0;
    gs_mutex_unlock(&client.lock);
    if (!given_back && !drains)
        return;
    if (waits) {
        struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
        unsigned devices;
        /* What was allocated while the gate was shut has no memory yet. */
        client.move = MOVE_IN;
        gs_mover_restore(moved, &devices, let_one_submit, &lease);
        client.move = NO_MOVE;
        gs_devices_report();
    }
    gs_mutex_lock(&client.lock);
    if (!client.leased) /* nobody waits, or there was no room for what it lacks */
        send_released(lease, GPUSHARE_CAUSE_REVOKE);
    gs_mutex_unlock(&client.lock);
}

/* May come before its grant is looked at, which waits for the end of a move. */
static void on_room(const struct gpushare_room *room)
{
    if (client.room_count != 0 && client.rooms[0].lease != room->lease)
        client.room_count = 0;
    unsigned i = 0;
    while (i < client.room_count && memcmp(client.rooms[i].gpu, room->gpu, sizeof(room->gpu)) != 0)
        i++;
    if (i == GPUSHARE_MAX_GPUS)
        return;
    if (room->last)
        gs_device_set_limit(room->gpu, room->resident);
    client.rooms[i] = *room;
    if (i == client.room_count)
        client.room_count++;
}

static uint64_t gs_client_room(const uint8_t gpu[16], bool *last)
{
    *last = client.move != MOVE_IN_FILLING;
    if (*last)
        return gs_device_limit(gpu);
    for (unsigned i = 0; i < client.room_count; i++) {
        const struct gpushare_room *room = &client.rooms[i];
        if (room->lease != client.move_lease || memcmp(room->gpu, gpu, sizeof(room->gpu)) != 0)
            continue;
        *last = room->last || room->resident == UINT64_MAX;
        return room->resident;
    }
    return 0;
}

static void gs_client_moved(const struct gpushare_moved *moved)
{
    gs_mutex_lock(&client.lock);
    send_frame(GPUSHARE_MOVING, moved, sizeof(*moved));
    gs_mutex_unlock(&client.lock);
}

static void on_evict(const struct gpushare_evict *evict)
{
    struct gpushare_moved moved = {.serial = evict->serial};
    gs_mutex_lock(&client.lock);
    bool stays = client.leased || client.sleep != AWAKE;
    gs_mutex_unlock(&client.lock);
    client.move = MOVE_OUT;
    gs_mover_evict(evict->gpu, stays ? 0 : evict->bytes, &moved);
    client.move = NO_MOVE;
    gs_mutex_lock(&client.lock);
    send_frame(GPUSHARE_EVICTED, &moved, sizeof(moved));
    gs_mutex_unlock(&client.lock);
}

static void on_end_burst(void)
{
    gs_mutex_lock(&client.lock);
    client.end_check_at = gs_now_ns() + end_check_delay;
    client.end_check_passes = gs_gate_passes();
    client.end_check_draining = false;
    gs_mutex_unlock(&client.lock);
}

/* --- The helper: being parked --- */

static void open_second_gate_locked(void)
{
    client.sleep = AWAKE;
    client.wake_asked = false;
    client.wake_serial = client.ask_at = 0;
    gs_awake_open_gate();
    wake_waiters();
}

/* Something of ours is under way. Threads that wait for a lease, or to enter the driver, can wait parked. */
static bool is_busy_locked(void)
{
    return client.leased || client.paced != 0 || client.growths != NULL || client.release != RELEASE_NONE ||
           client.ending;
}

static bool is_busy(void)
{
    gs_mutex_lock(&client.lock);
    bool busy = is_busy_locked();
    gs_mutex_unlock(&client.lock);
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

/* The second gate is shut: waits until nothing of this process is in the driver. */
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

static void on_park(const struct gpushare_park *order)
{
    struct gpushare_parked parked = {.serial = order->serial};
    parked.status = gs_capture_open() ? GPUSHARE_PARKING_CAPTURE : GPUSHARE_PARKING_BUSY;
    gs_hibernate_needs(&parked.needs);
    /* Of one that is not awake it is known since it was parked. */
    gs_devices_see(&parked.seen);
    if (is_awake() && !is_busy()) {
        gs_mutex_lock(&client.lock);
        gs_awake_shut_gate();
        gs_mutex_unlock(&client.lock);
        parked.status = park(&parked.needs);
    }
    gs_mutex_lock(&client.lock);
    if (client.sleep != AWAKE) {
        parked.status = GPUSHARE_PARKING_DONE;
    } else if (parked.status == GPUSHARE_PARKING_DONE && !is_busy_locked()) {
        client.sleep = PARKED;
        client.alone_gap = shortest_wake_retry;
        client.alone_at = 0;
        client.alone_said = false;
    } else {
        if (parked.status == GPUSHARE_PARKING_DONE)
            parked.status = GPUSHARE_PARKING_BUSY;
        open_second_gate_locked();
    }
    client.park = order->serial;
    /* First: the scheduler may not want a process hibernated that somebody waits for. */
    if (client.sleep != AWAKE && client.sleepers != 0)
        ask_to_wake(&parked.needs);
    send_frame(GPUSHARE_PARKED, &parked, sizeof(parked));
    if (client.sleep != AWAKE && client.waiters != 0)
        wake_waiters();
    gs_mutex_unlock(&client.lock);
}

static void on_hibernated(const struct gpushare_hibernated *hibernated)
{
    gs_mutex_lock(&client.lock);
    if (client.sleep == PARKED && hibernated->serial == client.park) {
        if (hibernated->done) {
            client.sleep = HIBERNATED;
            gs_hibernate_took(hibernated->context);
        } else {
            open_second_gate_locked();
        }
    }
    gs_mutex_unlock(&client.lock);
}

/* The driver may be called again: first by this thread, which sees to what the checkpoint may have changed. */
static void be_awake(const uint8_t *from, const uint8_t *to)
{
    uint8_t left[16], found[16];
    /* The scheduler that had it moved may have ended before it said so. */
    bool untold = from == NULL && gs_device_find_moved(left, found);
    gs_hibernate_restored(untold ? left : from, untold ? found : to);
    if (untold || from != NULL)
        gs_placement_moved(untold ? left : from, untold ? found : to);
    gs_mutex_lock(&client.lock);
    open_second_gate_locked();
    /* The one that is there has it on the other GPU: it is told by another HELLO. */
    if (untold && client.socket >= 0)
        shutdown(client.socket, SHUT_RDWR);
    gs_mutex_unlock(&client.lock);
    prepare_if_possible();
    gs_devices_report();
}

static void on_awake(const struct gpushare_awake *awake)
{
    gs_mutex_lock(&client.lock);
    /* That it is awake is true whoever asked; it is told no second time where it is now. */
    bool woken = client.sleep != AWAKE && awake->status == 0;
    bool failed = client.sleep != AWAKE && !woken && awake->serial != 0 && awake->serial == client.wake_serial;
    if (failed) {
        if (client.sleepers != 0 || client.waiters != 0)
            gs_say("%.*s", (int)sizeof(awake->text), awake->text);
        client.wake_failures++;
        client.wake_failure = (CUresult)awake->status;
        client.wake_asked = client.requested = false;
        client.ask_at = gs_now_ns() + GS_SECOND;
        wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
    if (woken)
        be_awake(awake->moved ? awake->from : NULL, awake->to);
}

/* No scheduler wakes us. */
static void wake_alone(void)
{
    char text[256];
    enum gs_hibernator state = gs_hibernator_run(text, sizeof(text));
    uint64_t now = gs_now_ns();
    if (client.alone_since == 0)
        client.alone_since = now;
    if (state == GS_HIBERNATOR_RUNS && now - client.alone_since < longest_wake)
        return;
    if (state == GS_HIBERNATOR_RUNS)
        snprintf(text, sizeof(text), "the driver does not answer");
    client.alone_since = 0;
    if (state == GS_HIBERNATOR_DONE) {
        gs_debug("woken without a scheduler");
        be_awake(NULL, NULL);
        return;
    }
    gs_mutex_lock(&client.lock);
    client.alone_at = now + client.alone_gap;
    gs_mutex_unlock(&client.lock);
    client.alone_gap = client.alone_gap * 2 < longest_wake_retry ? client.alone_gap * 2 : longest_wake_retry;
    if (client.alone_said)
        return;
    client.alone_said = true;
    if (client.refused)
        gs_say("this process is hibernated, cannot wake up by itself (%s), and the scheduler on %s refused it: %s. "
               "Nothing is lost. It keeps trying",
               text, client.path, client.refusal);
    else
        gs_say(
            "no scheduler answers on %s, and this process, which is hibernated, cannot be woken without one (%s); "
            "nothing is lost: it goes on when the Jupyter server or `gpushare scheduler` is back, and tries again by "
            "itself",
            client.path, text);
}

/* Bytes that the body of a type has, or -1 for a type that a scheduler does not send. */
static int body_size(uint16_t type)
{
    switch (type) {
    case GPUSHARE_WELCOME:
        return sizeof(struct gpushare_welcome);
    case GPUSHARE_REFUSED:
        return sizeof(struct gpushare_refused);
    case GPUSHARE_GRANT:
    case GPUSHARE_REVOKE:
    case GPUSHARE_STEP:
        return sizeof(struct gpushare_lease);
    case GPUSHARE_EVICT:
        return sizeof(struct gpushare_evict);
    case GPUSHARE_GROWN:
        return sizeof(struct gpushare_grown);
    case GPUSHARE_CANCEL:
        return 0;
    case GPUSHARE_CONTENDED:
        return sizeof(struct gpushare_contended);
    case GPUSHARE_END_BURST:
        return sizeof(struct gpushare_burst);
    case GPUSHARE_ROOM:
        return sizeof(struct gpushare_room);
    case GPUSHARE_PREPARE:
        return sizeof(struct gpushare_prepare);
    case GPUSHARE_PACE:
        return sizeof(struct gpushare_pace);
    case GPUSHARE_PARK:
        return sizeof(struct gpushare_park);
    case GPUSHARE_HIBERNATED:
        return sizeof(struct gpushare_hibernated);
    case GPUSHARE_AWAKE:
        return sizeof(struct gpushare_awake);
    default:
        return -1;
    }
}

/* All but what moves memory itself, or must not meet a move. */
static bool may_interrupt_a_move(uint16_t type)
{
    return type != GPUSHARE_GRANT && type != GPUSHARE_EVICT && type != GPUSHARE_STEP && type != GPUSHARE_PARK;
}

static void dispatch(uint16_t type, const void *body)
{
    switch (type) {
    case GPUSHARE_GRANT:
        on_grant(body);
        break;
    case GPUSHARE_REVOKE:
        on_revoke(body);
        break;
    case GPUSHARE_STEP:
        on_step(body);
        break;
    case GPUSHARE_EVICT:
        on_evict(body);
        break;
    case GPUSHARE_GROWN:
        on_grown(body);
        break;
    case GPUSHARE_CANCEL:
        cancel_waits();
        break;
    case GPUSHARE_CONTENDED:
        on_contended(body);
        break;
    case GPUSHARE_END_BURST:
        on_end_burst();
        break;
    case GPUSHARE_ROOM:
        on_room(body);
        break;
    case GPUSHARE_PREPARE:
        on_prepare(body);
        break;
    case GPUSHARE_PACE:
        set_pace(body);
        break;
    case GPUSHARE_PARK:
        on_park(body);
        break;
    case GPUSHARE_HIBERNATED:
        on_hibernated(body);
        break;
    case GPUSHARE_AWAKE:
        on_awake(body);
        break;
    default: /* WELCOME and REFUSED are read by greet() */
        break;
    }
}

/* The scheduler is gone (or talks nonsense): a lease that is held stays, waiters go on waiting, nobody is paced. */
static void lose_connection(void)
{
    set_pace(NULL);
    gs_mutex_lock(&client.lock);
    if (client.socket >= 0) {
        close(client.socket);
        client.socket = -1;
        client.broken = false;
        gs_outbox_clear(&client.outbox);
        client.usage_count = 0;
        uint64_t now = gs_now_ns();
        if (now - client.attached_at >= stable_after)
            client.away_since = now;
        client.retry_gap = shortest_retry;
        client.retry_at = now + client.retry_gap;
        gs_session_set_contended(0);
        client.beside = 0;
        client.requested = false;
        client.wake_asked = false;
        client.deferred_count = 0;
        client.revoked = 0;
        client.room_count = 0;
        gs_inbox_clear(&client.inbox);
        gs_debug("the scheduler is away");
    }
    gs_mutex_unlock(&client.lock);
}

static void take_deferred(void)
{
    while (client.deferred_count != 0) {
        struct deferred_frame first = client.deferred[0];
        client.deferred_count--;
        memmove(client.deferred, client.deferred + 1, client.deferred_count * sizeof(first));
        dispatch(first.header.type, first.body);
    }
}

/* Takes frames out of the inbox; while a move is under way (`moving`), those that can wait are put aside in order. */
static void take_frames(bool moving)
{
    struct gpushare_header header;
    const void *body;
    while (!moving || client.deferred_count < MOST_DEFERRED) {
        enum gs_frame frame = gs_next_frame(&client.inbox, &header, &body);
        if (frame == GS_FRAME_NONE)
            return;
        if (frame == GS_FRAME_BAD || body_size(header.type) != (int)(header.length - sizeof(header))) {
            gs_say("the scheduler sent a malformed message (type %u, %u bytes); connecting again", header.type,
                   header.length);
            lose_connection();
            return;
        }
        if (moving && !may_interrupt_a_move(header.type)) {
            struct deferred_frame *slot = &client.deferred[client.deferred_count++];
            slot->header = header;
            memcpy(slot->body, body, header.length - sizeof(header));
            continue;
        }
        /* A handler may move memory and so read more frames into the inbox: give it a copy. */
        char copy[512];
        memcpy(copy, body, header.length - sizeof(header));
        dispatch(header.type, copy);
        if (!moving)
            take_deferred();
    }
}

/* Until a message comes, there is room for one of ours, somebody calls, or the time is over. */
static bool sleep_until_called(uint64_t nanoseconds)
{
    struct timespec timeout = {.tv_sec = (time_t)(nanoseconds / GS_SECOND), .tv_nsec = (long)(nanoseconds % GS_SECOND)};
    gs_mutex_lock(&client.lock);
    short room = gs_outbox_empty(&client.outbox) ? 0 : POLLOUT;
    gs_mutex_unlock(&client.lock);
    struct pollfd watched[2] = {{.fd = gs_helper_calls(), .events = POLLIN},
                                {.fd = client.socket, .events = (short)(POLLIN | room)}};
    if (ppoll(watched, 2, &timeout, NULL) <= 0)
        return false;
    if (watched[0].revents != 0)
        gs_helper_take_calls();
    if (watched[1].revents & POLLOUT)
        flush_outbox();
    return (watched[1].revents & ~POLLOUT) != 0;
}

static void take_signal(void)
{
    if (gs_interrupt_take())
        cancel_waits();
}

static bool gs_client_while_moving(uint64_t patience)
{
    if (patience != 0)
        sleep_until_called(patience);
    take_signal();
    send_due_usages();
    flush_outbox();
    if (client.socket >= 0 && gs_receive(client.socket, &client.inbox))
        take_frames(true);
    else if (client.socket >= 0)
        lose_connection();
    if (client.move == MOVE_IN || client.move == MOVE_BACK)
        return true;
    return client.socket >= 0 && !(client.move == MOVE_IN_FILLING && client.revoked == client.move_lease);
}

static bool gs_client_grant_waits(void)
{
    for (unsigned i = 0; i < client.deferred_count; i++)
        if (client.deferred[i].header.type == GPUSHARE_GRANT)
            return true;
    return false;
}

/* --- The helper: attaching --- */

enum greeting { GREETED, UNREACHABLE, REFUSED };

static void set_refused(bool refused)
{
    __atomic_store_n(&client.refused, refused, __ATOMIC_RELAXED);
}

static void note_refusal(uint32_t code, const char *text, size_t size)
{
    set_refused(true);
    client.refusal_code = code;
    snprintf(client.refusal, sizeof(client.refusal), "%.*s", (int)size, text);
}

/* Our ticket is not there yet, or is not known yet. */
static bool awaits_ticket(void)
{
    return client.refusal_code == EACCES && (client.ticket == GS_TICKET_MISSING || client.ticket == GS_TICKET_SENT);
}

static enum greeting await_welcome(int fd, struct gs_inbox *inbox, struct gpushare_welcome *welcome, int *problem)
{
    *problem = EPIPE;
    bool first = !(client.hello.flags & GPUSHARE_HELLO_REATTACH);
    /* In cuInit, a scheduler that is expected is not waited for. */
    bool patient = first && (client.awaiting || !client.expected);
    uint64_t deadline = gs_now_ns() + (patient ? first_greeting_patience : greeting_patience);
    for (;;) {
        uint64_t now = gs_now_ns();
        struct pollfd readable[2] = {{.fd = fd, .events = POLLIN},
                                     {.fd = client.awaiting ? gs_helper_calls() : -1, .events = POLLIN}};
        if (now >= deadline || poll(readable, 2, (int)((deadline - now) / GS_MILLISECOND) + 1) == 0) {
            *problem = ETIMEDOUT;
            return UNREACHABLE;
        }
        if (readable[1].revents != 0)
            return UNREACHABLE; /* interrupted */
        if (!gs_receive(fd, inbox))
            return UNREACHABLE;
        struct gpushare_header header;
        const void *body;
        enum gs_frame frame;
        do
            frame = gs_next_frame(inbox, &header, &body);
        while (frame == GS_FRAME_WHOLE && header.type == GPUSHARE_PLACED); /* it goes on as it was placed */
        if (frame == GS_FRAME_NONE)
            continue;
        if (frame == GS_FRAME_BAD || body_size(header.type) != (int)(header.length - sizeof(header)))
            return UNREACHABLE;
        if (header.type == GPUSHARE_REFUSED) {
            const struct gpushare_refused *refused = body;
            note_refusal(refused->code, refused->text, sizeof(refused->text));
            return REFUSED;
        }
        if (header.type != GPUSHARE_WELCOME)
            return UNREACHABLE;
        memcpy(welcome, body, sizeof(*welcome));
        return GREETED;
    }
}

static const char unusable_ticket[] = "its ticket cannot be used";

/* Connects and says HELLO with all that is held. On GREETED the connection is the client's. Error in *problem. */
static enum greeting greet(int *problem)
{
    int fd = gs_connect(client.path);
    if (fd < 0) {
        *problem = -fd;
        return UNREACHABLE;
    }
    struct {
        struct gpushare_hello hello;
        struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    } message = {.hello = client.hello};
    struct gpushare_usage needed;
    gs_hibernate_needs(&needed);
    message.hello.gpu_count = gs_devices_usages(message.usages);
    message.hello.flags |= gs_memory_oversubscribed() ? GPUSHARE_HELLO_OVERSUBSCRIBE : 0;
    gs_mutex_lock(&client.lock);
    if (client.leased) {
        message.hello.flags |= GPUSHARE_HELLO_LEASED;
        if (is_open() || client.release != RELEASE_NONE)
            message.hello.flags |= GPUSHARE_HELLO_BUSY;
        message.hello.lease = client.lease;
    }
    if (client.sleep != AWAKE) {
        for (unsigned i = 0; i < message.hello.gpu_count; i++)
            if (memcmp(message.usages[i].gpu, needed.gpu, sizeof(needed.gpu)) == 0)
                message.usages[i].context = needed.context;
        message.hello.flags |= GPUSHARE_HELLO_HIBERNATED;
        gs_devices_see(&message.hello.seen);
    }
    gs_mutex_unlock(&client.lock);
    struct gpushare_welcome welcome;
    gs_inbox_clear(&client.inbox);
    client.ticket = gs_present_ticket(fd);
    if (client.ticket == GS_TICKET_BAD) {
        close(fd);
        note_refusal(EACCES, unusable_ticket, sizeof(unusable_ticket));
        return REFUSED;
    }
    struct gs_place place;
    size_t size = client.hello.flags & GPUSHARE_HELLO_REATTACH ? gs_placement_restated(&place) : 0;
    if (size != 0)
        gs_send(fd, GPUSHARE_PLACE, &place, size);
    /* If the send fails, the scheduler may have said why before it closed. */
    gs_send(fd, GPUSHARE_HELLO, &message, sizeof(message.hello) + message.hello.gpu_count * sizeof(message.usages[0]));
    enum greeting greeting = await_welcome(fd, &client.inbox, &welcome, problem);
    if (greeting != GREETED) {
        close(fd);
        gs_inbox_clear(&client.inbox);
        return greeting;
    }
    gs_host_offer(welcome.pool ? client.inbox.descriptor : -1, welcome.slot);
    if (welcome.pool)
        client.inbox.descriptor = -1; /* it has been taken over */
    gs_meter_restart();
    gs_mutex_lock(&client.lock);
    client.socket = fd;
    set_refused(false);
    client.refusal_said = false;
    client.attached_at = gs_now_ns();
    if (!(client.hello.flags & GPUSHARE_HELLO_REATTACH))
        client.away_since = client.attached_at;
    client.hello.flags |= GPUSHARE_HELLO_REATTACH;
    client.shortest_quiet_gap = welcome.quiet_ns;
    client.quiet_gap = welcome.quiet_ns;
    client.quiet_since = gs_now_ns();
    client.quiet_passes = gs_gate_passes();
    gs_session_set_contended(welcome.contended);
    memset(client.meters, 0, sizeof(client.meters));
    gs_devices_set_headroom(welcome.headroom);
    client.wake_asked = false;
    client.stuck = 0;
    if (client.sleepers != 0 || (client.sleep != AWAKE && client.waiters != 0))
        wake_waiters(); /* who asks this one */
    for (struct pending_growth *growth = client.growths; growth != NULL; growth = growth->next)
        if (!growth->answered)
            send_frame(GPUSHARE_GROW, &growth->request, sizeof(growth->request));
    /* What was asked of nobody, by one that waits no more, was not asked of this one. */
    client.requested = false;
    if (client.waiters != 0 && !client.leased)
        send_request();
    gs_mutex_unlock(&client.lock);
    return GREETED;
}

static void try_again(uint64_t longest)
{
    client.retry_gap = client.retry_gap * 2 < longest ? client.retry_gap * 2 : longest;
    client.retry_at = gs_now_ns() + client.retry_gap;
}

static void say_refusal(void)
{
    if (client.refusal_said)
        return;
    client.refusal_said = true;
    gs_say(
        "the scheduler refused this process: %s. The process keeps its data, goes on without the scheduler, and keeps "
        "trying to connect",
        client.refusal);
}

/* Another scheduler may come, a ticket may be renewed, and a quota be raised. */
static void try_again_after_refusal(void)
{
    bool patient = awaits_ticket() && gs_now_ns() - client.away_since < ticket_patience;
    gs_mutex_lock(&client.lock);
    bool awaited = client.waiters != 0 || client.growths != NULL || client.sleepers != 0;
    gs_mutex_unlock(&client.lock);
    try_again(patient || awaited              ? longest_retry
              : client.refusal_code == EPROTO ? longest_retry_of_foreign
                                              : longest_retry_of_refused);
    if (!patient)
        say_refusal();
}

static void reconnect(void)
{
    int problem;
    switch (greet(&problem)) {
    case GREETED:
        gs_debug("attached to the scheduler again");
        take_frames(false); /* that came along with the welcome */
        break;
    case REFUSED:
        try_again_after_refusal();
        break;
    case UNREACHABLE:
        if (client.refused)
            client.away_since = gs_now_ns();
        set_refused(false);
        try_again(longest_retry);
        break;
    }
}

/* Who waits goes on waiting, or is told that nothing comes of it. */
static void lack_room_locked(void)
{
    if (client.refused) {
        if (client.shortage_said)
            return;
        client.shortage_said = true;
        gs_say("the GPU has no room for this process's data, and the scheduler refused the process: %s. The call waits "
               "until there is room or a scheduler accepts the process; interrupt it to stop waiting. Nothing is lost",
               client.refusal);
    } else if (gs_now_ns() - client.away_since >= client.patience) {
        gs_say("no scheduler answers on %s, and there is no room on the GPU for this process's memory; nothing is "
               "lost: run the cell again when the Jupyter server or `gpushare scheduler` is back",
               client.path);
        fail_waiters_locked(CUDA_ERROR_OUT_OF_MEMORY);
    } else if (!client.shortage_said) {
        uint64_t waited = gs_now_ns() - client.away_since;
        client.shortage_said = true;
        gs_say("no scheduler answers on %s for %u s, and there is no room on the GPU for this process's memory: it "
               "waits for either, for another %u s at most",
               client.path, (unsigned)(waited / GS_SECOND), (unsigned)((client.patience - waited) / GS_SECOND));
    }
}

/* Others that wait as this process does may be served with what it has in part. */
static void give_room_back(void)
{
    struct gpushare_moved moved;
    struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    client.move = MOVE_BACK;
    for (unsigned i = gs_devices_usages(usages); i-- != 0;)
        if (usages[i].resident != 0)
            gs_mover_evict(usages[i].gpu, usages[i].resident, &moved);
    client.move = NO_MOVE;
}

/* Answers by itself what a scheduler that stays away does not. */
static void go_alone(void)
{
    gs_mutex_lock(&client.lock);
    bool must_open = client.waiters != 0 && gate_state() == GS_GATE_SHUT && client.release == RELEASE_NONE;
    for (struct pending_growth *growth = client.growths; growth != NULL; growth = growth->next) {
        if (growth->answered)
            continue;
        growth->answer.status = client.leased ? GPUSHARE_GROWTH_RESIDENT : GPUSHARE_GROWTH_SWAPPED;
        growth->answer.promised = growth->request.least.promised;
        growth->answered = true;
        wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
    if (!must_open)
        return;
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    uint64_t no_lease = 0;
    enum gs_restored restored = GS_RESTORE_ENDED;
    if (gs_memory_oversubscribed() || gs_mover_has_room()) {
        client.move = MOVE_IN;
        restored = gs_mover_restore(moved, &devices, open_gate, &no_lease);
        client.move = NO_MOVE;
    }
    bool last = false;
    CUresult failure =
        restored == GS_RESTORE_FAILED ? count_failed_restore(moved, devices, &last) : CUDA_ERROR_OUT_OF_MEMORY;
    gs_mutex_lock(&client.lock);
    bool opened = client.leased;
    if (opened)
        client.failed_restores = 0;
    else if (failure == CUDA_ERROR_OUT_OF_MEMORY)
        lack_room_locked();
    else if (last)
        give_restore_up_locked(failure);
    gs_mutex_unlock(&client.lock);
    if (!opened)
        give_room_back();
}

/* --- The helper: releasing, quiet, the loop --- */

static void finish_release(void)
{
    gs_memory_drop_failed(); /* the drain has found out which */
    gs_memory_reap();        /* nobody is to be charged for what was freed, nor is it to be moved */
    client.watch->lease_ends();
    gs_meter_look_from_helper();
    send_meters();
    gs_mutex_lock(&client.lock);
    /* A thread that gives new memory a place must be done with it: see gs_client_reach. */
    if (gs_gate_empty()) {
        client.leased = false;
        client.release = RELEASE_NONE;
        send_released(client.lease, client.release_cause);
        if (client.drainers != 0)
            wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
}

static void go_to(enum release_step step)
{
    gs_mutex_lock(&client.lock);
    client.release = step;
    gs_mutex_unlock(&client.lock);
}

static void open_until_capture_ends(void *unused)
{
    (void)unused;
    gs_mutex_lock(&client.lock);
    if (!client.lacks_room) {
        client.release = RELEASE_CAPTURE;
        open_for_submissions();
        wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
}

/* What is captured may need what the same thread submits beside it: until its end the lease is used as before. */
static void wait_for_capture(void)
{
    gs_mutex_lock(&client.lock);
    bool lacks_room = client.lacks_room;
    if (lacks_room && client.announced != client.shortages) {
        client.announced = client.shortages;
        wake_waiters();
    }
    gs_mutex_unlock(&client.lock);
    if (lacks_room)
        return;
    struct gpushare_moved moved[GPUSHARE_MAX_GPUS];
    unsigned devices;
    /* What was allocated while the gate was shut has no memory yet. */
    client.move = MOVE_IN;
    gs_mover_restore(moved, &devices, open_until_capture_ends, NULL);
    client.move = NO_MOVE;
}

/* The capture needs memory for which there is no room before it ends: an error ends it. */
static void fail_waiters(void)
{
    gs_mutex_lock(&client.lock);
    fail_waiters_locked(CUDA_ERROR_OUT_OF_MEMORY);
    gs_mutex_unlock(&client.lock);
}

static void shut_after_capture(void)
{
    gs_mutex_lock(&client.lock);
    if (client.release == RELEASE_CAPTURE) {
        gs_gate_shut();
        client.release = RELEASE_INSIDE;
    }
    gs_mutex_unlock(&client.lock);
}

/* At once, and not when the helper looks again: else a thread that captures all the time would never let go. */
void gs_client_capture_ended(void)
{
    if (!gs_session_attached() || gs_capture_open())
        return;
    shut_after_capture();
    gs_helper_call();
}

/* Once for each lease that takes its time to be given back. */
static void say_if_stuck(void)
{
    uint64_t since = client.release_since;
    if (client.stuck == client.lease || gs_now_ns() - since < stuck_after)
        return;
    struct gpushare_stuck stuck = {.lease = client.lease};
    gs_meter_running(stuck.kernel, &since);
    stuck.since_ns = since;
    client.stuck = client.lease;
    gs_mutex_lock(&client.lock);
    send_frame(GPUSHARE_STUCK, &stuck, sizeof(stuck));
    gs_mutex_unlock(&client.lock);
}

/* Waits for the threads inside, then for the GPU. An open capture postpones both: synchronising would break it. */
static void step_release(enum release_step step)
{
    bool patient = gs_now_ns() - client.release_since < client.capture_patience;
    client.release_polls++;
    gs_mutex_lock(&client.lock);
    client.step = client.step && client.waiters != 0;
    bool one_goes = client.step;
    gs_mutex_unlock(&client.lock);
    if (one_goes)
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

static void step_quiet(uint64_t now)
{
    gs_mutex_lock(&client.lock);
    uint64_t passes = gs_gate_passes();
    bool busy = passes != client.quiet_passes || !gs_gate_empty() || client.paced != 0;
    if (busy) {
        client.quiet_passes = passes;
        client.quiet_since = now;
        client.quiet_draining = false;
    }
    bool quiet = !busy && now - client.quiet_since >= client.quiet_gap && !gs_capture_open();
    bool draining = client.quiet_draining;
    client.quiet_draining = quiet;
    gs_mutex_unlock(&client.lock);
    if (!quiet)
        return;
    bool begun = draining || gs_context_begin_drain(false);
    if (begun && !gs_context_drained())
        return;
    gs_memory_reap();
    gs_meter_look_from_helper();
    send_meters();
    gs_mutex_lock(&client.lock);
    if (begun && gs_gate_passes() == passes && client.paced == 0)
        end_burst_locked(GPUSHARE_CAUSE_QUIET);
    client.quiet_draining = false;
    gs_mutex_unlock(&client.lock);
}

/* A thread that waits for what is in flight submits nothing, and yet the burst goes on: the check waits, too. */
static void step_end_check(uint64_t now)
{
    gs_mutex_lock(&client.lock);
    uint64_t passes = client.end_check_passes;
    bool open = is_open() && client.release == RELEASE_NONE;
    bool goes_on = gs_gate_passes() != passes || !gs_gate_empty() || client.paced != 0;
    bool draining = client.end_check_draining;
    client.end_check_at = 0;
    client.end_check_draining = false;
    gs_mutex_unlock(&client.lock);
    if (!open || goes_on || !(draining || gs_context_begin_drain(false)))
        return;
    bool drained = gs_context_drained();
    if (drained) {
        gs_meter_look_from_helper();
        send_meters();
    }
    gs_mutex_lock(&client.lock);
    if (!drained) {
        client.end_check_at = now + end_check_interval;
        client.end_check_draining = true;
    } else if (gs_gate_passes() == passes && client.paced == 0) {
        end_burst_locked(GPUSHARE_CAUSE_IDLE);
    }
    gs_mutex_unlock(&client.lock);
}

/* What there is to do for the helper, as of now. */
struct duties {
    enum release_step release;
    bool watch_quiet, check_end, reconnect, go_alone;
    bool wake_alone;
    bool look, report; /* at what is in flight; what was had of the GPUs */
    uint64_t patience; /* nanoseconds that it may sleep */
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

/* The driver is not to be called: all that there is to do is to see who may wake the process. */
static void look_around_parked(uint64_t now, struct duties *duties)
{
    if (client.alone_since != 0) {
        duties->wake_alone = true;
        shorten(&duties->patience, 20 * GS_MILLISECOND);
        return; /* a scheduler that comes now would wake it as well */
    }
    if (client.socket >= 0)
        return;
    duties->reconnect = now >= client.retry_at;
    shorten(&duties->patience, until(client.retry_at, now));
    if (client.sleepers == 0 && client.waiters == 0)
        return;
    uint64_t alone_at = client.alone_at;
    if (!client.ending) {
        uint64_t patience = client.sleep == PARKED ? alone_after_unfinished : alone_after;
        if (client.away_since + patience > alone_at)
            alone_at = client.away_since + patience;
    }
    duties->wake_alone = now >= alone_at;
    shorten(&duties->patience, until(alone_at, now));
}

static struct duties look_around(uint64_t now)
{
    gs_mutex_lock(&client.lock);
    bool away = client.socket < 0;
    struct duties duties = {.release = client.release, .patience = 3600 * GS_SECOND};
    if (client.sleep != AWAKE) {
        look_around_parked(now, &duties);
        gs_mutex_unlock(&client.lock);
        return duties;
    }
    if (duties.release != RELEASE_NONE) {
        /* A release is somebody's wait: look often at first, since most drains are short. */
        uint64_t pause = client.release_polls < 50    ? 0
                         : client.release_polls < 200 ? GS_MILLISECOND / 20
                                                      : GS_MILLISECOND / 2;
        shorten(&duties.patience, pause);
    } else if (is_watched() && is_open()) {
        duties.watch_quiet = true;
        shorten(&duties.patience, client.quiet_draining ? GS_MILLISECOND / 2 : client.quiet_gap / 4);
    }
    uint64_t given_back;
    if (client.paced != 0 && (gs_pace_in_flight(&given_back) != 0 || given_back != client.given_back)) {
        duties.look = true;
        shorten(&duties.patience, look_interval);
    }
    if (gs_meter_in_flight() != 0 || (is_open() && gs_pace_metered())) {
        duties.report = now >= client.meter_at;
        shorten(&duties.patience, until(client.meter_at, now));
    }
    if (client.usage_count != 0)
        shorten(&duties.patience, until(client.usage_at, now));
    if (client.end_check_at != 0) {
        duties.check_end = now >= client.end_check_at;
        shorten(&duties.patience, until(client.end_check_at, now));
    }
    if (away) {
        duties.reconnect = now >= client.retry_at;
        shorten(&duties.patience, until(client.retry_at, now));
    }
    if (away && (client.waiters != 0 || client.growths != NULL)) {
        uint64_t alone_at = client.away_since + (client.leased ? holder_alone_after : alone_after);
        duties.go_alone = now >= alone_at;
        /* Once alone, nothing more can be done until something changes; look again now and then. */
        shorten(&duties.patience, duties.go_alone ? 100 * GS_MILLISECOND : until(alone_at, now));
    }
    gs_mutex_unlock(&client.lock);
    return duties;
}

/* Who waits for work in flight is told when some of it is done, or was none. */
static void look(void)
{
    gs_meter_look_from_helper();
    gs_mutex_lock(&client.lock);
    uint64_t before = client.given_back;
    gs_pace_in_flight(&client.given_back);
    if (client.paced != 0 && client.given_back != before)
        wake_waiters();
    gs_mutex_unlock(&client.lock);
}

static void report(void)
{
    gs_mutex_lock(&client.lock);
    client.meter_at = gs_now_ns() + meter_interval;
    gs_mutex_unlock(&client.lock);
    send_meters();
}

static void wait_for_events(uint64_t nanoseconds)
{
    bool readable = sleep_until_called(nanoseconds);
    take_signal();
    if (client.socket >= 0 && readable) {
        if (gs_receive(client.socket, &client.inbox))
            take_frames(false);
        else
            lose_connection();
    }
}

static void *help(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "gpushare");
    is_helper = true;
    GS_LEAVES_CAPTURES_ALONE;
    take_frames(false); /* that came along with the welcome */
    for (;;) {
        wait_for_events(look_around(gs_now_ns()).patience);
        uint64_t now = gs_now_ns();
        struct duties duties = look_around(now);
        send_due_usages();
        if (is_awake())
            gs_memory_drop_failed();
        if (duties.release != RELEASE_NONE)
            step_release(duties.release);
        if (duties.look || duties.report)
            look();
        if (duties.report)
            report();
        if (duties.watch_quiet)
            step_quiet(now);
        if (duties.check_end)
            step_end_check(now);
        if (duties.reconnect)
            reconnect();
        if (duties.go_alone && client.socket < 0)
            go_alone();
        if (duties.wake_alone && (client.alone_since != 0 || client.socket < 0))
            wake_alone();
    }
    return NULL;
}

/* --- Starting, and forking --- */

static void in_forked_child(void)
{
    /* CUDA does not work in the child of a process that has used it. The parent's connection is not ours to keep: the
     * scheduler must see its end when the parent dies, however long the child lives. */
    if (client.socket >= 0)
        close(client.socket);
    client.socket = -1;
    gs_helper_after_fork();
    client.broken = false;
    gs_outbox_clear(&client.outbox);
    gs_mutex_after_fork(&client.lock);
    gs_mutex_after_fork(&client.start_lock);
    gs_mutex_after_fork(&client.await_lock);
    client.sleep = AWAKE;
    client.sleepers = 0;
    client.alone_since = 0;
    client.ending = client.ended = false;
    gs_awake_open_gate();
    gs_hibernate_after_fork();
    gs_gate_after_fork();
    gs_capture_after_fork();
    gs_contexts_after_fork();
    gs_pci_after_fork();
    gs_devices_after_fork();
    gs_blocks_after_fork();
    gs_lanes_after_fork();
    gs_vmm_after_fork();
    gs_reservations_after_fork();
    gs_peers_after_fork();
    gs_host_after_fork();
    gs_memory_after_fork();
    client.watch->forked();
    gs_meter_after_fork();
    gs_pace_after_fork();
    client.awaiting = false;
    gs_interrupt_expect(false);
    gs_session_after_fork(client.begun);
}

static uint64_t number_from_environment(const char *name, const char *of, uint64_t otherwise)
{
    const char *text = getenv(name);
    if (text == NULL || *text == '\0')
        return otherwise;
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || *text == '-') {
        gs_say("%s=%s is not a number of %s; it is ignored", name, text, of);
        return otherwise;
    }
    return value;
}

static bool read_environment(void)
{
    const char *disable = getenv("GPUSHARE_DISABLE");
    if (disable != NULL && strcmp(disable, "1") == 0) {
        gs_session_step_aside("GPUSHARE_DISABLE=1");
        return false;
    }
    const char *path = getenv("GPUSHARE_SOCKET");
    if (path == NULL || *path == '\0') {
        gs_session_step_aside("GPUSHARE_SOCKET is not set");
        return false;
    }
    if (strlen(path) >= sizeof(client.path)) {
        gs_say(
            "the path of the scheduler's socket has %zu bytes, and a socket's path may have %zu: %s; running without "
            "sharing. Set GPUSHARE_SOCKET to a shorter path",
            strlen(path), sizeof(client.path) - 1, path);
        gs_session_step_aside("GPUSHARE_SOCKET is too long");
        return false;
    }
    snprintf(client.path, sizeof(client.path), "%s", path);
    const char *group = getenv("GPUSHARE_GROUP");
    const char *name = getenv("GPUSHARE_NAME");
    if (group != NULL && *group != '\0')
        snprintf(client.hello.group, sizeof(client.hello.group), "%s", group);
    else
        snprintf(client.hello.group, sizeof(client.hello.group), "pid-%d", (int)getpid());
    snprintf(client.hello.name, sizeof(client.hello.name), "%s",
             name != NULL && *name != '\0' ? name : client.hello.group);
    client.hello.version = GPUSHARE_PROTOCOL_VERSION;
    client.hello.pid = getpid();
    client.hello.cap = number_from_environment("GPUSHARE_MEMORY", "bytes", 0);
    gs_session_set_cap(client.hello.cap);
    client.patience = GS_SECOND * number_from_environment("GPUSHARE_SCHEDULER_PATIENCE_S", "seconds", default_patience);
    client.capture_patience = GS_MILLISECOND * number_from_environment("GPUSHARE_CAPTURE_PATIENCE_MS", "milliseconds",
                                                                       default_capture_patience);
    return true;
}

static bool start_helper(void)
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

/* From here on, this process's memory is managed, and a thread of its own serves it. */
static void join(void)
{
    static bool at_exit;
    gs_mutex_lock(&client.lock);
    set_gate(client.leased ? GS_GATE_HELD : GS_GATE_SHUT);
    gs_mutex_unlock(&client.lock);
    gs_session_attach();
    if (start_helper()) {
        if (!at_exit)
            at_exit = atexit(be_awake_at_exit) == 0;
        return;
    }
    gs_say("no thread could be started; running without sharing");
    set_gate(GS_GATE_PLAIN);
    if (client.socket >= 0)
        close(client.socket);
    client.socket = -1;
    gs_session_step_aside("no thread could be started");
}

/* As one that had a lease when its scheduler went: it keeps its own books, and states them to the next one. */
static void go_on_alone(void)
{
    client.hello.flags |= GPUSHARE_HELLO_REATTACH;
    client.leased = true;
    client.lease = 0;
    client.away_since = gs_now_ns();
    client.retry_gap = longest_retry;
    client.retry_at = client.away_since + longest_retry;
    join();
}

/* One attempt. True: the process has joined, now or as soon as it can; else *problem says why there was no answer. */
static bool attach_once(uint64_t since, int *problem)
{
    uint64_t waited = 0;
    switch (greet(problem)) {
    case GREETED:
        join();
        return true;
    case REFUSED:
        waited = gs_now_ns() - since;
        if (awaits_ticket() && waited < first_patience + (client.ticket == GS_TICKET_MISSING ? ticket_patience : 0))
            return false;
        say_refusal();
        go_on_alone();
        return true;
    case UNREACHABLE:
        if (*problem != EACCES)
            return false;
        gs_say("the socket %s belongs to another user; running without sharing", client.path);
        gs_session_step_aside("the socket belongs to another user");
        return true;
    }
    return false;
}

/* No scheduler has ever been there: one may be about to make its folder. */
static void attach_or_step_aside(void)
{
    uint64_t since = gs_now_ns();
    for (int problem = 0; !attach_once(since, &problem); usleep(20000)) {
        /* EAGAIN: there is a scheduler, and a crowd that waits to be accepted. */
        if (gs_now_ns() - since < first_patience + (problem == EAGAIN ? first_greeting_patience : 0))
            continue;
        gs_say("no scheduler answers on %s (%s); running without sharing. `gpushare doctor` says more", client.path,
               strerror(problem));
        gs_session_step_aside("no scheduler answered");
        return;
    }
}

/* A socket's folder is there once a scheduler was, and for one that is to come. */
static bool is_expected(const char *path)
{
    char folder[sizeof(client.path)];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return true;
    slash[slash == folder] = '\0';
    return access(folder, F_OK) == 0;
}

static const struct gs_keeper keeper = {
    .acquire = gs_client_acquire, .pace = gs_client_pace, .await_awake = gs_client_await_awake};
static const struct gs_promises promises = {.grow = gs_client_grow,
                                            .cancels = gs_client_cancels,
                                            .report_usage = gs_client_report_usage,
                                            .reach = gs_client_reach,
                                            .await_released = gs_client_await_released,
                                            .give_up_lease = gs_client_give_up_lease,
                                            .leased = gs_client_leased};
static const struct gs_moves moves = {.between_pieces = gs_client_while_moving,
                                      .room = gs_client_room,
                                      .report = gs_client_moved,
                                      .grant_waits = gs_client_grant_waits};

static bool begin(const struct gs_client_watch *watch)
{
    static bool at_fork;
    const char *why = NULL;
    client.watch = watch;
    gs_keeper_set(&keeper);
    gs_promises_set(&promises);
    gs_moves_set(&moves);
    if (!read_environment())
        return false;
    if (!at_fork)
        at_fork = pthread_atfork(NULL, NULL, in_forked_child) == 0;
    gs_helper_prepare();
    gs_gate_prepare();
    if (!gs_backend_choose(&client.hello.backend, &why)) {
        gs_session_step_aside(why);
        return false;
    }
    client.expected = is_expected(client.path);
    return true;
}

void gs_client_start(const struct gs_client_watch *watch)
{
    if (gs_session_attachment() != GS_NOT_ATTACHED_YET || __atomic_load_n(&client.begun, __ATOMIC_ACQUIRE))
        return;
    gs_mutex_lock(&client.start_lock);
    int problem = 0;
    if (gs_session_attachment() == GS_NOT_ATTACHED_YET && !client.begun && begin(watch)) {
        __atomic_store_n(&client.begun, true, __ATOMIC_RELEASE);
        if (!client.expected)
            attach_or_step_aside();
        else
            attach_once(gs_now_ns(), &problem); /* else the first context waits */
    }
    gs_mutex_unlock(&client.start_lock);
}

/* Sleeps until a signal interrupts, for `patience` (ns) at most. */
static void pause_start(uint64_t patience)
{
    struct pollfd called = {.fd = gs_helper_calls(), .events = POLLIN};
    if (poll(&called, 1, (int)(patience / GS_MILLISECOND)) > 0)
        gs_helper_take_calls();
}

CUresult gs_client_await_scheduler(void)
{
    if (gs_session_attachment() != GS_NOT_ATTACHED_YET || !__atomic_load_n(&client.begun, __ATOMIC_ACQUIRE))
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    bool said = false;
    uint64_t cancels = __atomic_load_n(&client.cancels, __ATOMIC_RELAXED), pause = shortest_retry;
    gs_interrupt_watch();
    gs_mutex_lock(&client.await_lock);
    /* A thread in cuInit may be about to attach. It does not keep the lock for as long as a wait may take. */
    gs_mutex_lock(&client.start_lock);
    gs_mutex_unlock(&client.start_lock);
    uint64_t since = gs_now_ns();
    client.awaiting = true;
    gs_interrupt_expect(true);
    for (int problem = 0; gs_session_attachment() == GS_NOT_ATTACHED_YET;) {
        if (client.cancels == cancels && attach_once(since, &problem))
            break;
        take_signal();
        uint64_t waited = gs_now_ns() - since;
        if (client.cancels != cancels) {
            client.wait_was_cancelled = true;
            result = GS_ERROR_CANCELLED;
            break;
        }
        if (waited >= client.patience) {
            gs_say("no scheduler answered on %s for %u s (%s); this process goes on without one, and joins when one "
                   "answers. `gpushare doctor` says more",
                   client.path, (unsigned)(waited / GS_SECOND), strerror(problem));
            go_on_alone();
            break;
        }
        if (!said && waited >= said_after) {
            said = true;
            gs_say("waiting for the GPU scheduler on %s (%s), for %u s at most; interrupt to stop waiting", client.path,
                   client.refused ? client.refusal : strerror(problem), (unsigned)(client.patience / GS_SECOND));
        }
        pause_start(pause);
        pause = pause * 2 < longest_pause ? pause * 2 : longest_pause;
    }
    client.awaiting = false;
    gs_interrupt_expect(false);
    gs_mutex_unlock(&client.await_lock);
    return result;
}

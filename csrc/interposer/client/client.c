/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/client.h"

#include "backends/choose.h"
#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "client/alone.h"
#include "client/attach.h"
#include "client/channel.h"
#include "client/growth.h"
#include "client/helper.h"
#include "client/lease.h"
#include "client/messages.h"
#include "client/moving.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/keeper.h"
#include "gate/slots.h"
#include "memory/mover.h"
#include "memory/promises.h"
#include "protocol.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const uint64_t shortest_retry = 20 * GS_MILLISECOND;
static const uint64_t longest_retry = 1 * GS_SECOND;
/* Time limits in seconds: for a wait, and for the search for a scheduler when a process starts. */
static const uint64_t default_patience = 300;
/* How long a starting process waits for a scheduler before it prints a message, and the pause between two attempts. */
static const uint64_t print_after = 2 * GS_SECOND;
static const uint64_t longest_pause = GS_SECOND / 2;
/* Milliseconds: see gs_lease_set_capture_patience. */
static const uint64_t default_capture_patience = 30000;

static struct {
    struct gs_mutex start_lock; /* held during the attempt in cuInit */
    struct gs_mutex await_lock; /* held by the thread that waits for a scheduler before its first context */
    bool begun;                 /* the environment was read, and sharing is enabled */
    uint64_t patience;
    void (*forked)(void);
} client = {.start_lock = GS_MUTEX(GS_RANK_START), .await_lock = GS_MUTEX(GS_RANK_AWAIT)};

static void in_forked_child(void)
{
    /*
     * CUDA does not work in the child of a process that has used it. The child must not keep the parent's connection,
     * pool or files open when the parent ends.
     */
    gs_channel_after_fork();
    gs_helper_after_fork();
    gs_mutex_after_fork(&gs_client_lock);
    gs_mutex_after_fork(&client.start_lock);
    gs_mutex_after_fork(&client.await_lock);
    gs_waking_after_fork();
    gs_alone_after_fork();
    gs_attach_after_fork();
    client.forked();
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
        gs_print("ignored %s=%s: it is not a number of %s", name, text, of);
        return otherwise;
    }
    return value;
}

/* 0: it cannot be found out. */
static uint32_t find_pid_namespace(void)
{
    struct stat found;
    /* glibc exports stat only since version 2.33. */
    return syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &found, 0) == 0 ? (uint32_t)found.st_ino : 0;
}

static bool read_environment(void)
{
    struct gpushare_hello hello = {
        .version = GPUSHARE_PROTOCOL_VERSION, .pid = getpid(), .pid_namespace = find_pid_namespace()};
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
    if (strlen(path) >= GS_ATTACH_PATH) {
        gs_print(
            "the path of the scheduler's socket has %zu bytes, but a socket's path can have at most %d: %s; running "
            "without sharing. Set GPUSHARE_SOCKET to a shorter path",
            strlen(path), GS_ATTACH_PATH - 1, path);
        gs_session_step_aside("GPUSHARE_SOCKET is too long");
        return false;
    }
    const char *group = getenv("GPUSHARE_GROUP");
    const char *name = getenv("GPUSHARE_NAME");
    if (group != NULL && *group != '\0')
        snprintf(hello.group, sizeof(hello.group), "%s", group);
    else
        snprintf(hello.group, sizeof(hello.group), "pid-%d", (int)getpid());
    snprintf(hello.name, sizeof(hello.name), "%s", name != NULL && *name != '\0' ? name : hello.group);
    hello.cap = number_from_environment("GPUSHARE_MEMORY", "bytes", 0);
    gs_session_set_cap(hello.cap);
    client.patience = GS_SECOND * number_from_environment("GPUSHARE_SCHEDULER_PATIENCE_S", "seconds", default_patience);
    gs_alone_set_patience(client.patience);
    gs_lease_set_capture_patience(GS_MILLISECOND * number_from_environment("GPUSHARE_CAPTURE_PATIENCE_MS",
                                                                           "milliseconds", default_capture_patience));
    gs_attach_identify(&hello, path);
    return true;
}

/* From here on, this process's memory is managed, and its helper thread runs. */
static void join(void)
{
    static bool at_exit;
    gs_mutex_lock(&gs_client_lock);
    gs_lease_set_gate_locked(gs_lease_is_held_locked() ? GS_GATE_HELD : GS_GATE_SHUT);
    gs_mutex_unlock(&gs_client_lock);
    gs_session_attach();
    if (gs_helper_start()) {
        if (!at_exit)
            at_exit = atexit(gs_waking_at_exit) == 0;
        return;
    }
    gs_print("could not start the thread that serves this process; running without sharing. Check `ulimit -u`");
    gs_lease_set_gate_locked(GS_GATE_PLAIN);
    if (gs_channel_is_open())
        gs_channel_close_locked();
    gs_session_step_aside("its thread could not be started");
}

/*
 * Continues as if the scheduler had exited while this process held a lease. The process keeps its own accounts and
 * reports them to the next scheduler.
 */
static void continue_alone(void)
{
    gs_attach_again();
    gs_lease_take_alone();
    gs_channel_set_away_since(gs_now_ns());
    gs_channel_reopen_after(longest_retry);
    join();
}

/* Tries once to attach. True: the process has joined, or will as soon as it can. Otherwise *problem has the error. */
static bool attach_once(uint64_t since, int *problem)
{
    uint64_t waited = 0;
    switch (gs_attach_greet(problem)) {
    case GS_GREETED:
        join();
        return true;
    case GS_REFUSED:
        waited = gs_now_ns() - since;
        if (gs_attach_awaits_ticket(waited))
            return false;
        gs_attach_print_refusal();
        continue_alone();
        return true;
    case GS_UNREACHABLE:
        if (*problem != EACCES)
            return false;
        gs_print("the socket %s belongs to another user; running without sharing. Set GPUSHARE_SOCKET to a socket of "
                 "your own",
                 gs_attach_path());
        gs_session_step_aside("the socket belongs to another user");
        return true;
    }
    return false;
}

/* There has never been a scheduler here. Waits a little, in case one is about to create its folder. */
static void attach_or_step_aside(void)
{
    uint64_t since = gs_now_ns();
    for (int problem = 0; !attach_once(since, &problem); usleep(20000)) {
        if (gs_now_ns() - since < gs_attach_patience(problem))
            continue;
        gs_print("no scheduler answers on %s (%s); running without sharing. Run `gpushare doctor` to find the cause",
                 gs_attach_path(), strerror(problem));
        gs_session_step_aside("no scheduler answered");
        return;
    }
}

static const struct gs_keeper keeper = {
    .acquire = gs_lease_acquire, .pace = gs_lease_pace, .await_awake = gs_waking_await};
static const struct gs_promises promises = {.grow = gs_growth_ask,
                                            .cancels = gs_waits_cancels,
                                            .report_usage = gs_channel_report_usage,
                                            .reach = gs_lease_reach,
                                            .await_released = gs_lease_await_released,
                                            .release_lease = gs_lease_release,
                                            .leased = gs_lease_is_held};
static const struct gs_moves moves = {.between_pieces = gs_messages_between_pieces,
                                      .room = gs_moving_room,
                                      .report = gs_moving_report,
                                      .grant_waits = gs_messages_grant_waits};

static bool begin(const struct gs_client_watch *watch)
{
    static bool at_fork;
    const char *why = NULL;
    client.forked = watch->forked;
    gs_lease_set_end(watch->lease_ends);
    gs_keeper_set(&keeper);
    gs_promises_set(&promises);
    gs_moves_set(&moves);
    if (!read_environment())
        return false;
    if (!at_fork)
        at_fork = pthread_atfork(NULL, NULL, in_forked_child) == 0;
    gs_helper_prepare();
    gs_gate_prepare();
    uint32_t backend;
    if (!gs_backend_choose(&backend, &why)) {
        gs_session_step_aside(why);
        return false;
    }
    gs_attach_set_backend(backend);
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
        if (!gs_attach_is_expected())
            attach_or_step_aside();
        else
            attach_once(gs_now_ns(), &problem); /* if it fails, the first context waits */
    }
    gs_mutex_unlock(&client.start_lock);
}

/* Sleeps until a signal arrives, for up to `patience` (ns). */
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
    bool printed = false;
    uint64_t cancels = gs_waits_cancels(), pause = shortest_retry;
    gs_interrupt_watch();
    gs_mutex_lock(&client.await_lock);
    /* A thread in cuInit may be about to attach. It holds the lock only briefly. */
    gs_mutex_lock(&client.start_lock);
    gs_mutex_unlock(&client.start_lock);
    uint64_t since = gs_now_ns();
    gs_attach_set_awaited(true);
    for (int problem = 0; gs_session_attachment() == GS_NOT_ATTACHED_YET;) {
        if (gs_waits_cancels() == cancels && attach_once(since, &problem))
            break;
        gs_messages_take_interrupt();
        uint64_t waited = gs_now_ns() - since;
        if (gs_waits_cancels() != cancels) {
            gs_mutex_lock(&gs_client_lock);
            gs_waits_cancelled_locked();
            gs_mutex_unlock(&gs_client_lock);
            result = GS_ERROR_CANCELLED;
            break;
        }
        if (waited >= client.patience) {
            gs_print("no scheduler answered on %s for %u s (%s). This process continues without a scheduler, and "
                     "connects as soon as one answers. Run `gpushare doctor` to find the cause",
                     gs_attach_path(), (unsigned)(waited / GS_SECOND), strerror(problem));
            continue_alone();
            break;
        }
        if (!printed && waited >= print_after) {
            printed = true;
            gs_print("waiting for the GPU scheduler on %s (%s) for up to %u s. Interrupt the program to stop waiting",
                     gs_attach_path(), gs_attach_is_refused() ? gs_attach_refusal() : strerror(problem),
                     (unsigned)(client.patience / GS_SECOND));
        }
        pause_start(pause);
        pause = pause * 2 < longest_pause ? pause * 2 : longest_pause;
    }
    gs_attach_set_awaited(false);
    gs_mutex_unlock(&client.await_lock);
    return result;
}

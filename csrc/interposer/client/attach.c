/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/attach.h"

#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/print.h"
#include "base/session.h"
#include "client/bursts.h"
#include "client/channel.h"
#include "client/connection.h"
#include "client/growth.h"
#include "client/lease.h"
#include "client/messages.h"
#include "client/metering.h"
#include "client/placement.h"
#include "client/quiet.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/meter.h"
#include "hibernate/hibernate.h"
#include "memory/backing.h"
#include "memory/devices.h"
#include "memory/host.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t greeting_patience = 2 * GS_SECOND;
/*
 * For a socket that accepts connections but sends nothing: systemd keeps it for a scheduler that is starting or being
 * replaced.
 */
static const uint64_t first_greeting_patience = 10 * GS_SECOND;
static const uint64_t longest_retry = 1 * GS_SECOND;
/* How long the first cuInit waits for a scheduler that is starting or being replaced, and for its welcome. */
static const uint64_t first_patience = 2 * GS_SECOND;
/* The Jupyter server may be about to write the ticket that the scheduler requires. */
static const uint64_t ticket_patience = 10 * GS_SECOND;
/*
 * The longest time between two attempts of a process that was refused (for its protocol or its user), while none of its
 * threads waits.
 */
static const uint64_t longest_retry_of_foreign = 5 * GS_SECOND;
static const uint64_t longest_retry_of_refused = 30 * GS_SECOND;

static struct {
    char path[GS_ATTACH_PATH];
    struct gpushare_hello hello;
    bool expected;         /* a scheduler is running or expected */
    bool awaited;          /* a thread is waiting for a scheduler */
    enum gs_ticket ticket; /* the result of presenting the ticket last */
    /* the last scheduler that answered refused this process; `refusal` has the reason; read without a lock */
    bool refused;
    uint32_t refusal_code;
    bool refusal_printed;
    char refusal[sizeof(((struct gpushare_refused *)NULL)->text) + 1];
} attach;

/* The folder of the socket exists if a scheduler has run there, or is expected. */
static bool is_expected(const char *path)
{
    char folder[sizeof(attach.path)];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return true;
    slash[slash == folder] = '\0';
    return access(folder, F_OK) == 0;
}

void gs_attach_identify(const struct gpushare_hello *hello, const char *path)
{
    attach.hello = *hello;
    snprintf(attach.path, sizeof(attach.path), "%s", path);
    attach.expected = is_expected(attach.path);
}

bool gs_attach_is_expected(void)
{
    return attach.expected;
}

void gs_attach_set_backend(uint32_t backend)
{
    attach.hello.backend = backend;
}

const char *gs_attach_path(void)
{
    return attach.path;
}

const char *gs_attach_group(void)
{
    return attach.hello.group;
}

void gs_attach_set_awaited(bool awaited)
{
    attach.awaited = awaited;
    gs_interrupt_expect(awaited);
}

void gs_attach_again(void)
{
    attach.hello.flags |= GPUSHARE_HELLO_REATTACH;
}

bool gs_attach_is_refused(void)
{
    return __atomic_load_n(&attach.refused, __ATOMIC_RELAXED);
}

const char *gs_attach_refusal(void)
{
    return attach.refusal;
}

static void set_refused(bool refused)
{
    __atomic_store_n(&attach.refused, refused, __ATOMIC_RELAXED);
}

static void note_refusal(uint32_t code, const char *text, size_t size)
{
    set_refused(true);
    attach.refusal_code = code;
    snprintf(attach.refusal, sizeof(attach.refusal), "%.*s", (int)size, text);
}

/* The process has no ticket yet, or the scheduler does not know it yet. */
static bool awaits_ticket(void)
{
    return attach.refusal_code == EACCES && (attach.ticket == GS_TICKET_MISSING || attach.ticket == GS_TICKET_SENT);
}

uint64_t gs_attach_patience(int problem)
{
    /* EAGAIN: there is a scheduler, and its queue of connections is full. */
    return first_patience + (problem == EAGAIN ? first_greeting_patience : 0);
}

bool gs_attach_awaits_ticket(uint64_t waited)
{
    return awaits_ticket() && waited < first_patience + (attach.ticket == GS_TICKET_MISSING ? ticket_patience : 0);
}

static enum gs_greeting await_welcome(int fd, struct gs_inbox *inbox, struct gpushare_welcome *welcome, int *problem)
{
    *problem = EPIPE;
    bool first = !(attach.hello.flags & GPUSHARE_HELLO_REATTACH);
    /* In cuInit, the process does not wait for an expected scheduler: the first context waits. */
    bool patient = first && (attach.awaited || !attach.expected);
    uint64_t deadline = gs_now_ns() + (patient ? first_greeting_patience : greeting_patience);
    for (;;) {
        uint64_t now = gs_now_ns();
        struct pollfd readable[2] = {{.fd = fd, .events = POLLIN},
                                     {.fd = attach.awaited ? gs_helper_calls() : -1, .events = POLLIN}};
        if (now >= deadline || poll(readable, 2, (int)((deadline - now) / GS_MILLISECOND) + 1) == 0) {
            *problem = ETIMEDOUT;
            return GS_UNREACHABLE;
        }
        if (readable[1].revents != 0)
            return GS_UNREACHABLE; /* interrupted */
        if (!gs_receive(fd, inbox))
            return GS_UNREACHABLE;
        struct gpushare_header header;
        const void *body;
        enum gs_frame frame;
        do
            frame = gs_next_frame(inbox, &header, &body);
        while (frame == GS_FRAME_WHOLE && header.type == GPUSHARE_PLACED); /* the process keeps the GPUs that it has */
        if (frame == GS_FRAME_NONE)
            continue;
        if (frame == GS_FRAME_BAD || !gs_messages_is_sound(&header))
            return GS_UNREACHABLE;
        if (header.type == GPUSHARE_REFUSED) {
            const struct gpushare_refused *refused = body;
            note_refusal(refused->code, refused->text, sizeof(refused->text));
            return GS_REFUSED;
        }
        if (header.type != GPUSHARE_WELCOME)
            return GS_UNREACHABLE;
        memcpy(welcome, body, sizeof(*welcome));
        return GS_GREETED;
    }
}

static const char unusable_ticket[] = "its ticket cannot be used";

enum gs_greeting gs_attach_greet(int *problem)
{
    int fd = gs_connect(attach.path);
    if (fd < 0) {
        *problem = -fd;
        return GS_UNREACHABLE;
    }
    struct {
        struct gpushare_hello hello;
        struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    } message = {.hello = attach.hello};
    struct gpushare_usage needed;
    gs_hibernate_needs(&needed);
    message.hello.gpu_count = gs_devices_usages(message.usages);
    message.hello.flags |= gs_memory_oversubscribed() ? GPUSHARE_HELLO_OVERSUBSCRIBE : 0;
    gs_mutex_lock(&gs_client_lock);
    if (gs_lease_is_held_locked()) {
        message.hello.flags |= GPUSHARE_HELLO_LEASED;
        if (gs_lease_gate_is_open() || gs_lease_is_ending_locked())
            message.hello.flags |= GPUSHARE_HELLO_BUSY;
        message.hello.lease = gs_lease_id_locked();
    }
    if (gs_waking_state_locked() != GS_WAKING_AWAKE) {
        for (unsigned i = 0; i < message.hello.gpu_count; i++)
            if (memcmp(message.usages[i].gpu, needed.gpu, sizeof(needed.gpu)) == 0)
                message.usages[i].context = needed.context;
        message.hello.flags |= GPUSHARE_HELLO_HIBERNATED;
        gs_devices_see(&message.hello.seen);
    }
    gs_mutex_unlock(&gs_client_lock);
    struct gpushare_welcome welcome;
    struct gs_inbox *inbox = gs_messages_inbox();
    gs_inbox_clear(inbox);
    attach.ticket = gs_present_ticket(fd);
    if (attach.ticket == GS_TICKET_BAD) {
        close(fd);
        note_refusal(EACCES, unusable_ticket, sizeof(unusable_ticket));
        return GS_REFUSED;
    }
    struct gs_place place;
    size_t size = attach.hello.flags & GPUSHARE_HELLO_REATTACH ? gs_placement_restated(&place) : 0;
    if (size != 0)
        gs_send(fd, GPUSHARE_PLACE, &place, size);
    /* If the send fails, the scheduler may have sent the reason before it closed the connection. */
    gs_send(fd, GPUSHARE_HELLO, &message, sizeof(message.hello) + message.hello.gpu_count * sizeof(message.usages[0]));
    enum gs_greeting greeting = await_welcome(fd, inbox, &welcome, problem);
    if (greeting != GS_GREETED) {
        close(fd);
        gs_inbox_clear(inbox);
        return greeting;
    }
    gs_host_offer(welcome.pool ? inbox->descriptor : -1, welcome.slot);
    if (welcome.pool)
        inbox->descriptor = -1; /* the pool's descriptor was taken over */
    gs_meter_restart();
    gs_mutex_lock(&gs_client_lock);
    gs_channel_open_locked(fd, !(attach.hello.flags & GPUSHARE_HELLO_REATTACH));
    set_refused(false);
    attach.refusal_printed = false;
    attach.hello.flags |= GPUSHARE_HELLO_REATTACH;
    gs_quiet_set_shortest(welcome.quiet_ns);
    gs_quiet_begin();
    gs_session_set_contended(welcome.contended);
    gs_metering_restart_locked();
    gs_devices_set_headroom(welcome.headroom);
    gs_waking_forget_question_locked();
    if (gs_waking_sleepers_locked() != 0 ||
        (gs_waking_state_locked() != GS_WAKING_AWAKE && gs_lease_waiters_locked() != 0))
        gs_waits_wake(); /* wakes threads that request something from this scheduler */
    gs_growth_ask_again_locked();
    gs_bursts_reattach_locked();
    gs_lease_reattach_locked();
    gs_mutex_unlock(&gs_client_lock);
    return GS_GREETED;
}

void gs_attach_print_refusal(void)
{
    if (attach.refusal_printed)
        return;
    attach.refusal_printed = true;
    gs_print("the scheduler refused this process: %s. The process keeps its data, continues without the scheduler, and "
             "keeps trying to connect",
             attach.refusal);
}

/* A later attempt can succeed: another scheduler may start, the ticket may be renewed, or a quota may be raised. */
static void try_again_after_refusal(void)
{
    bool patient = awaits_ticket() && gs_now_ns() - gs_channel_away_since() < ticket_patience;
    gs_mutex_lock(&gs_client_lock);
    bool awaited = gs_lease_waiters_locked() != 0 || gs_growth_is_wanted_locked() || gs_waking_sleepers_locked() != 0;
    gs_mutex_unlock(&gs_client_lock);
    gs_channel_reopen_later(patient || awaited              ? longest_retry
                            : attach.refusal_code == EPROTO ? longest_retry_of_foreign
                                                            : longest_retry_of_refused);
    if (!patient)
        gs_attach_print_refusal();
}

void gs_attach_reconnect(void)
{
    int problem;
    switch (gs_attach_greet(&problem)) {
    case GS_GREETED:
        gs_debug("attached to the scheduler again");
        gs_messages_handle(); /* messages that arrived together with WELCOME */
        break;
    case GS_REFUSED:
        try_again_after_refusal();
        break;
    case GS_UNREACHABLE:
        if (attach.refused)
            gs_channel_set_away_since(gs_now_ns());
        set_refused(false);
        gs_channel_reopen_later(longest_retry);
        break;
    }
}

void gs_attach_after_fork(void)
{
    gs_attach_set_awaited(false);
}

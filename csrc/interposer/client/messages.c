/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "client/messages.h"

#include "base/clock.h"
#include "base/helper.h"
#include "base/interrupt.h"
#include "base/lock.h"
#include "base/print.h"
#include "client/bursts.h"
#include "client/channel.h"
#include "client/grants.h"
#include "client/growth.h"
#include "client/lease.h"
#include "client/moving.h"
#include "client/parking.h"
#include "client/quiet.h"
#include "client/waits.h"
#include "client/waking.h"
#include "gate/pace.h"

#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* A frame that arrived during a move and is deferred until the move ends. */
struct deferred_frame {
    struct gpushare_header header;
    char body[512];
};
enum { MOST_DEFERRED = 32 };

static struct {
    struct gs_inbox inbox;
    struct deferred_frame deferred[MOST_DEFERRED];
    unsigned deferred_count;
} messages = {.inbox.descriptor = -1};

struct gs_inbox *gs_messages_inbox(void)
{
    return &messages.inbox;
}

static void cancel_waits(void)
{
    gs_mutex_lock(&gs_client_lock);
    gs_waits_cancel_locked();
    gs_lease_forget_request_locked();
    gs_waking_forget_question_locked(); /* the scheduler may also have cancelled the wait; the next call asks again */
    gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

static void set_pace(const struct gpushare_pace *pace)
{
    gs_mutex_lock(&gs_client_lock);
    gs_pace_set(pace);
    if (gs_lease_gate_is_open())
        gs_lease_open_gate_locked();
    if (gs_lease_paced_locked() != 0)
        gs_waits_wake();
    gs_mutex_unlock(&gs_client_lock);
}

/* The size of the body of a message type, or -1 for a type that a scheduler does not send. */
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

bool gs_messages_is_sound(const struct gpushare_header *header)
{
    return body_size(header->type) == (int)(header->length - sizeof(*header));
}

/* True for all messages except those that move memory or must not interrupt a move. */
static bool may_interrupt_a_move(uint16_t type)
{
    return type != GPUSHARE_GRANT && type != GPUSHARE_EVICT && type != GPUSHARE_STEP && type != GPUSHARE_PARK;
}

static void dispatch(uint16_t type, const void *body)
{
    switch (type) {
    case GPUSHARE_GRANT:
        gs_grants_grant(body);
        break;
    case GPUSHARE_REVOKE:
        gs_grants_revoke(body);
        break;
    case GPUSHARE_STEP:
        gs_grants_step(body);
        break;
    case GPUSHARE_EVICT:
        gs_grants_evict(body);
        break;
    case GPUSHARE_GROWN:
        gs_growth_answered(body);
        break;
    case GPUSHARE_CANCEL:
        cancel_waits();
        break;
    case GPUSHARE_CONTENDED:
        gs_bursts_contended(body);
        break;
    case GPUSHARE_END_BURST:
        gs_bursts_check_end();
        break;
    case GPUSHARE_ROOM:
        gs_moving_set_room(body);
        break;
    case GPUSHARE_PREPARE:
        gs_grants_prepare_bytes(body);
        break;
    case GPUSHARE_PACE:
        set_pace(body);
        break;
    case GPUSHARE_PARK:
        gs_parking_park(body);
        break;
    case GPUSHARE_HIBERNATED:
        gs_parking_hibernated(body);
        break;
    case GPUSHARE_AWAKE:
        gs_parking_awake(body);
        break;
    default: /* WELCOME and REFUSED are read by attach.c */
        break;
    }
}

/*
 * The scheduler has exited, or has sent invalid messages. The process keeps its lease, threads keep waiting, and pacing
 * ends.
 */
static void lose_connection(void)
{
    set_pace(NULL);
    gs_mutex_lock(&gs_client_lock);
    if (gs_channel_is_open()) {
        gs_channel_close_locked();
        gs_quiet_watch(0, 0);
        gs_lease_forget_request_locked();
        gs_waking_forget_question_locked();
        messages.deferred_count = 0;
        gs_moving_forget();
        gs_inbox_clear(&messages.inbox);
        gs_debug("the scheduler is away");
    }
    gs_mutex_unlock(&gs_client_lock);
}

static void take_deferred(void)
{
    while (messages.deferred_count != 0) {
        struct deferred_frame first = messages.deferred[0];
        messages.deferred_count--;
        memmove(messages.deferred, messages.deferred + 1, messages.deferred_count * sizeof(first));
        dispatch(first.header.type, first.body);
    }
}

/* Takes frames out of the inbox. During a move (`moving`), frames that can wait are deferred in order. */
static void take_frames(bool moving)
{
    struct gpushare_header header;
    const void *body;
    while (!moving || messages.deferred_count < MOST_DEFERRED) {
        enum gs_frame frame = gs_next_frame(&messages.inbox, &header, &body);
        if (frame == GS_FRAME_NONE)
            return;
        if (frame == GS_FRAME_BAD || !gs_messages_is_sound(&header)) {
            gs_print("the scheduler sent a malformed message (type %u, %u bytes); reconnecting", header.type,
                     header.length);
            lose_connection();
            return;
        }
        if (moving && !may_interrupt_a_move(header.type)) {
            struct deferred_frame *slot = &messages.deferred[messages.deferred_count++];
            slot->header = header;
            memcpy(slot->body, body, header.length - sizeof(header));
            continue;
        }
        /* A handler may move memory and so read more frames into the inbox. It gets a copy of the body. */
        char copy[512];
        memcpy(copy, body, header.length - sizeof(header));
        dispatch(header.type, copy);
        if (!moving)
            take_deferred();
    }
}

void gs_messages_handle(void)
{
    take_frames(false);
}

/* Sleeps until a message arrives, the socket can send again, a thread calls the helper, or the time is over. */
static bool sleep_until_called(uint64_t nanoseconds)
{
    struct timespec timeout = {.tv_sec = (time_t)(nanoseconds / GS_SECOND), .tv_nsec = (long)(nanoseconds % GS_SECOND)};
    short room = gs_channel_is_flushed() ? 0 : POLLOUT;
    struct pollfd watched[2] = {{.fd = gs_helper_calls(), .events = POLLIN},
                                {.fd = gs_channel_socket(), .events = (short)(POLLIN | room)}};
    if (ppoll(watched, 2, &timeout, NULL) <= 0)
        return false;
    if (watched[0].revents != 0)
        gs_helper_take_calls();
    if (watched[1].revents & POLLOUT)
        gs_channel_flush();
    return (watched[1].revents & ~POLLOUT) != 0;
}

void gs_messages_take_interrupt(void)
{
    if (gs_interrupt_take())
        cancel_waits();
}

bool gs_messages_between_pieces(uint64_t patience)
{
    if (patience != 0)
        sleep_until_called(patience);
    gs_messages_take_interrupt();
    gs_channel_send_due_usages();
    gs_channel_flush();
    if (gs_channel_is_open() && gs_receive(gs_channel_socket(), &messages.inbox))
        take_frames(true);
    else if (gs_channel_is_open())
        lose_connection();
    return gs_moving_may_continue();
}

bool gs_messages_grant_waits(void)
{
    for (unsigned i = 0; i < messages.deferred_count; i++)
        if (messages.deferred[i].header.type == GPUSHARE_GRANT)
            return true;
    return false;
}

void gs_messages_await(uint64_t nanoseconds)
{
    bool readable = sleep_until_called(nanoseconds);
    gs_messages_take_interrupt();
    if (gs_channel_is_open() && readable) {
        if (gs_receive(gs_channel_socket(), &messages.inbox))
            take_frames(false);
        else
            lose_connection();
    }
}

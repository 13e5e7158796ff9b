/* SPDX-License-Identifier: BSD-3-Clause */
#include "client/channel.h"

#include "base/clock.h"
#include "base/helper.h"
#include "base/lock.h"
#include "client/connection.h"
#include "client/waits.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t shortest_retry = 20 * GS_MILLISECOND;
/*
 * A scheduler that exits within this time after it accepted this process does not count as stable: something that this
 * process sends may crash it.
 */
static const uint64_t stable_after = 2 * GS_SECOND;
/* The shortest time between two usage reports of a program that allocates and frees continually. */
static const uint64_t usage_gap = 5 * GS_MILLISECOND;

static struct {
    int socket;  /* -1 while there is no scheduler */
    bool broken; /* a frame was lost, so nothing more is sent over this connection */
    struct gs_outbox outbox;
    /* when to report the usages, unless another message is sent earlier */
    struct gpushare_usage usages[GPUSHARE_MAX_GPUS];
    unsigned usage_count;
    uint64_t usage_at;
    uint64_t serial;
    /* Only for the helper thread. */
    uint64_t attached_at, away_since, retry_at, retry_gap;
} channel = {.socket = -1};

static __thread bool is_helper __attribute__((tls_model("initial-exec")));

bool gs_channel_is_open(void)
{
    return channel.socket >= 0;
}

int gs_channel_socket(void)
{
    return channel.socket;
}

void gs_channel_open_locked(int socket, bool first)
{
    channel.socket = socket;
    channel.attached_at = gs_now_ns();
    if (first)
        channel.away_since = channel.attached_at;
}

void gs_channel_close_locked(void)
{
    close(channel.socket);
    channel.socket = -1;
    channel.broken = false;
    gs_outbox_clear(&channel.outbox);
    channel.usage_count = 0;
    uint64_t now = gs_now_ns(), answered = now - channel.attached_at;
    bool stable = answered >= stable_after;
    /* After a short answer, the time without a scheduler goes on from where it stopped. */
    channel.away_since = stable ? now : channel.away_since + answered;
    channel.retry_gap = shortest_retry;
    /* The first attempt comes at once, because another scheduler may have taken over the socket. */
    channel.retry_at = stable ? now : now + channel.retry_gap;
}

void gs_channel_break_locked(void)
{
    if (channel.socket >= 0)
        shutdown(channel.socket, SHUT_RDWR);
}

/*
 * One frame could not be sent, so no later frame may be sent either. The next attachment reports everything that
 * matters.
 */
static void break_connection_locked(void)
{
    channel.broken = true;
    shutdown(channel.socket, SHUT_RDWR); /* the helper sees the end of the connection */
}

/* Never waits for the scheduler. The helper later sends what the socket does not accept at once. */
static void post_frame(enum gpushare_type type, const void *body, size_t size)
{
    if (channel.socket < 0 || channel.broken)
        return;
    bool waited = !gs_outbox_empty(&channel.outbox);
    if (!gs_post(channel.socket, &channel.outbox, type, body, size))
        break_connection_locked();
    else if (!waited && !gs_outbox_empty(&channel.outbox))
        gs_helper_call();
}

static void send_usages(void)
{
    if (channel.usage_count == 0)
        return;
    for (unsigned i = 0; i < channel.usage_count; i++)
        post_frame(GPUSHARE_USAGE, &channel.usages[i], sizeof(channel.usages[i]));
    channel.usage_count = 0;
    channel.usage_at = gs_now_ns() + usage_gap;
}

/* Only the last report of each GPU is kept. */
static void hold_usage(const struct gpushare_usage *usage)
{
    unsigned i = 0;
    while (i < channel.usage_count && memcmp(channel.usages[i].gpu, usage->gpu, sizeof(usage->gpu)) != 0)
        i++;
    if (i == GPUSHARE_MAX_GPUS) {
        send_usages(); /* a wake has changed the UUID of a GPU */
        i = 0;
    }
    channel.usages[i] = *usage;
    if (i == channel.usage_count)
        channel.usage_count++;
}

void gs_channel_send(enum gpushare_type type, const void *body, size_t size)
{
    send_usages();
    post_frame(type, body, size);
}

uint64_t gs_channel_next_serial_locked(void)
{
    return ++channel.serial;
}

void gs_channel_send_due_usages(void)
{
    gs_mutex_lock(&gs_client_lock);
    if (channel.usage_count != 0 && gs_now_ns() >= channel.usage_at)
        send_usages();
    gs_mutex_unlock(&gs_client_lock);
}

bool gs_channel_holds_usages_locked(uint64_t *at)
{
    *at = channel.usage_at;
    return channel.usage_count != 0;
}

void gs_channel_report_usage(const struct gpushare_usage *usage)
{
    gs_mutex_lock(&gs_client_lock);
    bool first = channel.usage_count == 0;
    hold_usage(usage);
    /* The scheduler may be waiting for a report of the helper. */
    if (is_helper || gs_now_ns() >= channel.usage_at)
        send_usages();
    else if (first)
        gs_helper_call();
    gs_mutex_unlock(&gs_client_lock);
}

void gs_channel_flush(void)
{
    gs_mutex_lock(&gs_client_lock);
    if (channel.socket >= 0 && !channel.broken && !gs_flush(channel.socket, &channel.outbox))
        break_connection_locked();
    gs_mutex_unlock(&gs_client_lock);
}

bool gs_channel_is_flushed(void)
{
    gs_mutex_lock(&gs_client_lock);
    bool flushed = gs_outbox_empty(&channel.outbox);
    gs_mutex_unlock(&gs_client_lock);
    return flushed;
}

void gs_channel_set_helper_thread(void)
{
    is_helper = true;
}

uint64_t gs_channel_away_since(void)
{
    return channel.away_since;
}

void gs_channel_set_away_since(uint64_t since)
{
    channel.away_since = since;
}

uint64_t gs_channel_reopen_at(void)
{
    return channel.retry_at;
}

void gs_channel_reopen_later(uint64_t longest_gap)
{
    gs_channel_reopen_after(channel.retry_gap * 2 < longest_gap ? channel.retry_gap * 2 : longest_gap);
}

void gs_channel_reopen_after(uint64_t gap)
{
    channel.retry_gap = gap;
    channel.retry_at = gs_now_ns() + gap;
}

void gs_channel_reopen_at_once_locked(void)
{
    if (channel.socket >= 0)
        return;
    channel.retry_at = 0;
    gs_helper_call();
}

void gs_channel_after_fork(void)
{
    /* The child closes the parent's connection: the scheduler must see its end when the parent dies. */
    if (channel.socket >= 0)
        close(channel.socket);
    channel.socket = -1;
    channel.broken = false;
    gs_outbox_clear(&channel.outbox);
}

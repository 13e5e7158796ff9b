/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The frames that this process sends to the scheduler, and since when it has had a scheduler or none. No function
 * waits: the helper thread later sends what the socket does not accept at once.
 */
#ifndef GPUSHARE_CLIENT_CHANNEL_H
#define GPUSHARE_CLIENT_CHANNEL_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Only the helper thread opens and closes the channel. Other threads call this under the client's lock. */
bool gs_channel_is_open(void);
int gs_channel_socket(void); /* -1 while there is no scheduler */

/*
 * A scheduler has accepted this process on that socket. While `first` is true, the process waits as if a scheduler had
 * just exited.
 */
void gs_channel_open_locked(int socket, bool first);

/* The connection has ended. */
void gs_channel_close_locked(void);

/* The connection is broken: shuts it down, so that the helper sees its end. */
void gs_channel_break_locked(void);

/* Sends one frame after all earlier ones. Does nothing while there is no scheduler. */
void gs_channel_send(enum gpushare_type type, const void *body, size_t size);

/* Returns a new serial number, which identifies a request. */
uint64_t gs_channel_next_serial_locked(void);

/* Reports this usage now, or a little later with other changes if the program allocates and frees continually. */
void gs_channel_report_usage(const struct gpushare_usage *usage);
void gs_channel_send_due_usages(void);

/* Whether a usage is waiting to be reported, and when it is due. */
bool gs_channel_holds_usages_locked(uint64_t *at);

/* Sends what the socket did not accept before. */
void gs_channel_flush(void);
bool gs_channel_is_flushed(void);

/*
 * Marks the calling thread as the helper. Its reports are sent at once, because the scheduler may be waiting for them.
 */
void gs_channel_set_helper_thread(void);

/* --- While the scheduler is away --- */

uint64_t gs_channel_away_since(void);
void gs_channel_set_away_since(uint64_t since);

/* When to look for a scheduler again. */
uint64_t gs_channel_reopen_at(void);
void gs_channel_reopen_later(uint64_t longest_gap); /* doubles the time between two attempts */
void gs_channel_reopen_after(uint64_t gap);

/* A thread is waiting for something that only a scheduler can grant. */
void gs_channel_reopen_at_once_locked(void);

void gs_channel_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What this process says to the scheduler, and since when there is a scheduler, or none. Nothing here waits: what the
 * socket does not take at once is sent later, by the helper thread.
 */
#ifndef GPUSHARE_CLIENT_CHANNEL_H
#define GPUSHARE_CLIENT_CHANNEL_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Only the helper thread opens and closes it; others ask under the lock. */
bool gs_channel_is_open(void);
int gs_channel_socket(void); /* -1 while the scheduler is away */

/* A scheduler has greeted us on that socket. `first`: until it does, the process waits as if a scheduler had just gone
 * away. */
void gs_channel_open_locked(int socket, bool first);

/* The connection is over. */
void gs_channel_close_locked(void);

/* The connection is of no use: the helper sees its end. */
void gs_channel_break_locked(void);

/* Sends one frame after all that was to be sent before. Does nothing while the scheduler is away. */
void gs_channel_send(enum gpushare_type type, const void *body, size_t size);

/* Requests are told apart by their serial. */
uint64_t gs_channel_next_serial_locked(void);

/* A program that allocates and frees all the time states what it holds now and then, or with the next message. */
void gs_channel_report_usage(const struct gpushare_usage *usage);
void gs_channel_send_due_usages(void);

/* Whether there is some to be stated, and when. */
bool gs_channel_holds_usages_locked(uint64_t *at);

/* What the socket had no room for. */
void gs_channel_flush(void);
bool gs_channel_is_flushed(void);

/* From now on the calling thread is the helper. What it states, the scheduler may be waiting for. */
void gs_channel_be_helper(void);

/* --- While the scheduler is away --- */

uint64_t gs_channel_away_since(void);
void gs_channel_set_away_since(uint64_t since);

/* When the next attempt is to be made to find one. */
uint64_t gs_channel_reopen_at(void);
void gs_channel_reopen_later(uint64_t longest_gap); /* doubles the gap between two attempts */
void gs_channel_reopen_after(uint64_t gap);

/* A thread waits for what only a scheduler gives. */
void gs_channel_reopen_at_once_locked(void);

void gs_channel_after_fork(void);

#endif

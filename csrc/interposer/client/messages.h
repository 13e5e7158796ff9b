/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Handles the scheduler's messages, in order. Messages that must not interrupt a move are deferred until it ends. All
 * others are handled between two pieces of the move. For the helper thread.
 */
#ifndef GPUSHARE_CLIENT_MESSAGES_H
#define GPUSHARE_CLIENT_MESSAGES_H

#include "client/connection.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* The received bytes. The code that waits for WELCOME reads them, too. */
struct gs_inbox *gs_messages_inbox(void);

/* Whether a scheduler may send this type of message, and the body has the right size. */
bool gs_messages_is_sound(const struct gpushare_header *header);

/* Handles the messages that have been received already. */
void gs_messages_handle(void);

/* Sleeps until a message arrives, a thread calls the helper, or the time (ns) is over. Then handles the messages. */
void gs_messages_await(uint64_t nanoseconds);

/* Handles an interrupt: cancels all waits. */
void gs_messages_take_interrupt(void);

/* For struct gs_moves. */
bool gs_messages_between_pieces(uint64_t patience);
bool gs_messages_grant_waits(void);

#endif

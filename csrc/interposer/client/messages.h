/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The scheduler's messages, in order. Those that must not meet a move wait for its end; the others are handled between
 * two of its pieces. For the helper thread.
 */
#ifndef GPUSHARE_CLIENT_MESSAGES_H
#define GPUSHARE_CLIENT_MESSAGES_H

#include "client/connection.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* What has arrived; the greeting reads it, too. */
struct gs_inbox *gs_messages_inbox(void);

/* Whether schedulers send messages of this type, and the body has the right size for it. */
bool gs_messages_is_sound(const struct gpushare_header *header);

/* Handles what is in the inbox already. */
void gs_messages_handle(void);

/* Sleeps until a message arrives, a thread rings, or the time (ns) is over, and handles the messages. */
void gs_messages_await(uint64_t nanoseconds);

/* An interrupt has come: cancels all waits. */
void gs_messages_take_interrupt(void);

/* For struct gs_moves. */
bool gs_messages_between_pieces(uint64_t patience);
bool gs_messages_grant_waits(void);

#endif

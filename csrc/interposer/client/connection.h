/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection to the scheduler's socket: frames out, frames in. */
#ifndef GPUSHARE_CLIENT_CONNECTION_H
#define GPUSHARE_CLIENT_CONNECTION_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Connects; returns a non-blocking, close-on-exec descriptor, or a negative errno (-EACCES: of a user whom we do not
 * trust; that is all but ours, root and those of GPUSHARE_SCHEDULER_UID).
 */
int gs_connect(const char *path);

/* What became of the ticket that GPUSHARE_TICKET_FILE names. */
enum gs_ticket {
    GS_TICKET_NONE, /* none is named */
    GS_TICKET_SENT,
    GS_TICKET_MISSING, /* the file is not there (yet): who serves this user without one does so */
    GS_TICKET_BAD      /* the file cannot be used, which was said */
};

/* Says who we are, before all else, if a ticket is there. */
enum gs_ticket gs_present_ticket(int fd);

/*
 * Sends one frame whole, waiting for at most 2 s. False: the connection is of no use any more, since half a frame may
 * be on its way. For greetings only: once the scheduler has answered, see gs_post.
 */
bool gs_send(int fd, uint16_t type, const void *body, size_t size);

/*
 * Frames for which the socket has no room yet, in order. They are kept until the scheduler reads again, so that no
 * thread waits for it. Of USAGE with nothing else in between, only the last of each GPU is kept.
 */
struct gs_outbox {
    size_t begin, end;
    size_t usages; /* where the last frames begin that are all USAGE and wholly unsent */
    char bytes[1 << 20];
};

void gs_outbox_clear(struct gs_outbox *outbox);
bool gs_outbox_empty(const struct gs_outbox *outbox);

/*
 * Sends one frame, after all that is in the outbox, or keeps it there. Never waits. False: the connection is of no use
 * any more. It failed, or the scheduler has not read for so long that the outbox is full.
 */
bool gs_post(int fd, struct gs_outbox *outbox, uint16_t type, const void *body, size_t size);

/* Sends as much of the outbox as the socket takes. False: as above. */
bool gs_flush(int fd, struct gs_outbox *outbox);

/* Collects bytes until a frame is whole. */
struct gs_inbox {
    size_t used, taken;
    int descriptor; /* the last that came along, the taker's to close; -1: none */
    char bytes[16384];
};

void gs_inbox_clear(struct gs_inbox *inbox);

/* Reads what there is. False at the end of the connection or on an error. */
bool gs_receive(int fd, struct gs_inbox *inbox);

enum gs_frame { GS_FRAME_NONE, GS_FRAME_WHOLE, GS_FRAME_BAD };

/* The next whole frame, if any; valid until the next gs_receive. */
enum gs_frame gs_next_frame(struct gs_inbox *inbox, struct gpushare_header *header, const void **body);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection to the scheduler's socket: sends and receives frames. */
#ifndef GPUSHARE_CLIENT_CONNECTION_H
#define GPUSHARE_CLIENT_CONNECTION_H

#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Connects. Returns a non-blocking, close-on-exec descriptor, or a negative errno. -EACCES means that the scheduler
 * runs as an untrusted user: trusted are this process's user, root and the users in GPUSHARE_SCHEDULER_UID.
 */
int gs_connect(const char *path);

/* The result of presenting the ticket in GPUSHARE_TICKET_FILE. */
enum gs_ticket {
    GS_TICKET_NONE, /* GPUSHARE_TICKET_FILE is not set */
    GS_TICKET_SENT,
    GS_TICKET_MISSING, /* the file does not exist (yet); some schedulers accept this user without a ticket */
    GS_TICKET_BAD      /* the file cannot be used, and the reason was printed */
};

/* Sends the ticket, if there is one. Must come before all other messages. */
enum gs_ticket gs_present_ticket(int fd);

/*
 * Sends one whole frame; waits for up to 2 s. False: the connection is unusable, because part of the frame may have
 * been sent. Use it only until the scheduler has answered, and gs_post afterwards.
 */
bool gs_send(int fd, uint16_t type, const void *body, size_t size);

/*
 * Frames that the socket has not accepted yet, in order. They are kept until the scheduler reads again, so that no
 * thread waits for it. In a run of USAGE frames, only the last one of each GPU is kept.
 */
struct gs_outbox {
    size_t begin, end;
    size_t usages; /* start of the unsent run of USAGE frames at the end */
    char bytes[1 << 20];
};

void gs_outbox_clear(struct gs_outbox *outbox);
bool gs_outbox_empty(const struct gs_outbox *outbox);

/*
 * Sends one frame after all that is in the outbox, or adds it to the outbox. Never waits. False: the connection is
 * unusable. It failed, or the outbox is full because the scheduler has not read for long.
 */
bool gs_post(int fd, struct gs_outbox *outbox, uint16_t type, const void *body, size_t size);

/* Sends as much of the outbox as the socket accepts. False: the connection is unusable. */
bool gs_flush(int fd, struct gs_outbox *outbox);

/* Collects bytes until a frame is whole. */
struct gs_inbox {
    size_t used, taken;
    int descriptor; /* the last descriptor that was received, or -1; the caller that takes it closes it */
    char bytes[16384];
};

void gs_inbox_clear(struct gs_inbox *inbox);

/* Reads all available bytes. False at the end of the connection or on an error. */
bool gs_receive(int fd, struct gs_inbox *inbox);

enum gs_frame { GS_FRAME_NONE, GS_FRAME_WHOLE, GS_FRAME_BAD };

/* Returns the next whole frame, if any. It is valid until the next gs_receive. */
enum gs_frame gs_next_frame(struct gs_inbox *inbox, struct gpushare_header *header, const void **body);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* How this process attaches to a scheduler: it sends HELLO and handles the answer. */
#ifndef GPUSHARE_CLIENT_ATTACH_H
#define GPUSHARE_CLIENT_ATTACH_H

#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* The largest size of a socket's path, with the terminating NUL. */
enum { GS_ATTACH_PATH = 108 };

enum gs_greeting { GS_GREETED, GS_UNREACHABLE, GS_REFUSED };

/*
 * Sets this process's HELLO and the scheduler's socket. Records whether the socket's folder exists, which means that a
 * scheduler is running or expected.
 */
void gs_attach_identify(const struct gpushare_hello *hello, const char *path);
bool gs_attach_is_expected(void);
void gs_attach_set_backend(uint32_t backend);
const char *gs_attach_path(void);

/* See api.h. */
const char *gs_attach_group(void);

/* Sets whether a thread that has no context yet is waiting for a scheduler. Such a wait can be interrupted. */
void gs_attach_set_awaited(bool awaited);

/*
 * Connects and sends HELLO with all that this process holds. On GS_GREETED the client keeps the connection. On failure,
 * *problem has the error.
 */
enum gs_greeting gs_attach_greet(int *problem);

/* Makes the next HELLO a reattachment: this process has been attached before, or counts as if it had been. */
void gs_attach_again(void);

/* Tries to connect again. For the helper thread, while there is no scheduler. */
void gs_attach_reconnect(void);

/* Whether the last scheduler that answered refused this process. */
bool gs_attach_is_refused(void);
const char *gs_attach_refusal(void);
void gs_attach_print_refusal(void);

/* How long (ns) the first cuInit keeps trying after this error. */
uint64_t gs_attach_patience(int problem);

/*
 * Whether the process was refused because it has no ticket yet, or a ticket that the scheduler has not read yet.
 * `waited` (ns) is how long the process has tried; the result is false once another attempt is not worthwhile.
 */
bool gs_attach_awaits_ticket(uint64_t waited);

void gs_attach_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* How this process says HELLO to a scheduler, and what becomes of it. */
#ifndef GPUSHARE_CLIENT_ATTACH_H
#define GPUSHARE_CLIENT_ATTACH_H

#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes that the path of a socket may have, its end included. */
enum { GS_ATTACH_PATH = 108 };

enum gs_greeting { GS_GREETED, GS_UNREACHABLE, GS_REFUSED };

/* Who we are; and whether there is a socket's folder, in which a scheduler is or is to come. */
void gs_attach_as(const struct gpushare_hello *hello, const char *path);
bool gs_attach_is_expected(void);
void gs_attach_set_backend(uint32_t backend);
const char *gs_attach_path(void);

/* See api.h. */
const char *gs_attach_group(void);

/* From now on, or no more, a thread that has no context yet waits for a scheduler, and can be interrupted. */
void gs_attach_set_awaited(bool awaited);

/* Connects and says HELLO with all that is held. On GS_GREETED the connection is the client's. Error in *problem. */
enum gs_greeting gs_attach_greet(int *problem);

/* We have been attached before, or count as such: what we hold is ours already. */
void gs_attach_again(void);

/* From the helper, while the scheduler is away. */
void gs_attach_reconnect(void);

/* The last scheduler that answered refused us: why (the words are there until another answers). */
bool gs_attach_is_refused(void);
const char *gs_attach_refusal(void);
void gs_attach_say_refusal(void);

/* How long (ns) the first cuInit tries, where there is that problem. */
uint64_t gs_attach_patience(int problem);

/* The process was refused because it has no ticket yet, or one that the scheduler has not read. True while the time
 * waited (ns) makes another attempt worthwhile. */
bool gs_attach_awaits_ticket(uint64_t waited);

void gs_attach_after_fork(void);

#endif

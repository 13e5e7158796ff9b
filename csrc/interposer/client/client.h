/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * This process as a client of the scheduler: the connection, the lease, the burst, and the helper thread.
 *
 * The helper thread starts with the first successful cuInit. It reads the scheduler's messages, shuts and opens the
 * gate, moves memory, and watches for the end of bursts. Application threads only ever wait in gs_client_acquire,
 * gs_client_pace, gs_client_grow and gs_client_await_awake; all end when the user interrupts.
 */
#ifndef GPUSHARE_CLIENT_H
#define GPUSHARE_CLIENT_H

#include "protocol.h"

#include "driver.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a cancelled wait returns. Not sticky, and not "out of memory", for which PyTorch would empty its cache and try
 * again: the system call that waited was interrupted.
 */
#define GS_ERROR_CANCELLED CUDA_ERROR_OPERATING_SYSTEM

/* What the hooks do when the client says so. */
struct gs_client_watch {
    void (*lease_ends)(void); /* the helper thread is about to give the lease back, and no work is in flight */
    void (*forked)(void);     /* in the child of a fork of a process that the client had begun to serve */
};

/* Attaches to the scheduler, once; afterwards, or if that is not possible, does nothing. */
void gs_client_start(const struct gs_client_watch *watch);

/*
 * Before the first context: waits for a scheduler that is expected and did not answer gs_client_start. Ends as
 * gs_client_acquire does when the user interrupts. If none answers for long, this process goes on without one, and
 * attaches to the first that does.
 */
CUresult gs_client_await_scheduler(void);

/* The scheduler that answered last refused this process, which goes on without it and keeps trying to connect. */
bool gs_client_refused(void);

/* The last of the captures that were open may be over: a lease that is wanted back is given back. */
void gs_client_capture_ended(void);

/* See api.h. */
void gs_client_cell(enum gpushare_phase phase, const char *msg_id);
bool gs_client_take_interrupt(void);
const char *gs_client_group(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * This process as a client of the scheduler, as the hooks see it.
 *
 * The helper thread (helper.h) starts with the first successful cuInit. Application threads only ever wait for a lease,
 * for their turn under one (lease.h), for more memory (growth.h), and to be woken (waking.h); all waits end when the
 * user interrupts.
 */
#ifndef GPUSHARE_CLIENT_H
#define GPUSHARE_CLIENT_H

#include "driver.h"

/* What the hooks do when the client says so. */
struct gs_client_watch {
    void (*lease_ends)(void); /* the helper thread is about to give the lease back, and no work is in flight */
    void (*forked)(void);     /* in the child of a fork of a process that the client had begun to serve */
};

/* Attaches to the scheduler, once; afterwards, or if that is not possible, does nothing. */
void gs_client_start(const struct gs_client_watch *watch);

/*
 * Before the first context: waits for a scheduler that is expected and did not answer gs_client_start. Ends with
 * GS_ERROR_CANCELLED when the user interrupts. If none answers for long, this process goes on without one, and attaches
 * to the first that does.
 */
CUresult gs_client_await_scheduler(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * This process as a client of the scheduler: the interface for the hooks.
 *
 * The helper thread (helper.h) starts with the first successful cuInit. Application threads wait for a lease or for
 * their turn under one (lease.h), for more memory (growth.h), or until the process is awake (waking.h). An interrupt by
 * the user ends all these waits.
 */
#ifndef GPUSHARE_CLIENT_H
#define GPUSHARE_CLIENT_H

#include "driver.h"

/* Callbacks of the hooks. */
struct gs_client_watch {
    void (*lease_ends)(void); /* the helper thread is about to release the lease, and no work is in flight */
    void (*forked)(void);     /* called in the forked child of a process that had begun to use the client */
};

/* Attaches to the scheduler. Does nothing if it was called before, or if attaching is not possible. */
void gs_client_start(const struct gs_client_watch *watch);

/*
 * Called before the first context. Waits for a scheduler that is expected and did not answer gs_client_start. Returns
 * GS_ERROR_CANCELLED when the user interrupts the wait. If the wait times out, this process continues without a
 * scheduler and attaches to the first that answers.
 */
CUresult gs_client_await_scheduler(void);

#endif

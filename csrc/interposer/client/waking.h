/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether this process is awake, parked or hibernated, and the threads that wait to call the driver. The second gate
 * (gate/awake.h) is shut while the process is not awake. Functions whose names end in _locked are called under the
 * client's lock.
 */
#ifndef GPUSHARE_CLIENT_WAKING_H
#define GPUSHARE_CLIENT_WAKING_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* PARKED: the process has sent PARKED, and the scheduler has not reported the result yet. */
enum gs_waking { GS_WAKING_AWAKE, GS_WAKING_PARKED, GS_WAKING_HIBERNATED };

enum gs_waking gs_waking_state_locked(void);
bool gs_waking_is_awake(void);

/*
 * For a thread that found the second gate shut: asks the scheduler to wake this process, and waits. CUDA_SUCCESS: the
 * gate is open. Otherwise GS_ERROR_CANCELLED, or the error of a wake that failed.
 */
CUresult gs_waking_await(void);

/* For atexit: wakes the process first, because the driver cannot clean up after a checkpointed process. */
void gs_waking_at_exit(void);

/* A thread needs the driver. After a failure, the next attempt does not follow at once. */
void gs_waking_ask_locked(const struct gpushare_usage *needed);

/* Forgets a request to a scheduler that has exited or lost the request, so that it is sent again. */
void gs_waking_forget_question_locked(void);

/* The number of threads that wait to call the driver. */
unsigned gs_waking_sleepers_locked(void);

/* How many wakes have failed, and the last error. */
uint64_t gs_waking_failures_locked(void);
CUresult gs_waking_failure_locked(void);

/* Whether the process is exiting; and whether it exits without having been woken. */
bool gs_waking_is_ending_locked(void);
bool gs_waking_has_ended_locked(void);

/* --- For parking.c and alone.c --- */

void gs_waking_park_locked(void);
/* the serial of the last PARK, whether the process has parked or not */
void gs_waking_parked_by_locked(uint64_t serial);
uint64_t gs_waking_parks(void); /* how often the process was parked */

/* Records the result of that PARK: the process is hibernated, or is awake again. False: another PARK has followed. */
bool gs_waking_hibernated_locked(uint64_t serial, bool done);

/* The driver may be called again: opens the second gate. */
void gs_waking_wake_locked(void);

/* Records a failed wake. False: it does not answer the last request, or the process is awake. */
bool gs_waking_failed_locked(uint64_t serial, CUresult status);

/* When the process may next try to wake by itself. */
uint64_t gs_waking_alone_at_locked(void);
void gs_waking_set_alone_at(uint64_t time);

void gs_waking_after_fork(void);

#endif

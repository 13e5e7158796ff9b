/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Whether this process is awake, parked or hibernated, and the threads that wait to enter the driver. The second gate
 * (gate/awake.h) is shut while it is not awake. Functions whose names end
 * in _locked are called under the client's lock.
 */
#ifndef GPUSHARE_CLIENT_WAKING_H
#define GPUSHARE_CLIENT_WAKING_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* PARKED: that has been said, and what came of it has not been heard. */
enum gs_waking { GS_WAKING_AWAKE, GS_WAKING_PARKED, GS_WAKING_HIBERNATED };

enum gs_waking gs_waking_state_locked(void);
bool gs_waking_is_awake(void);

/*
 * For a thread that found the second gate shut. CUDA_SUCCESS: it is open. Asks to be woken; ends with
 * GS_ERROR_CANCELLED, or with the error of a wake that failed.
 */
CUresult gs_waking_await(void);

/* For atexit: the driver cannot clean up after a process that is checkpointed. */
void gs_waking_at_exit(void);

/* Somebody is to call the driver. A failure is not followed by the next attempt at once. */
void gs_waking_ask_locked(const struct gpushare_usage *needed);

/* A question to a scheduler that is gone, or has forgotten it, is asked again. */
void gs_waking_forget_question_locked(void);

/* Threads that wait to enter the driver. */
unsigned gs_waking_sleepers_locked(void);

/* How often a wake has failed, and the last error. */
uint64_t gs_waking_failures_locked(void);
CUresult gs_waking_failure_locked(void);

/* The process ends; and it has, and was not woken. */
bool gs_waking_is_ending_locked(void);
bool gs_waking_has_ended_locked(void);

/* --- For parking.c and alone.c --- */

void gs_waking_park_locked(void);
void gs_waking_parked_by_locked(uint64_t serial); /* the last PARK's, whether it has parked or not */
uint64_t gs_waking_parks(void);                   /* how often it was parked */

/* Of that PARK: it is hibernated, or is not, and awake again. False: another has come since. */
bool gs_waking_hibernated_locked(uint64_t serial, bool done);

/* The driver may be called: opens the second gate. */
void gs_waking_wake_locked(void);

/* The answer to the question of that serial. False: it is not for the last question, or the process is awake. */
bool gs_waking_failed_locked(uint64_t serial, CUresult status);

/* When the process may try next to wake by itself. */
uint64_t gs_waking_alone_at_locked(void);
void gs_waking_set_alone_at(uint64_t time);

void gs_waking_after_fork(void);

#endif

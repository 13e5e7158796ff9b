/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lease: application threads that wait for it at the gate, the gate's word, and how the lease is given back. The
 * scheduler grants it (grants.h). Functions whose names end in
 * _locked are called under the client's lock.
 */
#ifndef GPUSHARE_CLIENT_LEASE_H
#define GPUSHARE_CLIENT_LEASE_H

#include "driver.h"
#include "gate/slots.h"
#include "memory/promises.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* A capture that was begun and never ended holds a lease that is wanted back no longer than this (ns). */
void gs_lease_set_capture_patience(uint64_t patience);

/* To be called by the helper when no work is in flight, before it gives a lease back. */
void gs_lease_set_end(void (*ends)(void));

/* --- The gate's word --- */

void gs_lease_set_gate_locked(enum gs_gate_state state);
uint32_t gs_lease_gate_state(void);

/* A burst is under way. */
bool gs_lease_gate_is_open(void);

/* Open, or paced, as the scheduler wants it. */
void gs_lease_open_gate_locked(void);

/* --- For application threads; see struct gs_keeper and struct gs_promises. --- */

CUresult gs_lease_acquire(bool *entered);
CUresult gs_lease_pace(struct gs_submission *submission);
enum gs_reach gs_lease_reach(bool promised, struct gs_slot **entered);
bool gs_lease_await_released(uint64_t patience);
void gs_lease_give_up(enum gpushare_cause cause);
bool gs_lease_is_held(void);

/* The last of the captures that were open may be over: a lease that is wanted back is given back. */
void gs_lease_capture_ended(void);

/* --- What the scheduler has granted --- */

bool gs_lease_is_held_locked(void);
uint64_t gs_lease_id_locked(void);

/* Everything is resident: lets submissions in, or keeps the lease idle if the thread that asked has given up. */
void gs_lease_grant_locked(uint64_t lease);

/* Lets one of the threads that wait submit under that lease, though the gate is shut. */
void gs_lease_step_locked(uint64_t lease);

/* The process goes on as if it had held a lease when its scheduler went away. */
void gs_lease_take_alone(void);

/* --- What the scheduler is told --- */

void gs_lease_send_last_released_locked(uint64_t lease, enum gpushare_cause cause);

/* Threads that are waiting ask for the next lease. */
void gs_lease_send_released_locked(uint64_t lease, enum gpushare_cause cause);

/* The request is to be made again; or it counts still. */
void gs_lease_forget_request_locked(void);
void gs_lease_keep_request_locked(void);

/* Another scheduler is there, and was not told that a lease takes its time. */
void gs_lease_reattach_locked(void);

/* --- Its end --- */

void gs_lease_give_up_locked(enum gpushare_cause cause);

/* The burst is over, the lease stays: the next submission opens the gate again by itself. */
void gs_lease_end_burst_locked(enum gpushare_cause cause);

/* It is being given back; also: and waits for threads inside, or for the GPU. */
bool gs_lease_is_ending_locked(void);
bool gs_lease_is_draining_locked(uint64_t lease);

/* How long the helper may sleep (ns) before it calls gs_lease_step_release. */
uint64_t gs_lease_release_pause_locked(void);

/* Waits for the threads inside, then for the GPU. An open capture postpones both: synchronising would break it. */
void gs_lease_step_release(void);

/* --- Those that wait --- */

unsigned gs_lease_waiters_locked(void);

/* Threads that wait under a lease until they may submit. */
unsigned gs_lease_paced_locked(void);

/* Of these: what they wait for is in flight, or has changed; and looks at it. */
bool gs_lease_paced_may_go_on_locked(void);
void gs_lease_look_for_paced(void);

/* Ends the waits for a lease that are under way. */
void gs_lease_fail_waiters_locked(CUresult failure);

/* True once for the threads that are waiting now, so that the reason is printed once. */
bool gs_lease_tell_waiters_locked(void);

#endif

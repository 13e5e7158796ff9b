/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lease: application threads that wait for it at the gate, the state of the gate, and how the lease is released.
 * The scheduler grants leases (grants.h). Functions whose names end in _locked are called under the client's lock.
 */
#ifndef GPUSHARE_CLIENT_LEASE_H
#define GPUSHARE_CLIENT_LEASE_H

#include "driver.h"
#include "gate/slots.h"
#include "memory/promises.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* How long (ns) a capture that does not end can delay the release of a lease. */
void gs_lease_set_capture_patience(uint64_t patience);

/* Sets what the helper calls before it releases a lease, when no work is in flight. */
void gs_lease_set_end(void (*ends)(void));

/* --- The state of the gate --- */

void gs_lease_set_gate_locked(enum gs_gate_state state);
uint32_t gs_lease_gate_state(void);

/* Whether a burst is in progress. */
bool gs_lease_gate_is_open(void);

/* Opens the gate fully or paced, as the scheduler has ordered. */
void gs_lease_open_gate_locked(void);

/* --- For application threads; see struct gs_keeper and struct gs_promises. --- */

CUresult gs_lease_acquire(bool *entered);
CUresult gs_lease_pace(struct gs_submission *submission);
enum gs_reach gs_lease_reach(bool promised, struct gs_slot **entered);
bool gs_lease_await_released(uint64_t patience);
void gs_lease_release(enum gpushare_cause cause);
bool gs_lease_is_held(void);

/* A capture has ended. If it was the last one, a lease that the scheduler has revoked is released now. */
void gs_lease_capture_ended(void);

/* --- What the scheduler has granted --- */

bool gs_lease_is_held_locked(void);
uint64_t gs_lease_id_locked(void);

/*
 * All memory is resident. Opens the gate, or keeps the lease idle if the thread that requested it has stopped waiting.
 */
void gs_lease_grant_locked(uint64_t lease);

/* Lets one waiting thread submit under that lease, although the gate is shut. */
void gs_lease_step_locked(uint64_t lease);

/* Lets the process continue as if it had held a lease when its scheduler exited. */
void gs_lease_take_alone(void);

/* --- Messages to the scheduler --- */

void gs_lease_send_last_released_locked(uint64_t lease, enum gpushare_cause cause);

/* Also requests the next lease if threads are waiting. */
void gs_lease_send_released_locked(uint64_t lease, enum gpushare_cause cause);

/* The pending request is no longer valid and has to be repeated; or it is still valid. */
void gs_lease_forget_request_locked(void);
void gs_lease_keep_request_locked(void);

/* Resets what the previous scheduler was told about this lease, for a new scheduler. */
void gs_lease_reattach_locked(void);

/* --- The end of a lease --- */

void gs_lease_release_locked(enum gpushare_cause cause);

/* Ends the burst but keeps the lease: the next submission opens the gate again by itself. */
void gs_lease_end_burst_locked(enum gpushare_cause cause);

/*
 * Whether the lease is being released; and whether the release of this lease waits for threads inside, or for the GPU.
 */
bool gs_lease_is_ending_locked(void);
bool gs_lease_is_draining_locked(uint64_t lease);

/* How long the helper may sleep (ns) before it calls gs_lease_step_release. */
uint64_t gs_lease_release_pause_locked(void);

/*
 * Continues a release: waits for the threads inside, then for the GPU. An open capture delays both, because
 * synchronising would invalidate it.
 */
void gs_lease_step_release(void);

/* --- Waiting threads --- */

unsigned gs_lease_waiters_locked(void);

/* The number of threads that have to wait before they may submit, although there is a lease. */
unsigned gs_lease_paced_locked(void);

/* Whether such threads are waiting for work that is in flight or that has changed; and the check for its end. */
bool gs_lease_paced_may_continue_locked(void);
void gs_lease_look_for_paced(void);

/* Ends all current waits for a lease with this error. */
void gs_lease_fail_waiters_locked(CUresult failure);

/* Returns true once for the threads that are waiting now, so that the reason is printed once. */
bool gs_lease_notify_waiters_locked(void);

#endif

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

#include "gate/meter.h"
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

/* Attaches to the scheduler, once; afterwards, or if that is not possible, does nothing. */
void gs_client_start(void);

/*
 * Before the first context: waits for a scheduler that is expected and did not answer gs_client_start. Ends as
 * gs_client_acquire does when the user interrupts. If none answers for long, this process goes on without one, and
 * attaches to the first that does.
 */
CUresult gs_client_await_scheduler(void);

/* The scheduler that answered last refused this process, which goes on without it and keeps trying to connect. */
bool gs_client_refused(void);

/*
 * Called by a thread that found the gate not open. CUDA_SUCCESS: try again, or (*entered) it is inside, for this one
 * submission.
 */
CUresult gs_client_acquire(bool *entered);

/*
 * Called by a thread that found the gate paced. Waits outside it until the submission may go in (it is admitted then),
 * or the gate is not paced any more. Ends as gs_client_acquire does when the user interrupts.
 */
CUresult gs_client_pace(struct gs_submission *submission);

/*
 * Asks the scheduler to promise more memory and waits for the answer. `least` is what must be promised, `most` what
 * would be best. Returns GS_ERROR_CANCELLED if waits were cancelled since gs_client_cancels() was `cancels`, and
 * GPUSHARE_GROWTH_SWAPPED if the scheduler stays away. `urgent`: what runs may need it before the lease can be given
 * back. With GROWTH_SWAPPED the lease, if there was one, has been given up when this returns.
 */
CUresult gs_client_grow(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                        struct gpushare_grown *answer);

/* How often the waits of this process were cancelled. */
uint64_t gs_client_cancels(void);

struct gs_slot;

enum gs_reach {
    GS_REACH_NONE, /* no lease is held, or the gate is open: nothing can touch what has no memory */
    GS_REACH_NOW,  /* the caller is inside the gate: the lease stays until gs_gate_leave_leased */
    GS_REACH_LATER /* there is no room that the scheduler knows of */
};

/*
 * Whether memory that is new has to come to the GPU although the gate is shut, and may. Under gs_memory_lock.
 * `promised`: there is room.
 */
enum gs_reach gs_client_reach(bool promised, struct gs_slot **entered);

/* Waits at most so long (ns) for the lease to be given back. Ends early if the gate opens, or the user interrupts. */
bool gs_client_await_released(uint64_t patience);

/*
 * Called by a thread that found the second gate shut. CUDA_SUCCESS: try again. Asks to be woken, and ends as
 * gs_client_acquire does when the user interrupts, or when the process cannot be woken now.
 */
CUresult gs_client_await_awake(void);

/* The footprint has no room after all: gives the lease up, so that the next submission asks again. */
void gs_client_give_up_lease(enum gpushare_cause cause);

/* Some context has failed: its memory is given to others soon, by the helper. */
void gs_client_context_failed(void);

/* The last of the captures that were open may be over: a lease that is wanted back is given back. */
void gs_client_capture_ended(void);

void gs_client_report_usage(const struct gpushare_usage *usage);

/*
 * From the mover, between two pieces: handles what must not wait for the whole move, sleeping up to `patience` (ns) for
 * it. False: the move is to end, since whoever ordered it has taken that back or is gone.
 */
bool gs_client_while_moving(uint64_t patience);

/*
 * Of this process's footprint, the bytes that may be on the GPU under the grant that memory is moved in for. *last: and
 * there will be no more.
 */
uint64_t gs_client_room(const uint8_t gpu[16], bool *last);

/* From the mover: so much has left. */
void gs_client_moved(const struct gpushare_moved *moved);

/* A grant has come that waits for the end of the move. */
bool gs_client_grant_waits(void);

/* See api.h. */
void gs_client_cell(enum gpushare_phase phase, const char *msg_id);
bool gs_client_take_interrupt(void);
const char *gs_client_group(void);

/* False once the lease has been given back, after all that was submitted under it. */
bool gs_client_leased(void);

#endif

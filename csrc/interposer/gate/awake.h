/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The second gate: every call of the driver passes it, including calls that wait, query or free.
 *
 * While this process is parked (hibernate.h), no thread is in the driver. A thread that the driver's checkpoint stopped
 * there would wait without the interposer's knowledge, and the process would never be woken. Like the first gate
 * (enter.h), passing costs two stores and a load, and the shutting side pays for the ordering. Entries of one thread
 * nest: only the outermost counts. A thread that waits for memory inside the gate counts as in the driver. A thread
 * that waits at the first gate does not, so a process that waits for a lease can be parked.
 */
#ifndef GPUSHARE_GATE_AWAKE_H
#define GPUSHARE_GATE_AWAKE_H

#include "driver.h"
#include "gate/slots.h"

#include <stdbool.h>
#include <stdint.h>

extern uint32_t gs_awake_shut; /* 0: open */

CUresult gs_awake_enter_slow(struct gs_slot **called);
void gs_awake_leave_slow(void);

/*
 * On CUDA_SUCCESS the caller may call the driver, and then calls gs_awake_leave with the slot. The slot is NULL if
 * leaving takes more than the fast path. Return any other result to the application; the driver was not called.
 */
__attribute__((always_inline)) static inline CUresult gs_awake_enter(struct gs_slot **called)
{
    struct gs_slot *slot = gs_gate_thread;
    if (__builtin_expect(slot != NULL && (slot->calls & 1) == 0, 1)) {
        __atomic_store_n(&slot->calls, slot->calls + 1, __ATOMIC_RELAXED);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (__builtin_expect(__atomic_load_n(&gs_awake_shut, __ATOMIC_RELAXED) == 0, 1)) {
            *called = slot;
            return CUDA_SUCCESS;
        }
        __atomic_store_n(&slot->calls, slot->calls + 1, __ATOMIC_RELEASE);
    }
    return gs_awake_enter_slow(called);
}

static inline void gs_awake_leave(struct gs_slot *called)
{
    if (__builtin_expect(called != NULL, 1))
        __atomic_store_n(&called->calls, called->calls + 1, __ATOMIC_RELEASE);
    else
        gs_awake_leave_slow();
}

/* The calling thread is about to wait for a lease: leaves the gate if it is inside. Returns NULL if it was not. */
struct gs_slot *gs_awake_pause(void);

/*
 * Enters again after the wait. With `result` CUDA_SUCCESS, waits until the gate is open. On return the thread is
 * inside, whatever the result.
 */
CUresult gs_awake_resume(struct gs_slot *paused, CUresult result);

/* Enters only if the gate is open: for calls that can be skipped and must not wake the process. */
bool gs_awake_try_enter(struct gs_slot **called);

/* --- Opening and shutting the gate: only by the client, under its lock. --- */

/* From now on no thread enters, but threads may still be inside (see gs_awake_empty). */
void gs_awake_shut_gate(void);
void gs_awake_open_gate(void);

/* Whether no thread is inside. After gs_awake_shut_gate, the answer true is final. */
bool gs_awake_empty(void);

#endif

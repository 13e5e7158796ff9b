/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The second gate: every call of the driver passes it, also those that wait, ask or free.
 *
 * While this process is parked (hibernate.h), no thread is in the driver: what the driver's checkpoint would stop there
 * would wait without our knowledge, and nothing would wake the process. Like the first gate (enter.h), passing costs
 * two stores and a load, and the side that shuts pays for the ordering. Entries of one thread nest: only the outermost
 * counts. A thread that waits inside for room is in the driver as far as this gate knows; one that waits at the first
 * gate is not, so a process that waits for a lease can be parked.
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
 * On CUDA_SUCCESS the caller may call the driver, and then calls gs_awake_leave with the slot, which is NULL where
 * leaving takes more than the fast path. Any other result is for the application; the driver was not called.
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

/* The calling thread is going to wait for a lease: outside, if it was inside. Returns NULL if it was not. */
struct gs_slot *gs_awake_pause(void);

/* Ends that. With `result` CUDA_SUCCESS, waits until the gate is open; the thread is inside again whatever it returns.
 */
CUresult gs_awake_resume(struct gs_slot *paused, CUresult result);

/* Enters only if the gate is open: for what can do without the driver, and must not wake the process. */
bool gs_awake_try_enter(struct gs_slot **called);

/* --- The side that opens and shuts; only the client, under its lock. --- */

/* From here on nobody enters; who is inside may still be (see gs_awake_empty). */
void gs_awake_shut_gate(void);
void gs_awake_open_gate(void);

/* No thread is inside. After gs_awake_shut_gate this stays true once it is. */
bool gs_awake_empty(void);

#endif

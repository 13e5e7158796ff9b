/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate: every call that submits work or touches device memory passes it.
 *
 * The fast path is one store, one relaxed load and, after the call, one store. The side that shuts the gate pays for
 * the ordering with membarrier(2); slots.c has the proof and the measured alternatives.
 */
#ifndef GPUSHARE_GATE_ENTER_H
#define GPUSHARE_GATE_ENTER_H

#include "driver.h"
#include "gate/slots.h"
#include "gate/work.h"

#include <stddef.h>
#include <stdint.h>

CUresult gs_gate_enter_slow(struct gs_slot **entered, CUstream stream, enum gs_stream_kind kind, uintptr_t work,
                            size_t size);
void gs_gate_leave_slow(void);

/*
 * Enters the gate to submit `work` (work.h). On CUDA_SUCCESS the caller submits, and then calls gs_gate_leave with the
 * slot. The slot is NULL if leaving takes more than the fast path. On any other result, nothing may be submitted, and
 * the result goes to the application. The size (blocks or bytes; 0: not known) distinguishes short and long runs of the
 * same work.
 */
__attribute__((always_inline)) static inline CUresult
gs_gate_enter_sized(struct gs_slot **entered, CUstream stream, enum gs_stream_kind kind, uintptr_t work, size_t size)
{
    struct gs_slot *slot = gs_gate_thread;
    if (__builtin_expect(slot != NULL && (slot->passes & 1) == 0, 1)) {
        __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELAXED);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (__builtin_expect(__atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) <= GS_GATE_OPEN, 1)) {
            if (!__builtin_constant_p(work) || gs_work_counts(work))
                __atomic_store_n(&slot->work, work, __ATOMIC_RELAXED);
            *entered = slot;
            return CUDA_SUCCESS;
        }
        __atomic_store_n(&slot->passes, slot->passes + 1, __ATOMIC_RELEASE);
    }
    return gs_gate_enter_slow(entered, stream, kind, work, size);
}

__attribute__((always_inline)) static inline CUresult gs_gate_enter(struct gs_slot **entered, CUstream stream,
                                                                    enum gs_stream_kind kind, uintptr_t work)
{
    return gs_gate_enter_sized(entered, stream, kind, work, 0);
}

static inline void gs_gate_leave(struct gs_slot *entered)
{
    if (__builtin_expect(entered != NULL, 1))
        __atomic_store_n(&entered->passes, entered->passes + 1, __ATOMIC_RELEASE);
    else
        gs_gate_leave_slow();
}

#endif

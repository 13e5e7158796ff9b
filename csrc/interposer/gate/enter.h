/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate: every call that submits work or touches device memory passes it.
 *
 * The fast path is one store, one relaxed load and, after the call, one store; the side that shuts the gate pays for
 * the ordering with membarrier(2) (see slots.c for the proof and the measured alternatives).
 */
#ifndef GPUSHARE_GATE_ENTER_H
#define GPUSHARE_GATE_ENTER_H

#include "driver.h"
#include "gate/meter.h"
#include "gate/work.h"
#include <stdbool.h>
#include <stdint.h>

/* Up to GS_GATE_OPEN, the fast path passes; up to GS_GATE_PACED, submissions do; up to GS_GATE_HELD, there is a lease.
 */
enum gs_gate_state { GS_GATE_PLAIN = 0, GS_GATE_OPEN = 1, GS_GATE_PACED = 2, GS_GATE_HELD = 3, GS_GATE_SHUT = 4 };

/* One per thread that ever passed the gate. Only its thread writes it, but for `work`, which others may make vague. */
struct gs_slot {
    uint64_t passes; /* odd while the thread is inside */
    uintptr_t work;  /* what it submitted last */
    struct gs_slot *next;
    uint32_t free_for_reuse;
    bool paced;      /* it is inside and passed as PACED wants it, with this submission */
    unsigned nested; /* entries while it was inside */
    uint64_t calls;  /* odd while the thread is inside the second gate (awake.h) */
    unsigned inner_calls;
    struct gs_submission submission;
};

extern uint32_t gs_gate_word; /* enum gs_gate_state */
extern __thread struct gs_slot *gs_gate_thread __attribute__((tls_model("initial-exec")));

CUresult gs_gate_enter_slow(struct gs_slot **entered, CUstream stream, enum gs_stream_kind kind, uintptr_t work,
                            size_t size);
void gs_gate_leave_slow(void);

/*
 * Enters the gate to submit `work` (work.h). On CUDA_SUCCESS the caller submits and then calls gs_gate_leave with the
 * slot, which is NULL where leaving takes more than the fast path. Any other result is to be returned to the
 * application; nothing is to be submitted. The size (blocks, bytes; 0: not known) tells short from long of one work.
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

static inline bool gs_gate_is_shut(void)
{
    return __atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT;
}

/* Enters only if a lease is held (word up to GS_GATE_HELD), never waits: while inside, the lease cannot be given up. */
bool gs_gate_enter_leased(struct gs_slot **entered);
void gs_gate_leave_leased(struct gs_slot *entered);

/* --- The side that opens and shuts; only client.c calls these, under its lock. --- */

void gs_gate_prepare(void);

/* From here on nobody enters; who is inside may still be (see gs_gate_empty). */
void gs_gate_shut(void);

/* The calling thread, which waits at the gate, is inside although it is shut; and is outside again. */
void gs_gate_enter_shut(void);
void gs_gate_leave_shut(void);

/* The same for a thread that does not wait there, and may be inside already: gs_gate_leave_leased ends it. */
bool gs_gate_enter_shut_leased(struct gs_slot **entered);

/* No thread is inside. After gs_gate_shut this stays true once it is, but for who enters it shut. */
bool gs_gate_empty(void);

/* The work of some thread that submitted last, a kernel if there is one; GS_WORK_NONE: nobody submitted anything. */
uintptr_t gs_gate_last_work(void);

/* No function's handle is known any more: what they name may be about to go. */
void gs_gate_forget_functions(void);

/* Grows with every call that entered to submit: unchanged means that nothing was submitted in between. */
uint64_t gs_gate_passes(void);

/*
 * The same without what is under way, and so without entries under a lease: it may be compared with a later count while
 * others are inside, and is the same only if they submitted nothing.
 */
uint64_t gs_gate_submissions(void);

/* --- For the second gate. --- */

/* The calling thread's; NULL: there is no memory for it. */
struct gs_slot *gs_gate_slot(void);

/* All of them, linked by `next`. */
const struct gs_slot *gs_gate_slots(void);

/* Every thread of the process executes a full fence. */
void gs_gate_fence(void);

/* In the child of a fork: only the calling thread is left, and everything passes. */
void gs_gate_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate's state, and a slot for each thread that has ever passed it. The fast path (enter.h) reads and writes them,
 * and the side that shuts the gate waits for them.
 */
#ifndef GPUSHARE_GATE_SLOTS_H
#define GPUSHARE_GATE_SLOTS_H

#include "gate/work.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Up to GS_GATE_OPEN, the fast path passes. Up to GS_GATE_PACED, submissions pass. Up to GS_GATE_HELD, a lease is held.
 */
enum gs_gate_state { GS_GATE_PLAIN = 0, GS_GATE_OPEN = 1, GS_GATE_PACED = 2, GS_GATE_HELD = 3, GS_GATE_SHUT = 4 };

/*
 * One slot for each thread that has ever passed the gate. Only its thread writes it, except that other threads may
 * replace a function in `work` by GS_WORK_KERNEL.
 */
struct gs_slot {
    uint64_t passes; /* odd while the thread is inside */
    uintptr_t work;  /* what the thread submitted last */
    struct gs_slot *next;
    uint32_t free_for_reuse;
    bool paced;      /* the thread is inside and was admitted while the gate was paced, with this submission */
    unsigned nested; /* number of nested entries */
    uint64_t calls;  /* odd while the thread is inside the second gate (awake.h) */
    unsigned inner_calls;
    struct gs_submission submission;
};

extern uint32_t gs_gate_word; /* enum gs_gate_state */
extern __thread struct gs_slot *gs_gate_thread __attribute__((tls_model("initial-exec")));

static inline bool gs_gate_is_shut(void)
{
    return __atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT;
}

/*
 * Enters if the gate's state is at most `highest`: stores `passes` and then loads the state. Not for a thread that is
 * inside.
 */
bool gs_gate_try_enter(struct gs_slot *slot, uint32_t highest);

/*
 * Enters only if a lease is held (state up to GS_GATE_HELD). Never waits. While a thread is inside, the lease cannot be
 * released.
 */
bool gs_gate_enter_leased(struct gs_slot **entered);
void gs_gate_leave_leased(struct gs_slot *entered);

/* --- Opening and shutting the gate: only by the client, under its lock. --- */

void gs_gate_prepare(void);

/* From now on no thread enters, but threads may still be inside (see gs_gate_empty). */
void gs_gate_shut(void);

/* Lets the calling thread, which waits at the gate, enter although it is shut; and leave again. */
void gs_gate_enter_shut(void);
void gs_gate_leave_shut(void);

/* Enters the shut gate for a thread that does not wait there and may be inside already. gs_gate_leave_leased leaves. */
bool gs_gate_enter_shut_leased(struct gs_slot **entered);

/*
 * Whether no thread is inside. After gs_gate_shut, the answer true is final, except for threads that enter the shut
 * gate.
 */
bool gs_gate_empty(void);

/* The work of a thread that submitted last, preferably a CUDA kernel; GS_WORK_NONE: nothing was submitted. */
uintptr_t gs_gate_last_work(void);

/* Forgets all function handles in the slots, because the functions may be about to be removed. */
void gs_gate_forget_functions(void);

/* Grows with every call that enters to submit. If it has not changed, nothing was submitted in between. */
uint64_t gs_gate_passes(void);

/*
 * Grows like gs_gate_passes, but without calls that are inside, and so without entries under a lease. It may be
 * compared with a later value while threads are inside, and is equal only if they submitted nothing.
 */
uint64_t gs_gate_submissions(void);

/* --- For the gates. --- */

/* The calling thread's slot. NULL: out of memory. */
struct gs_slot *gs_gate_slot(void);

/* All slots, linked by `next`. */
const struct gs_slot *gs_gate_slots(void);

/* Makes every thread of the process execute a full fence. */
void gs_gate_fence(void);

/* In the child of a fork: only the calling thread is left, and every call passes. */
void gs_gate_after_fork(void);

#endif

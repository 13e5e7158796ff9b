/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The gate's word, and a slot for each thread that ever passed it: what the fast path (enter.h) reads and writes, and
 * what the side that shuts the gate waits for.
 */
#ifndef GPUSHARE_GATE_SLOTS_H
#define GPUSHARE_GATE_SLOTS_H

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

static inline bool gs_gate_is_shut(void)
{
    return __atomic_load_n(&gs_gate_word, __ATOMIC_RELAXED) == GS_GATE_SHUT;
}

/* Enters if the gate is open so far: a store of `passes`, and then a load of the word. Not while it is inside. */
bool gs_gate_try_enter(struct gs_slot *slot, uint32_t highest);

/* Enters only if a lease is held (word up to GS_GATE_HELD), never waits: while inside, the lease cannot be given up. */
bool gs_gate_enter_leased(struct gs_slot **entered);
void gs_gate_leave_leased(struct gs_slot *entered);

/* --- The side that opens and shuts; only the client calls these, under its lock. --- */

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

/* --- For the gates. --- */

/* The calling thread's; NULL: there is no memory for it. */
struct gs_slot *gs_gate_slot(void);

/* All of them, linked by `next`. */
const struct gs_slot *gs_gate_slots(void);

/* Every thread of the process executes a full fence. */
void gs_gate_fence(void);

/* In the child of a fork: only the calling thread is left, and everything passes. */
void gs_gate_after_fork(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast this process may submit: the rules of PACE (protocol.h), as numbers. Threads wait in
 * client/lease.c.
 *
 * What is in flight is estimated: each function, graph or kind of work has for each size a mean of what it took lately,
 * less what it has run already. What was never seen fills any bound. The share is a bucket that fills with time and is
 * emptied by what was measured.
 */
#ifndef GPUSHARE_GATE_PACE_H
#define GPUSHARE_GATE_PACE_H

#include "gate/work.h"
#include "protocol.h"

/* NULL: nothing is bounded or measured. */
void gs_pace_set(const struct gpushare_pace *pace);

/* Submissions are bounded or measured: the gate is to be GS_GATE_PACED rather than open. */
bool gs_pace_active(void);
/* METER is asked for. */
bool gs_pace_metered(void);

/*
 * Whether the submission of one who waits since then may go in now; it counts as in flight then, until it is given
 * back. If not, *patience is how long nothing but news of work in flight, or another PACE, could change that.
 */
bool gs_pace_admit(struct gs_submission *submission, uint64_t since, uint64_t *patience);
/* `next`: what runs from now on, where that is known. */
void gs_pace_give_back(struct gs_submission *submission, const struct gs_submission *next);

/* How many submissions are in flight, and how many have been given back ever. */
unsigned gs_pace_in_flight(uint64_t *given_back);

/* So many bytes of a copy should be one submission. */
size_t gs_pace_piece(size_t bytes);

/* Measuring has failed: nothing is charged any more. True the first time. */
bool gs_pace_go_unmeasured(void);
bool gs_pace_unmeasured(void);

/* From the meter: this one took so long; so much more of a GPU was had in all. */
void gs_pace_learn(const struct gs_submission *submission, uint64_t duration_ns);
void gs_pace_charge(uint64_t busy_ns);

void gs_pace_after_fork(void);

#endif

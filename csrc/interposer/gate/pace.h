/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How fast this process may submit: the rules of PACE (protocol.h), as numbers. Threads wait in client/lease.c.
 *
 * Work in flight is estimated. There is an estimate for each function, graph or kind of work, and each size. It is a
 * mean of the recent run times, less the time that the work has run already. Work without an estimate fills any bound.
 * The share is a bucket that time fills and measured work empties.
 */
#ifndef GPUSHARE_GATE_PACE_H
#define GPUSHARE_GATE_PACE_H

#include "gate/work.h"
#include "protocol.h"

/* NULL: nothing is bounded or measured. */
void gs_pace_set(const struct gpushare_pace *pace);

/* Whether submissions are bounded or measured, so that the gate must be GS_GATE_PACED instead of open. */
bool gs_pace_active(void);
/* Whether the scheduler wants METER. */
bool gs_pace_metered(void);

/*
 * Whether a submission that has waited since `since` may be submitted now. If so, it counts as in flight until it is
 * returned. If not, *patience is how long only the end of work in flight, or another PACE, could change that.
 */
bool gs_pace_admit(struct gs_submission *submission, uint64_t since, uint64_t *patience);
/* `next`: the work that runs from now on, if known. */
void gs_pace_return(struct gs_submission *submission, const struct gs_submission *next);

/* The number of submissions in flight, and in *returned the number that have ever been returned. */
unsigned gs_pace_in_flight(uint64_t *returned);

/* How many bytes of a copy should be one submission. */
size_t gs_pace_piece(size_t bytes);

/* Measuring has failed, so no time is charged any more. True the first time. */
bool gs_pace_go_unmeasured(void);
bool gs_pace_unmeasured(void);

/* For the meter: the run time of one submission, and additional GPU time that was used in total. */
void gs_pace_learn(const struct gs_submission *submission, uint64_t duration_ns);
void gs_pace_charge(uint64_t busy_ns);

void gs_pace_after_fork(void);

#endif

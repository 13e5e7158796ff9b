/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long nothing is submitted before a burst counts as over: learnt from the gaps that the application makes within
 * its bursts. All under the client's lock.
 */
#ifndef GPUSHARE_CLIENT_QUIET_H
#define GPUSHARE_CLIENT_QUIET_H

#include <stdbool.h>
#include <stdint.h>

/* Somebody is to know when bursts begin and end. */
bool gs_quiet_is_watched(void);
void gs_quiet_watch(uint32_t contended, uint32_t beside);

/* The shortest gap that the scheduler wants. */
void gs_quiet_set_shortest(uint64_t gap);
uint64_t gs_quiet_gap(void);

/* From now on it is quiet, unless something is submitted. */
void gs_quiet_begin(void);

/* The same, of a burst that goes on. */
void gs_quiet_begin_again(void);

/* Whether it has been quiet for the gap. `passes`: of the gate, `busy`: threads are inside, or about to be. */
bool gs_quiet_is_over(uint64_t now, uint64_t passes, bool busy, bool capturing);

/* What is in flight is being waited for; returns whether it was before. */
bool gs_quiet_set_draining(bool draining);
bool gs_quiet_is_draining(void);

/* The burst has ended, by quiet or otherwise; and goes on: the gap was one of the application's own. */
void gs_quiet_ended(bool by_quiet);
void gs_quiet_goes_on(void);

#endif

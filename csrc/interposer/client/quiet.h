/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How long a process must submit nothing before its burst counts as over. The time is learnt from the pauses that the
 * application makes within its bursts. All functions are called under the client's lock.
 */
#ifndef GPUSHARE_CLIENT_QUIET_H
#define GPUSHARE_CLIENT_QUIET_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the begin and end of bursts must be detected. */
bool gs_quiet_is_watched(void);
void gs_quiet_watch(uint32_t contended, uint32_t beside);

/* Sets the shortest gap that the scheduler wants. */
void gs_quiet_set_shortest(uint64_t gap);
uint64_t gs_quiet_gap(void);

/* Starts the gap, until the next submission. */
void gs_quiet_begin(void);

/* Starts the gap again in a burst that continues. */
void gs_quiet_begin_again(void);

/*
 * Whether nothing was submitted for the whole gap. `passes`: passes through the gate so far; `busy`: threads are
 * inside, or about to enter.
 */
bool gs_quiet_is_over(uint64_t now, uint64_t passes, bool busy, bool capturing);

/* Sets whether the helper is waiting for work in flight. Returns the earlier value. */
bool gs_quiet_set_draining(bool draining);
bool gs_quiet_is_draining(void);

/* Learns from the end of a burst (by a gap or otherwise), and from a burst that continues after a gap. */
void gs_quiet_ended(bool by_quiet);
void gs_quiet_continues(void);

#endif

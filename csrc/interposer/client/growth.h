/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads that ask the scheduler for more memory (GROW) and wait for its answer. */
#ifndef GPUSHARE_CLIENT_GROWTH_H
#define GPUSHARE_CLIENT_GROWTH_H

#include "driver.h"
#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* See struct gs_promises. */
CUresult gs_growth_ask(const struct gpushare_usage *least, uint64_t most, bool urgent, uint64_t cancels,
                       struct gpushare_grown *answer);

/* The scheduler's answer. */
void gs_growth_answered(const struct gpushare_grown *grown);

/* Whether a thread is waiting for an answer. Called under the client's lock. */
bool gs_growth_is_wanted_locked(void);

/* Repeats all requests that are pending, for a new scheduler. */
void gs_growth_ask_again_locked(void);

/* Answers all pending requests itself, because no scheduler will. */
void gs_growth_answer_alone_locked(void);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/* What this process does by itself while no scheduler answers. For the helper thread. */
#ifndef GPUSHARE_CLIENT_ALONE_H
#define GPUSHARE_CLIENT_ALONE_H

#include <stdbool.h>
#include <stdint.h>

/* The time (ns) without an answer from a scheduler after which a wait for room fails. */
void gs_alone_set_patience(uint64_t patience);

/* Answers what a scheduler that stays away does not. */
void gs_alone_go_on(void);

/* No scheduler wakes us: runs the hibernator, which is under way from one call to the next. */
void gs_alone_wake(void);
bool gs_alone_is_waking(void);

void gs_alone_after_fork(void);

#endif

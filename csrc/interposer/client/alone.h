/* SPDX-License-Identifier: BSD-3-Clause */
/* What the helper thread does on its own while no scheduler answers. */
#ifndef GPUSHARE_CLIENT_ALONE_H
#define GPUSHARE_CLIENT_ALONE_H

#include <stdbool.h>
#include <stdint.h>

/* Sets how long (ns) a thread waits for memory without an answer from a scheduler before the wait fails. */
void gs_alone_set_patience(uint64_t patience);

/* Moves memory to the GPU without a scheduler, for threads that have waited long enough for one. */
void gs_alone_continue(void);

/* Wakes this process without a scheduler: starts the hibernator, or checks on the one that was started earlier. */
void gs_alone_wake(void);
bool gs_alone_is_waking(void);

void gs_alone_after_fork(void);

#endif

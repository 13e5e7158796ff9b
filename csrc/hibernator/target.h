/* SPDX-License-Identifier: BSD-3-Clause */
/* The process of a pidfd. */
#ifndef GPUSHARE_HIBERNATOR_TARGET_H
#define GPUSHARE_HIBERNATOR_TARGET_H

#include <stdbool.h>
#include <sys/types.h>

/* Why a process cannot be used. All but the first are codes of scheduler/core/refusals.py. */
#define HIB_TARGET_GONE "gone"
#define HIB_TARGET_CONTAINER "container" /* not visible from this PID namespace */
#define HIB_TARGET_DEBUGGER "debugger"

/*
 * Finds the process of a pidfd in this PID namespace. Returns NULL, or the reason why the process cannot be used.
 * `undebugged`: it cannot if a debugger is attached.
 */
const char *hib_target_find(int pidfd, bool undebugged, pid_t *pid);

bool hib_target_has_ended(int pidfd);

#endif

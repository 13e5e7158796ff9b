/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_HIBERNATOR_WAKE_H
#define GPUSHARE_HIBERNATOR_WAKE_H

#include <stdbool.h>
#include <sys/types.h>

#include "room.h"

/*
 * Makes a process able to call its driver again, whatever its state, once there is room for what it needs. On failure,
 * prints the reason as one sentence and returns false. If the driver does not respond in time, prints that and exits
 * with status 1.
 */
bool hib_wake(pid_t pid, const struct hib_needs *needs);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef GPUSHARE_HIBERNATOR_WAKE_H
#define GPUSHARE_HIBERNATOR_WAKE_H

#include <stdbool.h>
#include <sys/types.h>

#include "room.h"

/*
 * Lets a process call its driver again, in whatever state it is, once there is room for what it needs. If that fails,
 * says why in one sentence and returns false; if the driver does not answer in time, says so and ends this process with
 * status 1.
 */
bool hib_wake(pid_t pid, const struct hib_needs *needs);

#endif

/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The helper thread: reads the scheduler's messages, shuts and opens the gate, moves memory, and detects the end of
 * bursts.
 */
#ifndef GPUSHARE_CLIENT_HELPER_H
#define GPUSHARE_CLIENT_HELPER_H

#include <stdbool.h>

/* False: the thread could not be started. */
bool gs_helper_start(void);

#endif

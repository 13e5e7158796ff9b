/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Detects the end of a burst: the cell ended, the process stopped submitting, or the server saw the kernel become idle.
 */
#ifndef GPUSHARE_CLIENT_BURSTS_H
#define GPUSHARE_CLIENT_BURSTS_H

#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* See api.h. */
void gs_bursts_cell(enum gpushare_phase phase, const char *msg_id);

/*
 * Reports the running cell to a scheduler to which this process has just attached. Only processes that use CUDA attach,
 * so the cell may have begun before. Called under the client's lock.
 */
void gs_bursts_reattach_locked(void);

/* Handle CONTENDED and END_BURST. For the helper thread. */
void gs_bursts_contended(const struct gpushare_contended *contended);
void gs_bursts_check_end(void);

/* Ends the burst if the process has stopped submitting, or if an end that the server reported is confirmed. */
void gs_bursts_step_quiet(uint64_t now);
void gs_bursts_step_end_check(uint64_t now);

/* When the end that the server reported is checked next; 0 means never. Called under the client's lock. */
uint64_t gs_bursts_end_check_at_locked(void);

#endif

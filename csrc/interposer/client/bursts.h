/* SPDX-License-Identifier: BSD-3-Clause */
/* When a burst is over: by the end of a cell, by quiet, or because the server saw the kernel idle. */
#ifndef GPUSHARE_CLIENT_BURSTS_H
#define GPUSHARE_CLIENT_BURSTS_H

#include "protocol.h"

#include <stdbool.h>
#include <stdint.h>

/* See api.h. */
void gs_bursts_cell(enum gpushare_phase phase, const char *msg_id);

/* From the helper: CONTENDED and END_BURST have come. */
void gs_bursts_contended(const struct gpushare_contended *contended);
void gs_bursts_check_end(void);

/* Looks whether the burst is over: by quiet, and, when that is to be checked, by the server's word. */
void gs_bursts_step_quiet(uint64_t now);
void gs_bursts_step_end_check(uint64_t now);

/* When the latter is due; 0: never. Under the client's lock. */
uint64_t gs_bursts_end_check_at_locked(void);

#endif

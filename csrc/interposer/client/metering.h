/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports to the scheduler how much GPU time this process has used (METER), if it asked for that. */
#ifndef GPUSHARE_CLIENT_METERING_H
#define GPUSHARE_CLIENT_METERING_H

#include <stdint.h>

/* Reports the GPU time of each device for which it has changed. */
void gs_metering_send(void);

/* When the next report is due while work is in flight. */
uint64_t gs_metering_at_locked(void);
void gs_metering_report(void);

/* Starts again with a new scheduler, which has no reports yet. */
void gs_metering_restart_locked(void);

#endif

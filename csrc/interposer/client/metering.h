/* SPDX-License-Identifier: BSD-3-Clause */
/* Tells the scheduler how much of the GPUs this process had (METER), as far as that is asked for. */
#ifndef GPUSHARE_CLIENT_METERING_H
#define GPUSHARE_CLIENT_METERING_H

#include <stdint.h>

/* Says how much of the GPUs there was, where that has changed. */
void gs_metering_send(void);

/* When it is to be said next, while something is in flight. */
uint64_t gs_metering_at_locked(void);
void gs_metering_report(void);

/* A new scheduler has no reports from us yet. */
void gs_metering_restart_locked(void);

#endif

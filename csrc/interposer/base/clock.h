/* SPDX-License-Identifier: BSD-3-Clause */
/* The time of the system's monotonic clock, which the scheduler reads, too. */
#ifndef GPUSHARE_BASE_CLOCK_H
#define GPUSHARE_BASE_CLOCK_H

#include <stdint.h>

#define GS_MILLISECOND UINT64_C(1000000)
#define GS_SECOND UINT64_C(1000000000)

/* In nanoseconds. */
uint64_t gs_now_ns(void);

#endif
